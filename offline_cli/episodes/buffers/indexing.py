"""Indices of getters and setters as positions in a buffer, fill values and one-hot vectors, and checked writes.

* `position`, `positions`, `position_range`: a position counts from the first record kept, lookback buffer included, and may lie
  outside the data: callers decide whether that is an error, is left out (ranges without `fill`, as in Python) or is filled. An
  index of 0 or more counts from timestep 0, the first after the lookback buffer; a negative one from the end, or with
  `neg_index_as_lookback` back from timestep 0.
* `filled_item`, `one_hot`: the record where an episode has none, and one-hot vectors, leaf by leaf of the space; a value that
  the space cannot hold raises. With `one_hot_discrete`, Discrete(n) is a float32 vector (n,) and MultiDiscrete one vector (sum
  of nvec,); a filled record is then the fill value in every slot, so that a fill of 0 gives zero-hot vectors.
* `overwrite`, `check_item`: new values into rows of arrays, all leaves or none; values that change lengths, shapes or lose
  fractions raise. Where the data has a space, the first new value must lie in it, leaf by leaf. One value is a sample: checking
  all of them is what `validate` is for, and setters run inside training loops.
* `records_from_state`, `arrays_from_state`: the data of a lookback buffer as states hold it, checked; leaves that are no
  arrays, or of several lengths, raise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.buffers.stacking import has_tuple, tuples_for
from offline_cli.episodes.episode_spaces import hot_size, one_hot_leaf, space_tree
from offline_cli.errors import BadEpisode, EpisodeIndexError
from offline_cli.spaces import Space
from offline_cli.trees import Tree, flatten, map_leaves, paths, unflatten_like

__all__ = [
    "Indices",
    "Rows",
    "arrays_from_state",
    "check_item",
    "clip",
    "filled_item",
    "filled_like",
    "inside",
    "one_hot",
    "overwrite",
    "position",
    "position_range",
    "positions",
    "records_from_state",
    "with_filled",
]

Indices = int | list[int] | slice | None
"""What getters and setters take: one timestep, several, a range, or None for all but the lookback buffer."""

ASKED, INDICES = "the indices asked for", "an int, a list of ints, a slice, or None for all"
Rows = int | slice | NDArray[np.int64]
RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}  # dtype kinds: a value of higher rank loses precision in a lower one


def position(index: Any, length: int, lookback: int, neg_index_as_lookback: bool) -> int:
    """The position of one index, an integer; outside `length` where there is no record. Raises EpisodeIndexError."""
    if not hasattr(index, "__index__"):
        raise EpisodeIndexError(f"index {index!r}", where=ASKED, fix=INDICES)
    return int(index) + (lookback if index >= 0 or neg_index_as_lookback else length)


def positions(indices: Any, length: int, lookback: int, neg_index_as_lookback: bool) -> NDArray[np.int64]:
    """(K,) the positions of a list of K indices. Raises EpisodeIndexError for anything but integers."""
    index = np.asarray(indices)
    if index.size == 0:
        return np.zeros(0, np.int64)
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise EpisodeIndexError(f"indices {indices!r}", where=ASKED, fix=INDICES)
    offset = lookback if neg_index_as_lookback else np.where(index >= 0, lookback, length)
    return (index + offset).astype(np.int64)


def position_range(part: slice, length: int, lookback: int, neg_index_as_lookback: bool) -> range:
    """The positions that `part` asks for, whether records are there or not; from timestep 0 to the end by default.

    Raises EpisodeIndexError for a step of 0.
    """
    below = lookback if neg_index_as_lookback else length
    start = lookback if part.start is None else part.start + (lookback if part.start >= 0 else below)
    stop = length if part.stop is None else part.stop + (lookback if part.stop >= 0 else below)
    step = 1 if part.step is None else part.step
    if step == 0:
        raise EpisodeIndexError("a slice with a step of 0", where=ASKED, fix="a step of 1 or more, or none")
    return range(start, stop, step)


def inside(wanted: range, length: int) -> bool:
    """Whether every wanted position holds a record."""
    return not wanted or (0 <= wanted[0] < length and 0 <= wanted[-1] < length)


def clip(wanted: range, length: int) -> slice:
    """The slice of the data that holds those positions of `wanted` that exist, by the rules of Python's own slices."""
    if wanted.step > 0:
        return slice(max(wanted.start, 0), max(wanted.stop, 0), wanted.step)
    start = min(wanted.start, length - 1)
    if start < 0:
        return slice(0, 0)
    return slice(start, wanted.stop if wanted.stop >= 0 else None, wanted.step)


