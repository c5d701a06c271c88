"""What becomes of each feature of a LeRobot dataset: a part of the observation or the action, an extra output, or nothing.

* `observation.*`: the observation: an array where `observation.state` is its only part, else a Dict by name;
* `action`, or without it `action.*`: the action;
* `next.reward`, `next.done`, `next.truncated`: reward and end flags;
* further numbers: extra model outputs, by their dotted names;
* pictures, videos and texts are left out, by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from gymnasium import spaces

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.errors import BadData
from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.meanings import Element
from offline_cli.spaces import Space

__all__ = ["ACTION", "DONE", "FRAME", "OBSERVATION", "REWARDS", "STATE", "TRUNCATED", "Leaf", "Plan"]

OBSERVATION: Final = "observation"
STATE: Final = "state"
ACTION: Final = "action"
REWARDS: Final = ("next.reward", "reward")
DONE: Final = ("next.done", "done")
TRUNCATED: Final = "next.truncated"
FRAME: Final = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns that every dataset has."""

ARROW_NAMES: Final = {"float": "float32", "double": "float64", "halffloat": "float16"}  # where numpy calls them otherwise
KEPT: Final = "biuf"
MOST: Final = 1 << 22  # numbers of one step
RESERVED: Final = frozenset({*STEP_COLUMNS, *END_FLAGS, Columns.INFOS, Columns.RESET_INFOS, Columns.SOURCE_ID})
FIX: Final = (
    "rename one of them with LeRobot's lerobot-edit-dataset, or say with --mapping FILE which are observation and action"
)
SAY_ROLES: Final = (
    '--mapping FILE, which says which are which: [columns] eps_id = "episode_index", t = "frame_index", obs = "state",'
    ' actions = "actions" (docs/formats.md#lerobot)'
)
ADD_STATE: Final = "pictures and videos are not read: add the state with LeRobot, or read the frames with a reader of your own"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One feature that is read."""

    name: str  # theirs
    path: tuple[str, ...]  # below its role; none: it is the whole
    shape: tuple[int, ...]  # of one step
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """The features by their roles."""

    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    extra: tuple[Leaf, ...]
    reward: str | None
    done: str | None
    truncated: str | None
    dropped: Mapping[str, str]  # features left out, and why
    names: Mapping[str, tuple[Element, ...]] = field(default_factory=dict)  # of elements, by path of ours

    @classmethod
    def of(cls, features: Mapping[str, Mapping[str, Any]], schema: pa.Schema, *, where: str) -> Plan:
        """For the features of info.json, and the columns of the data files. Raises BadData."""
        dropped: dict[str, str] = {}
        numeric = {
            name: leaf for name, one in features.items() if (leaf := _leaf(name, one, schema, dropped, where)) is not None
        }
        dropped |= {name: "not among the features" for name in schema.names if name not in features and name not in FRAME}
        reward, done = (next((name for name in names if name in numeric), None) for names in (REWARDS, DONE))
        used = {*FRAME, reward, done, TRUNCATED}
        rest = {name: leaf for name, leaf in numeric.items() if name not in used}
        observation = _below(rest, OBSERVATION)
        action = [rest[ACTION]] if ACTION in rest else _below(rest, ACTION)
        lacking = [f"{OBSERVATION}.*"] * (not observation) + [ACTION] * (not action)
        if lacking:
            there = ", ".join(f"{leaf.name} {list(leaf.shape)}" for leaf in rest.values())
            what = f"no feature of numbers is called {' or '.join(lacking)}; there are {there[:500] or 'none'}"
            raise BadData(what, where=where, fix=SAY_ROLES if rest else ADD_STATE)
        named = {leaf.name for leaf in (*observation, *action)}
        extra = [replace(leaf, path=tuple(name.split("."))) for name, leaf in rest.items() if name not in named]
        dropped |= {leaf.name: "the name has a meaning here" for leaf in extra if leaf.path[0] in RESERVED}
        parts = [leaf for leaf in extra if leaf.path[0] not in RESERVED]
        for leaves in (observation, action, parts):
            _check_paths(leaves, where)
        if sum(int(np.prod(leaf.shape)) for leaf in numeric.values()) > MOST:
            raise BadData(f"more than {MOST} numbers a step", where=where, fix="write fewer features")
        return cls(
            tuple(_alone(observation)),
            tuple(action),
            tuple(parts),
            reward,
            done,
            TRUNCATED if TRUNCATED in numeric else None,
            dropped,
            _names(features, _alone(observation), action),
        )

    @property
    def columns(self) -> list[str]:
        """Those that are read."""
        flags = [name for name in (self.reward, self.done, self.truncated) if name is not None]
        return [*FRAME, *flags, *(leaf.name for leaf in (*self.observation, *self.action, *self.extra))]

    @property
    def spaces(self) -> tuple[Space | None, Space | None]:
        """Of observations and actions, as shapes and dtypes say; None where the values decide, as of whole numbers."""
        return _space(self.observation), _space(self.action)


def _leaf(name: str, feature: Mapping[str, Any], schema: pa.Schema, dropped: dict[str, str], where: str) -> Leaf | None:
    said = feature["dtype"]
    if said in ("video", "image"):
        dropped[name] = f"{said}, and not numbers"
        return None
    try:
        dtype = np.dtype(said) if said.isalnum() else None
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in KEPT:
        dropped[name] = f"{said[:40]}, and not numbers"
        return None
    if name not in schema.names:
        raise BadData(
            f"the feature {name[:80]!r} is not in the data files", where=where, fix="write the dataset again with LeRobot"
        )
    shape = tuple(feature["shape"])
    return Leaf(name, (), () if shape == (1,) and dtype.kind != "f" else shape, _stored(schema.field(name).type, dtype))


def _stored(kind: pa.DataType, said: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of a column, or what is said of it where it is no column of numbers: reading finds that."""
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    is_number = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return np.dtype(ARROW_NAMES.get(str(kind), str(kind))) if is_number else said


