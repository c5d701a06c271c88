"""Values that were recorded step by step, as one array per leaf; refuses steps that do not have one structure and shape.

RLlib's recorder keeps lists: one observation, action or output per step, each an array, a numpy scalar, a Python number, or
a dict or list (once a tuple) of these. A batch wants arrays with a leading axis of steps. Where dtypes differ between steps (an
environment whose `reset` gives float64 and whose `step` gives float32) the wider one is taken, so that nothing is lost, and
counted as `mixed-dtypes-widened`, Python's ints among floats aside. (Integers beyond 2^53 among floats are refused.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.buffers.stacking import EXACT_INT, STORABLE, check_widening
from offline_cli.episodes.episode_spaces import MAX_DEPTH, in_space
from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space
from offline_cli.tally import Tally
from offline_cli.trees import Tree, flatten

__all__ = ["Signature", "Steps", "empty_rows", "signature"]

Signature = tuple[tuple[str, str, tuple[int, ...]], ...]  # of each leaf: dotted path, dtype, shape of one row
NUMBERS = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}
LEAF_TYPES = (np.ndarray, np.generic, str, *NUMBERS)
FIX = "record values of one structure, shape and dtype, or leave this episode out"


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
        """Leaves (n, *shape) of n >= 1 values. Raises BadEpisode, naming the leaf, where they differ or are no numbers."""
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
            raise self._bad(path, "has keys that are no text")
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
        if kinds == {int, float}:  # rewards of 0 and 0.5, say: not worth a word
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
        return BadEpisode(f"{self.name}{path} {what}", where=self.where, fix=FIX)


def _is_numbers(value: Any) -> bool:
    """Whether `value` is a number or a (nested) vector of plain numbers, rather than a tuple of parts."""
    if isinstance(value, (list, tuple)):
        return all(_is_numbers(part) for part in value)
    return type(value) in NUMBERS


# ---- structure from spaces ----


def empty_rows(space: Space | None) -> Tree:
    """Leaves (0, *shape) as `space` has them; without a space, (0,) of float64."""
    if space is None:
        return np.zeros(0, np.float64)
    if isinstance(space, spaces.Dict):
        return {key: empty_rows(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(empty_rows(part) for part in space.spaces)
    return np.zeros((0, *(space.shape or ())), space.dtype)
