"""Values recorded step by step as arrays, and infos and custom data made plain for msgpack and JSON.

* `Steps`: values that were recorded step by step, as one array per leaf; steps of several structures or shapes raise. RLlib's
  recorder keeps lists: one observation, action or output per step, each an array, a numpy scalar, a Python number, or a dict or
  list (once a tuple) of these. A batch wants arrays with a leading axis of steps. Where dtypes differ between steps (an
  environment whose `reset` gives float64 and whose `step` gives float32) the wider one is taken, so that nothing is lost, and
  counted as `mixed-dtypes-widened`, Python's ints among floats aside. (Integers beyond 2^53 among floats raise.)
* `plain_mapping`: kept as they are: None, bool, int, float, complex, str, bytes, lists, numpy scalars, and arrays of numbers,
  bools or strings. Changed, and each change counted by kind in the tally: keys that are no strings, sets, tuples, dates and
  times. Anything else, which no other program could read back, raises BadData that names the episode, the step and the key.
* `arrays_from_jsonable`: numpy'ized steps of Dict and Tuple spaces as RLlib 2.40 stored them, in lists. That version passed
  such buffers through `space.to_jsonable([data])`, which took the whole episode for one sample: a leaf is a list of one nested
  list, (1, T, *shape). Only Box, MultiDiscrete and MultiBinary leaves got through, and only numpy'ized ones. Lists that are no
  rows of the space raise.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.buffers.stacking import EXACT_INT, STORABLE, check_widening
from offline_cli.episodes.episode_spaces import MAX_DEPTH, in_space
from offline_cli.errors import BadData, BadEpisode
from offline_cli.spaces import Space
from offline_cli.tally import Tally
from offline_cli.trees import Tree, flatten

__all__ = ["Signature", "Steps", "arrays_from_jsonable", "is_jsonable", "plain_mapping", "signature"]

MAX_INFO_DEPTH = 64  # deeper is a cycle, or not an info
LOWEST_INT, HIGHEST_INT = -(2**63), 2**64 - 1  # msgpack's

_SCALARS = frozenset((type(None), bool, int, float, complex, str, bytes))
_KEYS = (bool, int, float, type(None), np.number, np.bool_)

FIX = "write the file again from its source"

Signature = tuple[tuple[str, str, tuple[int, ...]], ...]  # of each leaf: dotted path, dtype, shape of one row
NUMBERS = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}
LEAF_TYPES = (np.ndarray, np.generic, str, *NUMBERS)
STEPS_FIX = "record values of one structure, shape and dtype, or leave this episode out"


def plain_mapping(values: Mapping[Any, Any], *, tally: Tally, where: str) -> dict[str, Any]:
    """`values` with every part of it plain. `where` names episode and step; the error adds the key. Raises BadData."""
    plain: dict[str, Any] = _mapping(values, tally, where, "", 0)
    return plain


def _plain(value: Any, tally: Tally, where: str, path: str, depth: int) -> Any:
    if depth > MAX_INFO_DEPTH:
        raise _refused(f"values nested deeper than {MAX_INFO_DEPTH}", where, path)
    if type(value) in _SCALARS:  # most are, and to ask whether they are collections takes longer than all else
        return _scalar(value, tally, where, path)
    if isinstance(value, Mapping):
        return _mapping(value, tally, where, path, depth)
    if isinstance(value, (list, tuple)):
        if isinstance(value, tuple):
            tally.assume("tuple-to-list")
        return [_plain(item, tally, where, f"{path}.{i}", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Set):
        tally.assume("set-to-list")
        return _set(value, tally, where, path, depth)
    return _scalar(value, tally, where, path)


def _mapping(value: Mapping[Any, Any], tally: Tally, where: str, path: str, depth: int) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, item in value.items():
        name = _key(key, tally, where, path)
        here = f"{path}.{name}" if path else name
        if name in plain:
            raise _refused(f"two keys that are both {name!r} as text", where, here)
        plain[name] = _plain(item, tally, where, here, depth + 1)
    return plain


def _key(key: Any, tally: Tally, where: str, path: str) -> str:
    if isinstance(key, str):
        return _text(str.__str__(key), where, path)
    tally.assume("non-string-key-to-text")
    if isinstance(key, _KEYS):
        return str(key)
    if isinstance(key, bytes):
        try:
            return key.decode("utf-8")
        except UnicodeDecodeError as err:
            raise _refused(f"a key of bytes that are not text: {key[:20]!r}", where, path) from err
    if isinstance(key, tuple) and all(isinstance(part, (str, *_KEYS)) for part in key):
        return str(tuple(part.item() if isinstance(part, np.generic) else part for part in key))
    raise _refused(f"a key of type {type(key).__name__}", where, path)


def _set(value: Set[Any], tally: Tally, where: str, path: str, depth: int) -> list[Any]:
    items = [_plain(item, tally, where, path, depth + 1) for item in value]
    return sorted(items, key=lambda item: (type(item).__name__, repr(item)))  # a set's own order changes from run to run


def _scalar(value: Any, tally: Tally, where: str, path: str) -> Any:
    match value:
        case None | bool() | float() | complex() | bytes():
            return value
        case str():
            return _text(str.__str__(value), where, path)
        case int():
            if not LOWEST_INT <= value <= HIGHEST_INT:
                raise _refused(f"the integer {str(value)[:40]}, which 64 bits cannot hold", where, path)
            return int(value)
        case datetime.datetime() | datetime.date() | datetime.time():
            tally.assume("datetime-to-text")
            return value.isoformat()
        case np.datetime64():
            tally.assume("datetime-to-text")
            return str(value)
        case np.ndarray() | np.generic():
            return _array(value, tally, where, path)
    raise _refused(f"a value of type {type(value).__module__}.{type(value).__qualname__}", where, path)


def _array(value: Any, tally: Tally, where: str, path: str) -> Any:
    if value.dtype.kind == "M":
        tally.assume("datetime-to-text")
        return np.datetime_as_string(value).tolist()
    if value.dtype.kind not in "biufcSU" or value.dtype.itemsize == 0:
        raise _refused(f"an array of {value.dtype}", where, path)
    return value


def _text(value: str, where: str, path: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as err:
        raise _refused("text that UTF-8 cannot hold", where, path) from err
    return value


def _refused(what: str, where: str, path: str) -> BadData:
    place = f"{where}, key {path!r}" if path else where
    return BadData(what, where=place, fix="store numbers, text, lists and maps of these, or leave the key out before recording")


def is_jsonable(data: Any, space: Space | None) -> bool:
    """Whether `data` (numpy'ized, of a Dict or Tuple space) holds lists where its arrays belong."""
    if isinstance(space, spaces.Dict):
        return isinstance(data, dict) and any(is_jsonable(data.get(key), part) for key, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return isinstance(data, list) and any(is_jsonable(item, part) for item, part in zip(data, space.spaces, strict=False))
    return isinstance(data, list)


def arrays_from_jsonable(data: Any, space: Space, *, name: str, where: str) -> Tree:
    """Leaves (T, *shape) in the dtypes of `space`. Raises BadEpisode, naming the leaf, for lists that are not rows of it."""
    if isinstance(space, spaces.Dict):
        if not isinstance(data, dict) or data.keys() != space.spaces.keys():
            raise _misfit(name, space, where)
        return {
            key: arrays_from_jsonable(data[key], part, name=f"{name}.{key}", where=where) for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        if not isinstance(data, list) or len(data) != len(space.spaces):
            raise _misfit(name, space, where)
        parts = enumerate(zip(data, space.spaces, strict=True))
        return [arrays_from_jsonable(item, part, name=f"{name}.{i}", where=where) for i, (item, part) in parts]
    return _leaf(data, space, name, where)


def _leaf(data: Any, space: Space, name: str, where: str) -> NDArray[Any]:
    if not isinstance(data, list) or len(data) != 1:
        raise _misfit(name, space, where)
    try:
        rows = np.array(data[0], space.dtype)
    except (ValueError, TypeError, OverflowError) as err:
        raise _misfit(name, space, where) from err
    if rows.shape[1:] != space.shape or not rows.ndim:
        raise _misfit(name, space, where)
    return rows


def _misfit(name: str, space: Space, where: str) -> BadEpisode:
    return BadEpisode(f"{name} is not one row of {type(space).__name__} per step", where=where, fix=FIX)


def signature(tree: Tree) -> Signature:
    """What two trees of rows must share to be joined."""
    return tuple((path, leaf.dtype.str, leaf.shape[1:]) for path, leaf in flatten(tree))


@dataclass(frozen=True, slots=True)
class Steps:
    """Stacks the steps of one buffer of one episode; `name` and `where` are for its errors."""

    name: str
    where: str
    tally: Tally

    def stack(self, items: list[Any], path: str = "", depth: int = 0) -> Tree:
        """Leaves (n, *shape) of n >= 1 values. Raises BadEpisode, naming the leaf, where they differ or are not numbers."""
        if depth > MAX_DEPTH:
            raise self._bad(path, f"is nested deeper than {MAX_DEPTH}")
        first = items[0]
        if isinstance(first, dict):
            return self._stack_dicts(items, path, depth)
        if isinstance(first, (list, tuple)) and not _is_numbers(first):
            return self._stack_tuples(items, path, depth)
        return self._stack_leaf(items, path)

    def _stack_dicts(self, items: list[Any], path: str, depth: int) -> Tree:
        keys = items[0].keys()
        if not all(isinstance(item, dict) and item.keys() == keys for item in items):
            raise self._bad(path, "has different keys at different steps")
        if not all(isinstance(key, str) for key in keys):
            raise self._bad(path, "has keys that are not text")
        return {key: self.stack([item[key] for item in items], f"{path}.{key}", depth + 1) for key in keys}

    def _stack_tuples(self, items: list[Any], path: str, depth: int) -> Tree:
        if not all(isinstance(item, (list, tuple)) and len(item) == len(items[0]) for item in items):
            raise self._bad(path, "has different lengths at different steps")
        columns = zip(*items, strict=True)
        return tuple(self.stack(list(column), f"{path}.{i}", depth + 1) for i, column in enumerate(columns))

    def _stack_leaf(self, items: list[Any], path: str) -> NDArray[Any]:
        kinds = set(map(type, items))
        if len(kinds) == 1 and kinds <= NUMBERS.keys():
            return self._array(items, path, NUMBERS[kinds.pop()])
        if kinds == {int, float}:  # rewards of 0 and 0.5, say: not counted
            if not all(-EXACT_INT <= item <= EXACT_INT for item in items if type(item) is int):
                raise self._bad(path, "has integers beyond 2^53 among its floats")
            return self._array(items, path, np.float64)
        arrays = items if kinds == {np.ndarray} else [self._array(item, path) for item in items]
        return self._stack_arrays(arrays, path)

    def _array(self, value: Any, path: str, dtype: Any = None) -> NDArray[Any]:
        if not isinstance(value, LEAF_TYPES) and not _is_numbers(value):
            raise self._bad(path, f"holds a {type(value).__name__} where a number belongs")
        try:
            array = np.asarray(value, dtype)
        except (ValueError, OverflowError) as err:
            raise self._bad(path, f"cannot be an array: {err}") from err
        if array.dtype.kind not in STORABLE:
            raise self._bad(path, f"holds {array.dtype} values, which cannot be stored")
        return array

    def _stack_arrays(self, arrays: list[NDArray[Any]], path: str) -> NDArray[Any]:
        shapes, dtypes = {array.shape for array in arrays}, {array.dtype for array in arrays}
        if len(shapes) > 1:
            raise self._bad(path, f"has steps of shape {' and '.join(sorted(map(str, shapes)))}")
        if len(dtypes) > 1:
            check_widening(dtypes, arrays, lambda what: self._bad(path, what))
            self.tally.assume("mixed-dtypes-widened")
        return np.stack(arrays)

    def in_space(self, tree: Tree, space: Space | None) -> Tree:
        """`tree` with tuples for lists, structured as `space` is where it can be."""
        return in_space(tree, space, name=self.name, where=self.where)

    def _bad(self, path: str, what: str) -> BadEpisode:
        return BadEpisode(f"{self.name}{path} {what}", where=self.where, fix=STEPS_FIX)


def _is_numbers(value: Any) -> bool:
    """Whether `value` is a number or a (nested) vector of plain numbers, rather than a tuple of parts."""
    if isinstance(value, (list, tuple)):
        return all(_is_numbers(part) for part in value)
    return type(value) in NUMBERS
