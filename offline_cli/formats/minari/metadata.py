"""Minari's `metadata.json`: spaces and environment from its text, and back.

Everything else that it says (authors, description, scores) travels as it is, in the provenance of a dataset of ours. Of the
environment's record, id and arguments are taken; nothing that it names is imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadData, UnsupportedSpace
from offline_cli.json_documents import from_json
from offline_cli.spaces import Space, space_from_json
from offline_cli.storage.blanking import blanked
from offline_cli.storage.locations import Location

__all__ = [
    "ARROW",
    "FORMAT",
    "HDF5",
    "METADATA",
    "PARQUET",
    "Metadata",
    "dataset_id",
    "environment_text",
    "is_image",
    "space_text",
]

FORMAT: Final = "minari"
METADATA: Final = "metadata.json"
HDF5: Final = "hdf5"
ARROW: Final = "arrow"
PARQUET: Final = "parquet"
MOST: Final = 64 << 20  # bytes of the file
IMAGE_SIDE: Final = 32  # pixels from which on Minari takes a box of bytes for an image
FIX: Final = "write the dataset again with Minari"
ID: Final = re.compile(r"(?:[-_\w][-_\w/]*[-_\w]+/)?[-_\w]+-v[0-9]{1,9}", re.ASCII)
COUNTED: Final = frozenset(
    {"total_episodes", "total_steps", "data_format", "jpeg_encoding", "observation_space", "action_space", "dataset_size"}
)
"""What is made anew for a dataset that is written."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What `metadata.json` says."""

    data_format: str
    has_jpeg: bool  # images are JPEG frames, which have lost something
    observation_space: Space | None
    action_space: Space | None
    environment: EnvironmentSpec | None
    episodes: int | None
    document: Mapping[str, Any]  # what else it says

    @classmethod
    def read(cls, file: Location) -> Metadata:
        """Raises BadData, naming the key, for what Minari does not write; UnsupportedSpace."""
        if file.size() > MOST:
            raise BadData(f"metadata of {file.size() / 1e6:,.0f} MB", where=file.url, fix=FIX)
        try:
            document = from_json(file.read_bytes())
        except ValueError as error:
            raise BadData(f"not JSON: {error}", where=file.url, fix=FIX) from error
        if not isinstance(document, dict) or document.get("data_format") not in (HDF5, ARROW, PARQUET):
            raise BadData("data_format is none of hdf5, arrow and parquet", where=file.url, fix=FIX)
        total = document.get("total_episodes")
        return cls(
            data_format=document["data_format"],
            has_jpeg=bool(document.get("jpeg_encoding", True)),
            observation_space=_space_of(document, "observation_space", file.url),
            action_space=_space_of(document, "action_space", file.url),
            environment=_environment_of(document.get("env_spec")),
            episodes=total if isinstance(total, int) and not isinstance(total, bool) else None,
            document={"format": FORMAT, **_without_secrets(document)},
        )


def _without_secrets(document: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in document.items() if key not in COUNTED}
    return {key: blanked(value) if isinstance(value, str) else value for key, value in kept.items()}


def _space_of(document: Mapping[str, Any], key: str, url: str) -> Space | None:
    text = document.get(key)
    if text is None:
        return None
    try:
        return space_from_json(_our_form(from_json(text) if isinstance(text, str) else text), where=f"{url} {key}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadData(f"{key} is not a space: {str(error)[:200]}", where=url, fix=FIX) from error


def _our_form(node: Any) -> dict[str, Any]:
    """A space in Minari's JSON as `space_from_json` takes it."""
    if node["type"] == "Dict":
        return {"type": "Dict", "spaces": [[key, _our_form(part)] for key, part in node["subspaces"].items()]}
    if node["type"] == "Tuple":
        return {"type": "Tuple", "spaces": [_our_form(part) for part in node["subspaces"]]}
    if node["type"] == "Box" and node["shape"] == []:
        low, high = (str(node[side]) if isinstance(node[side], float) else node[side] for side in ("low", "high"))
        return {**node, "low": low, "high": high}
    return dict(node)


def _environment_of(text: Any) -> EnvironmentSpec | None:
    """By id and arguments; None where there is none, or its record is not readable."""
    try:
        said = from_json(text) if isinstance(text, str) else {}
    except ValueError:
        return None
    name, kwargs = (said.get("id"), said.get("kwargs")) if isinstance(said, dict) else (None, None)
    if not isinstance(name, str) or not name:
        return None
    return EnvironmentSpec(name, kwargs if isinstance(kwargs, dict) else {}, ())


def is_image(space: Space) -> bool:
    """Whether Minari takes the space for one of images, which it stores as JPEG frames unless it is told not to."""
    return (
        isinstance(space, spaces.Box)
        and len(space.shape) in (2, 3)
        and min(space.shape[:2]) >= IMAGE_SIDE
        and space.dtype == np.uint8
        and bool((space.low == 0).all() and (space.high == 255).all())
    )


# ---- back ----


def space_text(space: Space) -> str:
    """A space as Minari stores it. Raises UnsupportedSpace."""
    return json.dumps(_their_form(space))


def _their_form(space: Space) -> dict[str, Any]:
    match space:
        case spaces.Dict():
            return {"type": "Dict", "subspaces": {key: _their_form(part) for key, part in space.spaces.items()}}
        case spaces.Tuple():
            return {"type": "Tuple", "subspaces": [_their_form(part) for part in space.spaces]}
        case spaces.Box():
            bounds: Sequence[NDArray[Any]] = (space.low, space.high)
            low, high = (bound.tolist() for bound in bounds)
            return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape), "low": low, "high": high}
        case spaces.Discrete():
            return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
        case spaces.MultiDiscrete():
            return {
                "type": "MultiDiscrete",
                "dtype": str(space.dtype),
                "nvec": space.nvec.tolist(),
                "start": space.start.tolist(),
            }
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "n": np.asarray(space.n).tolist()}
    raise UnsupportedSpace(f"Minari has no form for {space}", where="--to minari", fix="choose another --to")


def environment_text(spec: EnvironmentSpec | None) -> str | None:
    """The record of a registered environment, as Minari stores it; None where it is not registered, or has wrappers."""
    found = gym.registry.get(spec.id) if spec is not None and not spec.wrappers else None
    if found is None or spec is None:
        return None
    record = json.loads(found.to_json())
    return json.dumps({**record, "kwargs": {**record.get("kwargs", {}), **spec.kwargs}})


def dataset_id(said: Any, folder: str) -> str:
    """The id of a dataset: what its source said, else the name of its folder, with the version that Minari wants."""
    if isinstance(said, str) and ID.fullmatch(said):
        return said
    name = re.sub(r"[^-_\w]+", "-", folder, flags=re.ASCII).strip("-") or "dataset"
    return name if ID.fullmatch(name) else f"{name}-v0"