def filled_item(space: Space, fill: Any, *, one_hot_discrete: bool) -> Tree:
    """One record of `space` with `fill` in every element, in its dtypes. Raises BadEpisode where `fill` does not fit."""
    return map_leaves(lambda leaf: _filled_leaf(leaf, fill, one_hot_discrete), space_tree(space))


def filled_like(data: Tree, fill: Any) -> Tree:
    """One record shaped like the rows of `data`, for data without a space.

    Rows that are single numbers take the fill value's own dtype, so that a fill of 0.5 survives among integers.
    """
    return map_leaves(lambda leaf: _full(leaf.shape[1:], fill, leaf.dtype if leaf.ndim > 1 else None), data)


def with_filled(found: Tree, there: NDArray[np.bool_], item: Tree) -> Tree:
    """Leaves (K, *shape): `found` in the rows where `there` (K,) is true, in order, and `item` in the others.

    Raises BadEpisode where the shapes of the two differ.
    """

    def merge(leaf: NDArray[Any], filled: NDArray[Any]) -> NDArray[Any]:
        if leaf.shape[1:] != filled.shape:
            raise ValueError(f"data of shape {leaf.shape[1:]}, filling of shape {filled.shape}")
        merged = np.empty((len(there), *filled.shape), np.result_type(leaf, filled) if len(leaf) else filled.dtype)
        merged[there], merged[~there] = leaf, filled
        return merged

    try:
        return map_leaves(merge, found, item)
    except ValueError as err:
        raise BadEpisode(str(err), where="fill", fix="give the episode the space of this data") from err


def one_hot(tree: Tree, space: Space | None) -> Tree:
    """`tree` with Discrete and MultiDiscrete parts as float32 one-hot vectors; leading axes (steps) are kept.

    Raises BadEpisode without a space, or for a value outside it.
    """
    if space is None:
        raise BadEpisode("one_hot_discrete needs a space", where="data without one", fix="give the episode its spaces")
    try:
        if not isinstance(space, (spaces.Dict, spaces.Tuple)):
            return map_leaves(lambda value: _one_hot_leaf(value, space, ""), tree)
        parts = space_tree(space)
        return map_leaves(_one_hot_leaf, tree, parts, unflatten_like(parts, paths(parts)))
    except ValueError as err:
        raise BadEpisode(f"data and space differ: {err}", where=str(space), fix="give the space of this data") from err


def _filled_leaf(space: Space, fill: Any, one_hot_discrete: bool) -> NDArray[Any]:
    if one_hot_discrete and isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return _full((hot_size(space),), fill, np.float32)
    return _full(space.shape or (), fill, space.dtype)


def _full(shape: tuple[int, ...], fill: Any, dtype: Any) -> NDArray[Any]:
    try:
        return np.full(shape, fill, dtype)
    except (TypeError, ValueError, OverflowError) as err:
        where, fix = f"data of {dtype}{shape}", "a number that this type can hold"
        raise BadEpisode(f"cannot fill with {fill!r}: {err}", where=where, fix=fix) from err


def _one_hot_leaf(value: Any, space: Space, path: str) -> Any:
    if not isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return value
    return one_hot_leaf(value, space, where=f"leaf {path}" if path else "a discrete part")


def overwrite(data: Tree, rows: Rows, new: Tree, space: Space | None) -> None:
    """Write `new` into `rows` of `data` in place: one record for an int, a batch (len(rows), ...) otherwise.

    Raises EpisodeIndexError where lengths differ, BadEpisode where structure, shape, type or space do.
    """
    checked = _checked(data, rows, new, space)

    map_leaves(lambda leaf, value: leaf.__setitem__(rows, value), data, checked)


