"""Stack lists of single steps into one array per leaf, and unstack them; steps of different structure or shape raise.

If dtypes differ (`reset` returns float32, `step` float64), the array gets a dtype that holds all values; RLlib casts every step
to the first step's dtype and loses precision. Integers that would be rounded (beyond 2^53, among floats) raise, as do numbers
among text.

A tuple is structure. A list of only numbers is a vector; any other list is structure: msgpack has no tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space, tree_from_lists
from offline_cli.tally import Tally
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["MAX_DEPTH", "concatenate", "has_tuple", "row_count", "stack", "tuples_for", "unstack"]

MAX_DEPTH = 32  # of nested values
STORABLE = "biufcSU"  # dtype kinds that episodes can hold: numbers, bools and text
EXACT_INT = 1 << 53  # float64 holds every integer up to this one
NUMBERS = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}
ALIKE = "give every step one structure and shape"


def stack(items: Sequence[Any], space: Space | None = None, *, tally: Tally | None = None) -> Tree:
    """Stack the steps in `items` into leaves (len(items), *shape); lists become tuples where `space` is a Tuple.

    `tally` counts leaves whose dtypes had to be widened. Raises BadEpisode, naming leaf and step, if steps differ or hold
    anything but numbers and text.
    """
    if not len(items):
        raise BadEpisode("no steps to stack", where="an empty list", fix="add_env_reset first")
    return _stack(tuples_for(items, space), "", 0, tally)


def tuples_for(items: Any, space: Space | None) -> Any:
    """`items` with lists converted to tuples where `space` has a Tuple: msgpack and JSON have no tuples."""
    if not has_tuple(space):
        return items
    try:
        return [tree_from_lists(item, space) for item in items]
    except ValueError as err:
        raise BadEpisode(f"a step does not fit {space}: {err}", where="a Tuple", fix="give the space of this data") from err


def has_tuple(space: Space | None) -> bool:
    """Whether `space` is or contains a Tuple."""
    if isinstance(space, spaces.Dict):
        return any(has_tuple(part) for part in space.spaces.values())
    return isinstance(space, spaces.Tuple)


def unstack(tree: Tree) -> list[Any]:
    """The single steps of batched leaves: views for arrays, numpy scalars for leaves of rank 1."""
    if isinstance(tree, dict):
        rows = zip(*(unstack(part) for part in tree.values()), strict=True)
        return [dict(zip(tree, row, strict=True)) for row in rows]
    if isinstance(tree, tuple):
        return list(zip(*(unstack(part) for part in tree), strict=True))
    return list(tree)


def concatenate(*trees: Tree) -> Tree:
    """Concatenate the rows of `trees`, with numpy's dtype promotion. Raises BadEpisode if structures differ."""
    try:
        return map_leaves(lambda *parts: np.concatenate(parts), *trees)
    except ValueError as err:
        raise BadEpisode(f"the added steps differ from the earlier ones: {err}", where="steps added", fix=ALIKE) from err


def row_count(tree: Tree) -> int:
    """The length of the first leaf."""
    return len(tree) if isinstance(tree, np.ndarray) else len(leaves(tree)[0])


def _stack(items: Sequence[Any], path: str, depth: int, tally: Tally | None) -> Tree:
    first = items[0]
    if depth > MAX_DEPTH:
        raise _differ(f"values nested deeper than {MAX_DEPTH}", path)
    if isinstance(first, dict):
        return {key: _stack(column, _joined(path, key), depth + 1, tally) for key, column in _by_key(items, path).items()}
    if isinstance(first, tuple) or (isinstance(first, list) and not _is_numbers(first, depth)):
        for step, item in enumerate(items):
            if not isinstance(item, (list, tuple)) or len(item) != len(first):
                raise _differ(f"step {step} is {_brief(item)}, the first step is {_brief(first)}", path)
        columns = enumerate(zip(*items, strict=True))
        return tuple(_stack(column, _joined(path, i), depth + 1, tally) for i, column in columns)
    return _leaf(items, path, tally)


