"""Lists of single steps to one array per leaf and back; steps that differ in structure or shape raise.

Where numbers differ in dtype (a `reset` that gives float32 and a `step` that gives float64) the array takes one that holds them
all, as reading packed steps does; RLlib casts every step to the dtype of the first, and loses what does not fit. Integers that
would be rounded on the way (beyond 2^53, among floats) raise, and so do numbers among text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space, tree_from_lists
from offline_cli.trees import Tree, leaves, map_leaves, same_leaf

__all__ = ["check_widening", "concatenate", "has_tuple", "row_count", "same_records", "stack", "tuples_for", "unstack"]

STORABLE = "biufcSU"  # dtype kinds that episodes hold: numbers, bools and text
EXACT_INT = 1 << 53  # float64 holds every integer up to here


def stack(items: Sequence[Any], space: Space | None = None) -> Tree:
    """Leaves (len(items), *shape) of the steps in `items`; lists become tuples where `space` says so.

    Raises BadEpisode, naming leaf and step, where steps differ or hold something other than numbers and text.
    """
    if not len(items):
        raise BadEpisode("no steps to make arrays of", where="an empty list", fix="add_env_reset first")
    return _stack(tuples_for(items, space), "")


def tuples_for(items: Any, space: Space | None) -> Any:
    """`items` with lists turned into tuples where `space` has a Tuple: msgpack and JSON know no tuples."""
    if not has_tuple(space):
        return items
    try:
        return [tree_from_lists(item, space) for item in items]
    except ValueError as err:
        raise BadEpisode(f"a step does not fit {space}: {err}", where="a Tuple", fix="give the space of this data") from err


def has_tuple(space: Space | None) -> bool:
    """Whether `space` is or holds a Tuple."""
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
    """The rows of all `trees`, in order; dtypes are promoted as numpy does. Raises BadEpisode where structures differ."""
    try:
        return map_leaves(lambda *parts: np.concatenate(parts), *trees)
    except ValueError as err:
        what = f"steps that differ from those before: {err}"
        raise BadEpisode(what, where="steps added", fix="give every step one structure and shape") from err


def row_count(tree: Tree) -> int:
    """The length of the first leaf."""
    if isinstance(tree, np.ndarray):
        return len(tree)
    return len(leaves(tree)[0])


def same_records(left: Any, right: Any) -> bool:
    """Whether two lists of records, or two trees of arrays, hold equal values in one structure."""
    if isinstance(left, dict):
        same = isinstance(right, dict) and left.keys() == right.keys()
        return same and all(same_records(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same_records, left, right))
    return same_leaf(left, right)


def _stack(items: Sequence[Any], path: str) -> Tree:
    first = items[0]
    if isinstance(first, dict):
        _same_structure(items, dict, len(first), path)
        try:
            return {key: _stack([item[key] for item in items], f"{path}.{key}" if path else str(key)) for key in first}
        except KeyError as err:
            raise _differ(f"a step lacks the key {err}", path) from None
    if isinstance(first, tuple):
        _same_structure(items, tuple, len(first), path)
        return tuple(_stack([item[i] for item in items], f"{path}.{i}" if path else str(i)) for i in range(len(first)))
    if isinstance(first, np.ndarray) and first.ndim:
        return _stack_arrays(items, path)
    return _stack_scalars(items, path)


def _same_structure(items: Sequence[Any], kind: type[dict[Any, Any]] | type[tuple[Any, ...]], size: int, path: str) -> None:
    for step, item in enumerate(items):
        if not isinstance(item, kind) or len(item) != size:
            raise _differ(f"step {step} is {_brief(item)}, the first {_brief(items[0])}", path)


def _stack_arrays(items: Sequence[Any], path: str) -> NDArray[Any]:
    first: NDArray[Any] = items[0]
    try:
        arrays = [np.asarray(item) for item in items]
    except ValueError as err:  # a list of lists of several lengths
        raise _differ(f"shapes differ: {err}", path) from err
    shapes = [array.shape for array in arrays]
    if shapes.count(first.shape) != len(shapes):  # counting runs in C: an episode of a million steps passes here too
        step = next(i for i, shape in enumerate(shapes) if shape != first.shape)
        raise _differ(f"step {step} has shape {shapes[step]}, the first {first.shape}", path)
    dtypes = [array.dtype for array in arrays]
    if dtypes.count(first.dtype) != len(dtypes):
        check_widening(set(dtypes), arrays, lambda what: _differ(what, path))
    joined = np.concatenate(arrays)
    return _storable(joined.reshape(len(arrays), *first.shape), path)


def _stack_scalars(items: Sequence[Any], path: str) -> NDArray[Any]:
    try:
        stacked = np.array(items)
    except (ValueError, OverflowError) as err:
        raise _differ(f"shapes differ: {err}", path) from err
    if len(set(map(type, items))) > 1:
        arrays = [np.asarray(item) for item in items]
        check_widening({array.dtype for array in arrays}, arrays, lambda what: _differ(what, path))
    return _storable(stacked, path)


def check_widening(dtypes: Set[np.dtype[Any]], arrays: Sequence[NDArray[Any]], bad: Callable[[str], BadEpisode]) -> None:
    """Raise `bad(what)` unless arrays of these dtypes can share one exactly: text is no number, 2^53 + 1 no float."""
    kinds = {"number" if dtype.kind in "biufc" else dtype.kind for dtype in dtypes}
    if len(kinds) > 1:
        raise bad(f"has steps of dtype {' and '.join(sorted(map(str, dtypes)))}")
    if kinds == {"number"} and np.result_type(*dtypes).kind in "fc":
        for array in arrays:
            if array.dtype.kind in "iu" and array.dtype.itemsize == 8 and array.size and _beyond_floats(array):
                raise bad(f"has integers beyond 2^53 at one step and {np.result_type(*dtypes)} at another")


def _beyond_floats(array: NDArray[Any]) -> bool:
    return int(array.max()) > EXACT_INT or int(array.min()) < -EXACT_INT


def _storable(array: NDArray[Any], path: str) -> NDArray[Any]:
    if array.dtype.kind not in STORABLE:
        raise _differ(f"data of type {array.dtype}", path, fix="store numbers, bools or text")
    return array


def _differ(what: str, path: str, fix: str = "give every step one structure and shape") -> BadEpisode:
    return BadEpisode(what, where=f"leaf {path}" if path else "its only leaf", fix=fix)


def _brief(item: Any) -> str:
    if isinstance(item, dict):
        return f"a dict of {sorted(map(str, item))}"
    return f"a tuple of {len(item)}" if isinstance(item, tuple) else f"a {type(item).__name__}"