def check_item(item: Tree, space: Space | None, *, where: str) -> None:
    """Raise BadEpisode unless one record lies in `space` (None: anything does)."""
    if space is None:
        return
    try:
        map_leaves(lambda leaf, value: _check_in(leaf, value, where), space_tree(space), item)
    except ValueError as err:
        raise BadEpisode(f"{err}, wanted {space}", where=where, fix="give data of this space, or set the space first") from err


def _checked(data: Tree, rows: Rows, new: Tree, space: Space | None) -> Tree:
    try:
        values = map_leaves(lambda leaf, value: _value_for(leaf, rows, value), data, new)
        if space is not None:
            map_leaves(lambda part, value: _check_sample(part, rows, value), space_tree(space), values)
    except ValueError as err:
        raise BadEpisode(f"another structure: {err}", where="new_data", fix="give the structure that is there") from err
    return values


def _value_for(leaf: NDArray[Any], rows: Rows, new: Any) -> NDArray[Any]:
    value, target = np.asarray(new), np.shape(leaf[rows])
    if not isinstance(rows, int) and (not value.ndim or len(value) != target[0]):
        what = f"{len(value) if value.ndim else 'a single value'} for {target[0]} timesteps"
        raise EpisodeIndexError(what, where="new_data", fix="give one value per timestep that is overwritten")
    if RANK.get(value.dtype.kind, 4) > RANK.get(leaf.dtype.kind, 4):
        raise BadEpisode(f"{value.dtype} values into {leaf.dtype} data", where="new_data", fix="round them first")
    if not isinstance(new, (np.ndarray, np.generic)):  # Python's numbers have no dtype of their own
        value = value.astype(leaf.dtype)
    try:
        return np.broadcast_to(value, target)
    except ValueError:
        what = f"new data of shape {value.shape} into data of shape {target}"
        raise BadEpisode(what, where="new_data", fix="give the shape that is there") from None


def _check_sample(space: Space, rows: Rows, value: NDArray[Any]) -> None:
    if isinstance(rows, int):
        _check_in(space, value[()], "new_data")  # [()]: a scalar, not an array of rank 0, so that float64 rewards pass
    elif len(value):
        _check_in(space, value[0], "new_data")


def _check_in(space: Space, value: Any, where: str) -> None:
    if isinstance(space, spaces.Box) and not isinstance(value, np.ndarray):  # gymnasium would warn each time
        try:
            value = np.asarray(value, space.dtype)
        except (TypeError, ValueError):
            raise BadEpisode(f"{value!r} is not in {space}", where=where, fix="give numbers") from None
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        value = np.asarray(value)
    if not space.contains(value):
        kind = f"{value.dtype}{value.shape} " if isinstance(value, (np.ndarray, np.generic)) else ""
        raise BadEpisode(f"{kind}value outside {space}", where=where, fix="give data of this space, or set the space first")


def records_from_state(data: Any, space: Space | None) -> list[Any]:
    """The list of single steps; lists in them become tuples where `space` says so. Raises BadEpisode for no list."""
    if not isinstance(data, (list, tuple, np.ndarray)):
        raise BadEpisode(f"records in a {type(data).__name__}", where="data", fix="a list of records, or finalized: true")
    if has_tuple(space):
        return list(tuples_for(data, space))
    return data if isinstance(data, list) else list(data)


def arrays_from_state(data: Any) -> Tree:
    """Leaves (length, *shape) of numpy'ized data, lists as tuples: here they can only be structure. Raises BadEpisode."""
    tree = _lists_to_tuples(data)
    sizes = {}
    for path, leaf in flatten(tree):
        if not isinstance(leaf, np.ndarray) or not leaf.ndim:
            raise BadEpisode(f"{path or 'data'} is a {type(leaf).__name__}, not an array", where="data", fix="finalized: false")
        sizes[path] = len(leaf)
    if not sizes or len(set(sizes.values())) > 1:
        raise BadEpisode(f"leaves of lengths {sizes}", where="data", fix="write the file again from its source")
    return tree


def _lists_to_tuples(tree: Any) -> Tree:
    if isinstance(tree, dict):
        return {key: _lists_to_tuples(part) for key, part in tree.items()}
    return tuple(map(_lists_to_tuples, tree)) if isinstance(tree, (list, tuple)) else tree