def _by_key(items: Sequence[Any], path: str) -> dict[str, list[Any]]:
    first = items[0]
    for step, item in enumerate(items):
        if not isinstance(item, dict) or item.keys() != first.keys():
            raise _differ(f"step {step} is {_brief(item)}, the first step is {_brief(first)}", path)
    if not all(isinstance(key, str) for key in first):
        raise _differ(f"keys are not strings: {list(first)}", path)
    return {key: [item[key] for item in items] for key in first}


def _leaf(items: Sequence[Any], path: str, tally: Tally | None) -> NDArray[Any]:
    kinds = set(map(type, items))
    kind = type(items[0])
    try:
        if len(kinds) == 1 and kind in NUMBERS:
            return np.array(items, NUMBERS[kind])
        if len(kinds) == 1 and issubclass(kind, np.generic):
            return _storable(np.array(items), path)
        if kinds == {int, float}:  # rewards of 0 and 0.5, say
            if any(abs(item) > EXACT_INT for item in items if type(item) is int):
                raise _differ("integers beyond 2^53 among floats", path)
            return np.array(items, np.float64)
        arrays = items if kinds == {np.ndarray} else [np.asarray(item) for item in items]
    except (ValueError, OverflowError) as err:
        raise _differ(f"cannot make an array of the values: {err}", path) from err
    shapes, dtypes = [array.shape for array in arrays], [array.dtype for array in arrays]
    if shapes.count(shapes[0]) != len(shapes):  # `count` runs in C: a million steps must be fast
        step = next(i for i, shape in enumerate(shapes) if shape != shapes[0])
        raise _differ(f"step {step} has shape {shapes[step]}, the first step {shapes[0]}", path)
    if dtypes.count(dtypes[0]) != len(dtypes):
        _check_widening(arrays, path)
        if tally is not None:
            tally.assume("mixed-dtypes-widened")
    return _storable(np.concatenate(arrays).reshape(len(arrays), *shapes[0]) if shapes[0] else np.array(arrays), path)


def _storable(array: NDArray[Any], path: str) -> NDArray[Any]:
    if array.dtype.kind not in STORABLE:
        raise _differ(f"data of type {array.dtype}", path, fix="store numbers, bools or text")
    return array


def _check_widening(arrays: Sequence[NDArray[Any]], path: str) -> None:
    """Raise BadEpisode unless one dtype holds all values exactly: numbers and text do not mix, 2^53 + 1 is no float64."""
    dtypes = {array.dtype for array in arrays}
    if len({"number" if dtype.kind in "biufc" else dtype.kind for dtype in dtypes}) > 1:
        raise _differ(f"steps of dtype {' and '.join(sorted(map(str, dtypes)))}", path)
    if next(iter(dtypes)).kind not in "biufc" or np.result_type(*dtypes).kind not in "fc":
        return
    for array in arrays:
        is_long = array.dtype.kind in "iu" and array.dtype.itemsize == 8 and array.size
        if is_long and not (int(array.min()) >= -EXACT_INT and int(array.max()) <= EXACT_INT):
            raise _differ(f"integers beyond 2^53 at one step and {np.result_type(*dtypes)} at another", path)


def _is_numbers(value: Any, depth: int) -> bool:
    """Whether `value` is a number or a (nested) list of numbers, rather than a tuple of parts."""
    if isinstance(value, list):
        return depth <= MAX_DEPTH and all(_is_numbers(part, depth + 1) for part in value)
    return type(value) in NUMBERS


def _joined(path: str, part: Any) -> str:
    return f"{path}.{part}" if path else str(part)


def _differ(what: str, path: str, fix: str = ALIKE) -> BadEpisode:
    return BadEpisode(what, where=f"leaf {path}" if path else "its only leaf", fix=fix)


def _brief(item: Any) -> str:
    if isinstance(item, dict):
        return f"a dict of {sorted(map(str, item))}"
    return f"a {type(item).__name__} of {len(item)}" if isinstance(item, (list, tuple)) else f"a {type(item).__name__}"
