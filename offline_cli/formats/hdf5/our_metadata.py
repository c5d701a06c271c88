"""Our metadata (spaces, environment, action scale): one JSON attribute in the HDF5 files that we write.

D4RL's, robomimic's and d3rlpy's layouts have no place for these; their own readers ignore the attribute. dtypes of rewards and
flags are declared by the source that has them, so that a file written back has them again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadConfig, BadData, UnsupportedSpace
from offline_cli.formats.hdf5.safe import FRAMES, TEXT, Node
from offline_cli.formats.sink import SinkContext
from offline_cli.meanings import Meanings
from offline_cli.safe_json import from_json
from offline_cli.spaces import space_from_json, space_to_json

__all__ = ["OURS", "dtypes_of", "in_dtype", "metadata_text", "read_metadata"]

OURS: Final = "offline_cli"
SCALES: Final = ("env", "normalized", "unknown")
FIX: Final = "remove the attribute, and say what you know: --env, --action-scale"


def metadata_text(context: SinkContext, action_scale: str | None = None) -> str:
    """The attribute's value; `action_scale`: of the actions as they are written, where that is another one."""
    environment = context.environment
    document: dict[str, Any] = {
        "observation_space": space_to_json(context.observation_space),
        "action_space": space_to_json(context.action_space),
        "spaces_inferred": context.spaces_inferred,
        "action_scale": action_scale or context.action_scale,
        "meanings": context.meanings.as_json(),
    }
    if environment is not None:
        wrappers = list(environment.wrappers)
        document["environment"] = {"id": environment.id, "kwargs": dict(environment.kwargs), "wrappers": wrappers}
    return json.dumps(document)


def read_metadata(attributes: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Arguments of a `SourceInfo` from the attribute; empty without it. Raises BadData for one of another form."""
    text = attributes.get(OURS)
    if not isinstance(text, str):
        return {}
    where = f"{url} attribute {OURS}"
    try:
        document = from_json(text)
        scale, inferred = document["action_scale"], document["spaces_inferred"]
        if scale not in SCALES or not isinstance(inferred, bool):
            raise ValueError("action_scale or spaces_inferred")
        found: dict[str, Any] = {"action_scale": scale, "spaces_inferred": inferred}
        found["meanings"] = Meanings.of(document.get("meanings", {}), where)
        for key in ("observation_space", "action_space"):
            found[key] = space_from_json(document[key], where=where)
        environment = document.get("environment")
        if environment is not None:
            kwargs, wrappers = environment["kwargs"], environment["wrappers"]
            if not isinstance(kwargs, dict) or not isinstance(environment["id"], str) or not environment["id"]:
                raise ValueError("environment")
            found["environment"] = EnvironmentSpec(environment["id"], kwargs, tuple(str(one) for one in wrappers))
    except (ValueError, KeyError, TypeError, AttributeError, BadConfig, UnsupportedSpace) as error:
        raise BadData(f"not what this program writes: {str(error)[:200]}", where=where, fix=FIX) from error
    return found


def dtypes_of(node: Node, names: Mapping[str, str]) -> dict[str, str]:
    """The dtypes of some datasets, as `in_dtype` takes them; `names`: paths in the node by what they are called there."""
    kinds = {name: node.datasets.get(path, (TEXT, ()))[0] for name, path in names.items()}
    return {name: kind for name, kind in kinds.items() if kind not in (TEXT, FRAMES)}


def in_dtype(values: NDArray[Any], declared: Any) -> NDArray[Any]:
    """`values` in the dtype that a source declared for them; as they are without one, or where one of them would change."""
    try:
        dtype = np.dtype(declared) if isinstance(declared, str) else values.dtype
    except TypeError:
        return values
    if dtype == values.dtype or dtype.kind not in "biuf":
        return values
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
        return cast if np.array_equal(cast.astype(values.dtype), values, equal_nan=values.dtype.kind == "f") else values