def _below(leaves: Mapping[str, Leaf], role: str) -> list[Leaf]:
    return [replace(leaf, path=tuple(name.split(".")[1:])) for name, leaf in leaves.items() if name.startswith(f"{role}.")]


def _alone(leaves: Sequence[Leaf]) -> list[Leaf]:
    """`observation.state` as the whole, where it is the only part."""
    return [replace(leaves[0], path=())] if [leaf.path for leaf in leaves] == [(STATE,)] else list(leaves)


def _check_paths(leaves: Sequence[Leaf], where: str) -> None:
    """Raise BadData where one dotted name goes through another, or has an empty part."""
    paths = {leaf.path: leaf.name for leaf in leaves}
    for path, name in paths.items():
        if path and not all(path):
            raise BadData(f"a feature is called {name[:80]!r}", where=where, fix=FIX)
        above = next((paths[path[:size]] for size in range(1, len(path)) if path[:size] in paths), None)
        if above is not None:
            raise BadData(f"the features {above[:80]!r} and {name[:80]!r} cannot be parts of one Dict", where=where, fix=FIX)


def _space(leaves: Sequence[Leaf]) -> Space | None:
    if any(leaf.dtype.kind != "f" for leaf in leaves):
        return None
    boxes = [(leaf.path, spaces.Box(-np.inf, np.inf, leaf.shape, leaf.dtype.type)) for leaf in leaves]
    return boxes[0][1] if not boxes[0][0] else _dict_space(boxes)


def _dict_space(parts: Sequence[tuple[tuple[str, ...], Space]]) -> Space:
    below: dict[str, list[tuple[tuple[str, ...], Space]]] = {}
    for (name, *rest), space in parts:
        below.setdefault(name, []).append((tuple(rest), space))
    return spaces.Dict({name: inner[0][1] if not inner[0][0] else _dict_space(inner) for name, inner in below.items()})


def _names(features: Mapping[str, Mapping[str, Any]], *roles: Sequence[Leaf]) -> Mapping[str, tuple[Element, ...]]:
    """The names of elements of vectors, a list or, of older recordings, a list under one key."""
    found: dict[str, tuple[Element, ...]] = {}
    for role, leaves in zip((Columns.OBS, Columns.ACTIONS), roles, strict=True):
        for leaf in leaves:
            said = features[leaf.name].get("names")
            if isinstance(said, dict) and len(said) == 1:
                said = next(iter(said.values()))
            texts = [name for name in said if isinstance(name, str) and 0 < len(name) <= 200] if isinstance(said, list) else []
            if len(leaf.shape) == 1 and len(texts) == leaf.shape[0] == len(set(texts)):
                found[".".join((role, *leaf.path))] = tuple(map(Element, texts))
    return found
