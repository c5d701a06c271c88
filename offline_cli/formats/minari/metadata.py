"""What a Minari dataset says of itself: spaces, environment and storage, and the same written back.

Since 0.5 that is `metadata.json`; before, attributes of `main_data.hdf5`. Everything else in it (authors, description, scores)
travels as it is, in the provenance of a dataset of ours. Of the environment's record, id and arguments are taken; nothing that
it names is imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from offline_cli.columns import Columns
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadData, UnsupportedSpace
from offline_cli.formats.hdf5.writing import environment_of
from offline_cli.formats.sink import SinkContext
from offline_cli.schema_files import from_json
from offline_cli.spaces import Space, space_from_json
from offline_cli.storage.blanking import blanked
from offline_cli.storage.locations import Location

FORMAT: Final = "minari"
METADATA, MAIN = "metadata.json", "main_data.hdf5"
HDF5: Final = "hdf5"
VERSION: Final = "0.5.4"  # of Minari, whose layout is written
MOST: Final = 64 << 20  # bytes of a file of metadata
FIX: Final = "write the dataset again with Minari"
ID: Final = re.compile(r"(?:[-_\w][-_\w/]*[-_\w]+/)?[-_\w]+-v[0-9]{1,9}", re.ASCII)
EXTRA: Final = "extra_model_outputs"  # where our sink keeps these
IDS: Final = ("eps_id", "agent_id", "module_id")  # attributes in which it keeps ids that are no numbers of episodes
STORED: Final = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")
SPACES: Final = {"observation_space": Columns.OBS, "action_space": Columns.ACTIONS}
COUNTED: Final = frozenset({"total_episodes", "total_steps", "data_format", "jpeg_encoding", *SPACES, "dataset_size"})
"""What is made anew for a dataset that is written."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What is known before an episode is read."""

    data_format: str  # hdf5, arrow or parquet
    spaces: tuple[Space | None, Space | None]  # of observations and actions, without the leaves that were dropped
    dropped: tuple[str, ...]  # leaves of the spaces that the caller leaves out, by dotted path
    environment: EnvironmentSpec | None
    episodes: int | None
    document: Mapping[str, Any]  # what else it says


def json_object(file: Location) -> dict[str, Any]:
    """What a file of metadata holds. Raises BadData."""
    try:
        found = from_json(file.read_bytes()) if file.size() <= MOST else None
    except ValueError as error:
        raise BadData(f"not JSON: {error}", where=file.url, fix=FIX) from error
    if not isinstance(found, dict):
        raise BadData("metadata that are not a JSON object", where=file.url, fix=FIX)
    return found


def metadata_of(document: Mapping[str, Any], url: str, drop: Collection[str]) -> Metadata:
    """Of `metadata.json`, or of the attributes of a file that Minari wrote before 0.5.

    Raises BadData, naming the key, for what Minari does not write; UnsupportedSpace.
    """
    if document.get("data_format") not in (HDF5, "arrow", "parquet"):
        raise BadData("data_format is none of hdf5, arrow and parquet", where=url, fix=FIX)
    total, dropped = document.get("total_episodes"), list[str]()
    found = [_space_of(document.get(key), path, f"{url} {key}", drop, dropped) for key, path in SPACES.items()]
    kept = {key: value for key, value in document.items() if key not in COUNTED}
    return Metadata(
        data_format=document["data_format"],
        spaces=(found[0], found[1]),
        dropped=tuple(dropped),
        environment=environment_of(document.get("env_spec"), "id", "kwargs"),
        episodes=total if type(total) is int else None,
        document={"format": FORMAT, **{key: blanked(one) if isinstance(one, str) else one for key, one in kept.items()}},
    )


def _space_of(said: Any, path: str, where: str, drop: Collection[str], dropped: list[str]) -> Space | None:
    if said is None:
        return None
    try:
        form = _our_form(from_json(said) if isinstance(said, str) else said, path, where, drop, dropped)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadData(f"not a space: {str(error)[:200]}", where=where, fix=FIX) from error
    return space_from_json(form, where=where)


