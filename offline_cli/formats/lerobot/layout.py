"""How episodes of ours become features of LeRobot: their names, dtypes and shapes, and the rows of a batch as columns.

A Dict's parts are `observation.NAME`, an array alone is `observation.state`; actions are `action`, or `action.NAME`. One number
is a scalar column of shape [1], a vector a list of fixed length, and what has more dimensions nested lists, as LeRobot's own
`datasets.Array2D` to `Array5D` are stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import UnsupportedSpace
from offline_cli.formats.lerobot.features import ACTION, DONE, FRAME, OBSERVATION, REWARDS, STATE, TRUNCATED
from offline_cli.meanings import Element, Meanings
from offline_cli.spaces import Space
from offline_cli.trees import Tree, flatten

__all__ = ["Feature", "arrow_column", "check_spaces", "features_of", "huggingface_metadata", "step_columns"]

MAX_DIMENSIONS: Final = 5
INTEGER, REAL = "int64", "float32"


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature to write."""

    dtype: str
    shape: tuple[int, ...]
    names: Sequence[str] | None = None

    def as_json(self) -> dict[str, Any]:
        """As info.json has it."""
        return {"dtype": self.dtype, "shape": list(self.shape), "names": None if self.names is None else list(self.names)}


def check_spaces(observation: Space, action: Space, where: str) -> None:
    """Raise UnsupportedSpace for structures that LeRobot has no features for."""
    for role, space in ((OBSERVATION, observation), (ACTION, action)):
        _check(space, role, where)


def _check(space: Space, name: str, where: str) -> None:
    fix = "--to episodes keeps every space"
    if isinstance(space, spaces.Tuple):
        raise UnsupportedSpace(f"{name} is a Tuple, and LeRobot's features have names", where=where, fix=fix)
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            if "/" in key or not all(key.split(".")):
                raise UnsupportedSpace(f"a feature cannot be called {name}.{key[:80]}", where=where, fix=fix)
            _check(part, f"{name}.{key}", where)
    elif len(space.shape or ()) > MAX_DIMENSIONS:
        raise UnsupportedSpace(
            f"{name} has {len(space.shape or ())} dimensions, and {MAX_DIMENSIONS} can be written", where=where, fix=fix
        )


def step_columns(batch: EpisodeBatch) -> dict[str, NDArray[Any]]:
    """(N, ...) by the name of the feature; the final observation of each episode is not among them."""
    terminateds, truncateds = batch.step_flags()
    found = {
        **_named(OBSERVATION, STATE, batch.acted_obs(view=True)),
        **_named(ACTION, "", batch.actions),
        REWARDS[0]: batch.rewards,
        DONE[0]: terminateds,
        TRUNCATED: truncateds,
    }
    for name, tree in batch.extra.items():
        for path, leaf in flatten(tree, name):
            if path not in FRAME:
                found.setdefault(path, leaf)
    return found


def _named(role: str, alone: str, tree: Tree) -> dict[str, NDArray[Any]]:
    if isinstance(tree, np.ndarray):
        return {f"{role}.{alone}" if alone else role: tree}
    return dict(flatten(tree, role))


def features_of(columns: Mapping[str, NDArray[Any]], meanings: Meanings) -> dict[str, Feature]:
    """Those of the columns, and those that every dataset has."""
    found = {name: _feature(values, _elements(name, meanings)) for name, values in columns.items()}
    return found | {name: Feature(REAL if name == FRAME[0] else INTEGER, (1,)) for name in FRAME}


def _elements(feature: str, meanings: Meanings) -> Sequence[Element]:
    role, dot, rest = feature.partition(".")
    ours = {OBSERVATION: Columns.OBS, ACTION: Columns.ACTIONS}.get(role, role)
    return meanings.by_path.get(f"{ours}{dot}{rest}") or (meanings.by_path.get(ours, ()) if rest == STATE else ())


def _feature(values: NDArray[Any], elements: Sequence[Element]) -> Feature:
    shape = values.shape[1:] or (1,)
    names = [one.name for one in elements if one.name is not None]
    return Feature(values.dtype.name, shape, names if shape == (len(names),) else None)


def arrow_column(values: NDArray[Any]) -> pa.Array:
    """(N, ...) as LeRobot stores it."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    if values.shape[1:] in ((), (1,)):
        return flat
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(flat, type=pa.list_(pa.field("element", flat.type), values.shape[1]))
    for size in reversed(values.shape[1:]):
        offsets = pa.array(np.arange(0, len(flat) + 1, size, dtype=np.int32))
        flat = pa.ListArray.from_arrays(offsets, flat)
    return flat


def huggingface_metadata(features: Mapping[str, Feature]) -> dict[bytes, bytes]:
    """What the `datasets` library reads the types of columns from."""
    document = {"info": {"features": {name: _typed(feature) for name, feature in features.items()}}}
    return {b"huggingface": json.dumps(document).encode()}


def _typed(feature: Feature) -> dict[str, Any]:
    value = {"dtype": feature.dtype, "_type": "Value"}
    if feature.shape == (1,):
        return value
    if len(feature.shape) == 1:
        return {"feature": value, "length": feature.shape[0], "_type": "Sequence"}
    return {"shape": list(feature.shape), "dtype": feature.dtype, "_type": f"Array{len(feature.shape)}D"}