def _our_form(node: Any, path: str, where: str, drop: Collection[str], dropped: list[str]) -> dict[str, Any]:
    """A space in Minari's JSON as `space_from_json` takes it, without the parts of Dicts in `drop`.

    Raises UnsupportedSpace for a part that episodes cannot hold, and says how to leave it out.
    """
    kind = node["type"]
    if kind == "Dict":
        dropped += [f"{path}.{key}" for key in node["subspaces"] if f"{path}.{key}" in drop]
        parts = [(key, part) for key, part in node["subspaces"].items() if f"{path}.{key}" not in drop]
        return {"type": kind, "spaces": [[key, _our_form(part, f"{path}.{key}", where, drop, dropped)] for key, part in parts]}
    if kind == "Tuple":
        numbered = enumerate(node["subspaces"])
        return {"type": kind, "spaces": [_our_form(part, f"{path}.{at}", where, drop, dropped) for at, part in numbered]}
    if kind not in STORED:
        fix = f"leave it out: convert ... --drop {path}" if "." in path else f"record numbers: {', '.join(STORED)}"
        raise UnsupportedSpace(f"{path} is a {str(kind)[:40]} space, which episodes do not hold", where=where, fix=fix)
    return dict(node)


# ---- back ----


def document_of(context: SinkContext, said: Mapping[str, Any], folder: str, counts: Mapping[str, Any]) -> dict[str, Any]:
    """`metadata.json` of a dataset in `folder`: what a Minari dataset among the sources `said`, and what was written.

    Raises UnsupportedSpace.
    """
    kept = {key: value for key, value in said.items() if key not in ("format", "env_spec")}
    environment, record = context.environment, said.get("env_spec")
    if not (isinstance(record, str) and environment is not None and f'"id": "{environment.id}"' in record):
        record = _environment_text(environment)
    return {
        "minari_version": VERSION,
        **kept,
        **counts,
        "data_format": HDF5,
        "jpeg_encoding": False,
        "observation_space": json.dumps(_their_form(context.observation_space)),
        "action_space": json.dumps(_their_form(context.action_space)),
        **({} if record is None else {"env_spec": record}),
        "dataset_id": _dataset_id(said.get("dataset_id"), folder),
    }


def _their_form(space: Space) -> dict[str, Any]:
    match space:
        case spaces.Dict():
            return {"type": "Dict", "subspaces": {key: _their_form(part) for key, part in space.spaces.items()}}
        case spaces.Tuple():
            return {"type": "Tuple", "subspaces": [_their_form(part) for part in space.spaces]}
        case spaces.Box():
            bounds = {"low": np.asarray(space.low).tolist(), "high": np.asarray(space.high).tolist()}
            return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape), **bounds}
        case spaces.Discrete():
            return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
        case spaces.MultiDiscrete():
            counts = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return {"type": "MultiDiscrete", "dtype": str(space.dtype), **counts}
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "n": np.asarray(space.n).tolist()}
    raise UnsupportedSpace(f"Minari has no form for {space}", where="--to minari", fix="choose another --to")


def _environment_text(spec: EnvironmentSpec | None) -> str | None:
    """The record of a registered environment, as Minari stores it; None where it is not registered, or has wrappers."""
    found = gym.registry.get(spec.id) if spec is not None and not spec.wrappers else None
    if found is None or spec is None:
        return None
    record = json.loads(found.to_json())
    return json.dumps({**record, "kwargs": {**record.get("kwargs", {}), **spec.kwargs}})


def _dataset_id(said: Any, folder: str) -> str:
    """What its source said, else the name of its folder, with the version that Minari wants."""
    if isinstance(said, str) and ID.fullmatch(said):
        return said
    name = re.sub(r"[^-_\w]+", "-", folder, flags=re.ASCII).strip("-") or "dataset"
    return name if ID.fullmatch(name) else f"{name}-v0"
