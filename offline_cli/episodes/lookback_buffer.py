"""One kind of data of an episode (its observations, say) with a lookback buffer on the left.

The first `lookback` records belong to an earlier chunk of the episode and are read-only context: index 0 is the first record
after them, and `len` does not count them. The data is a list of records until `finalize` turns it into arrays, one per leaf,
(length, *shape).

A *position* counts from the first record kept, lookback buffer included, and may lie outside the data: then an int or list
raises, a slice leaves it out as Python's do, and with `fill` it is filled.

Arrays are copied before the first write when somebody else may hold them too: bytes, an EpisodeBatch, another chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.episode_spaces import hot_size, known_space_from_rllib, known_space_to_rllib, one_hot, space_tree
from offline_cli.episodes.stacking import concatenate, has_tuple, row_count, stack, tuples_for, unstack
from offline_cli.errors import BadEpisode, EpisodeIndexError
from offline_cli.spaces import Space
from offline_cli.trees import Tree, flatten, map_leaves, same_leaf

__all__ = ["GetterOptions", "Indices", "InfiniteLookbackBuffer", "check_item"]

Indices = int | list[int] | slice | None
"""What getters and setters take: one timestep, several, a range, or None for all but the lookback buffer."""

ASKED = "the indices asked for"
RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}  # dtype kinds: a value of higher rank loses precision in a lower one


class GetterOptions(TypedDict, total=False):
    """Options of getters: see `InfiniteLookbackBuffer.get`."""

    neg_index_as_lookback: bool
    fill: Any
    one_hot_discrete: bool


class InfiniteLookbackBuffer:
    """Records of an episode, the first `lookback` of them from before its timestep 0.

    Not numpy'ized (`finalized` False): `data` is a list of records. Numpy'ized: a tree of arrays, leaves (length, *shape).
    """

    __slots__ = ("_owned", "data", "finalized", "lookback", "space")

    data: Any
    lookback: int
    finalized: bool
    space: Space | None
    _owned: bool  # whether these arrays are ours alone, to be written in place

    def __init__(self, data: list[Any] | Tree | None = None, lookback: int = 0, space: Space | None = None) -> None:
        """A list (copied) makes a buffer that can grow cheaply, a tree of arrays a numpy'ized one."""
        self.finalized = data is not None and not isinstance(data, list)
        self.data = data if self.finalized else list(data or ())
        self._owned = not self.finalized
        self.space = space
        self.lookback = min(lookback, self.len_incl_lookback())

    @classmethod
    def over(cls, data: Any, lookback: int, space: Space | None, *, finalized: bool) -> InfiniteLookbackBuffer:
        """A buffer over data that others may hold too, not checked; its arrays are copied before the first write."""
        buffer = cls.__new__(cls)
        buffer.data, buffer.lookback, buffer.space, buffer.finalized = data, lookback, space, finalized
        buffer._owned = not finalized
        return buffer

    def __len__(self) -> int:
        """The number of records after the lookback buffer."""
        return max(self.len_incl_lookback() - self.lookback, 0)

    def len_incl_lookback(self) -> int:
        """The number of all records."""
        data = self.data
        return len(data) if type(data) is np.ndarray or not self.finalized else row_count(data)

    # ---- growing and sharing ----

    def append(self, item: Any) -> None:
        """Add one record at the end: amortised O(1) for lists, O(length) for arrays."""
        if self.finalized:
            self.replace(self.appended(item))
        else:
            self.data.append(item)

    def appended(self, item: Any) -> Tree:
        """The arrays of this numpy'ized buffer with one more record. Raises BadEpisode where it differs from the others."""
        return concatenate(self.data, map_leaves(lambda leaf: np.asarray(leaf)[None], item))

    def extend(self, items: Any) -> None:
        """Add records at the end: a list of them, or a tree of arrays."""
        if not self.finalized:
            self.data.extend(items if isinstance(items, list) else unstack(items))
        elif not isinstance(items, list) or items:
            self.replace(concatenate(self.data, stack(items, self.space) if isinstance(items, list) else items))

    def finalize(self, dtype: Any = None) -> None:
        """Turn the list into arrays, numbers in `dtype` if given; nothing happens to a numpy'ized buffer.

        Raises BadEpisode for an empty list, and where records differ in structure or shape.
        """
        if not self.finalized:
            stacked = stack(self.data, self.space)
            self.replace(stacked if dtype is None else map_leaves(lambda leaf: leaf.astype(dtype, copy=False), stacked))

    def replace(self, data: Tree) -> None:
        """Take over `data`, arrays that nobody else holds."""
        self.data, self.finalized, self._owned = data, True, True

    def part(self, start: int, stop: int, lookback: int, *, space: Space | None) -> InfiniteLookbackBuffer:
        """A new buffer of the records at positions `start` to `stop`; arrays are shared until one of the two is written."""
        if not self.finalized:
            return self.over(self.data[start:stop], lookback, space, finalized=False)
        return self.over(map_leaves(lambda leaf: leaf[start:stop], self.shared()), lookback, space, finalized=True)

    def shared(self) -> Tree:
        """The data, shared with another holder: from now on, writing here copies first."""
        self._owned = not self.finalized
        return self.data

    # ---- reading ----

    def get(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """One record for an int, a list or batch of records for a list or slice, all after the lookback buffer for None.

        Args:
            indices: From timestep 0; negative ones from the end.
            neg_index_as_lookback: Negative ones count back from timestep 0, into the lookback buffer, instead.
            fill: The value for missing records; a list or slice then gives exactly one record per index.
            one_hot_discrete: Discrete and MultiDiscrete parts as float32 one-hot vectors.

        Raises EpisodeIndexError for an int or list outside the data without `fill`, BadEpisode where `fill` or the space
        do not fit.
        """
        length = self.len_incl_lookback()
        if indices is None:
            return self._shown(self._rows(slice(self.lookback, None)), one_hot_discrete)
        if isinstance(indices, slice):
            wanted = self._range(indices, length, neg_index_as_lookback)
            if fill is None or not wanted or (0 <= wanted[0] < length and 0 <= wanted[-1] < length):
                return self._shown(self._rows(_within(wanted, length)), one_hot_discrete)
            return self._gather(np.array(wanted, np.int64), length, fill, one_hot_discrete)
        if isinstance(indices, (list, np.ndarray)):
            return self._gather(self._positions(indices, length, neg_index_as_lookback), length, fill, one_hot_discrete)
        return self._one(self._position(indices, length, neg_index_as_lookback), length, fill, one_hot_discrete)

    __getitem__ = get

    def _position(self, index: Any, length: int, back: bool) -> int:
        if not hasattr(index, "__index__"):
            raise EpisodeIndexError(f"index {index!r}", where=ASKED, fix="an int, a list of ints, a slice, or None for all")
        return int(index) + (self.lookback if index >= 0 or back else length)

    def _positions(self, indices: Any, length: int, back: bool) -> NDArray[np.int64]:
        index = np.asarray(indices)
        if index.size == 0:
            return np.zeros(0, np.int64)
        if index.ndim != 1 or index.dtype.kind not in "iu":
            raise EpisodeIndexError(f"indices {indices!r}", where=ASKED, fix="a list of ints")
        return (index + (self.lookback if back else np.where(index >= 0, self.lookback, length))).astype(np.int64)

    def _range(self, part: slice, length: int, back: bool) -> range:
        """The positions that `part` asks for, whether records are there or not; from timestep 0 to the end by default."""
        if part.step == 0:
            raise EpisodeIndexError("a slice with a step of 0", where=ASKED, fix="a step of 1 or more, or none")
        start = self.lookback if part.start is None else self._position(part.start, length, back)
        stop = length if part.stop is None else self._position(part.stop, length, back)
        return range(start, stop, 1 if part.step is None else part.step)

    def _rows(self, rows: Any) -> Any:
        if type(self.data) is np.ndarray:  # by far the most frequent case
            return self.data[rows]
        return map_leaves(lambda leaf: leaf[rows], self.data) if self.finalized else self.data[rows]

    def _shown(self, records: Any, one_hot_discrete: bool) -> Any:
        if not one_hot_discrete:
            return records
        if isinstance(records, list) and self.space is not None:
            return [one_hot(record, self.space) for record in records]
        return one_hot(records, self.space)

    def _one(self, at: int, length: int, fill: Any, one_hot_discrete: bool) -> Any:
        if 0 <= at < length:
            record = self._rows(at)
            return one_hot(record, self.space) if one_hot_discrete else record
        if fill is None:
            raise self._missing(at, length)
        return self._filled(fill, one_hot_discrete)

    def _filled(self, fill: Any, one_hot_discrete: bool) -> Any:
        """One record of `fill`: in the space's dtypes, else shaped like the others."""
        if self.space is not None:
            return map_leaves(lambda leaf: _filled_leaf(leaf, fill, one_hot_discrete), space_tree(self.space))
        if not self.finalized or (isinstance(self.data, np.ndarray) and self.data.ndim == 1):
            return fill
        # Rows that are single numbers take the fill value's own dtype, so that a fill of 0.5 survives among integers.
        return map_leaves(lambda leaf: _full(leaf.shape[1:], fill, leaf.dtype if leaf.ndim > 1 else None), self.data)

    def _gather(self, wanted: NDArray[np.int64], length: int, fill: Any, one_hot_discrete: bool) -> Any:
        there = (wanted >= 0) & (wanted < length)
        if fill is None and not there.all():
            raise self._missing(int(wanted[~there][0]), length)
        if not self.finalized:
            return [self._one(at, length, fill, one_hot_discrete) for at in wanted.tolist()]
        found = self._shown(map_leaves(lambda leaf: leaf[wanted[there]], self.data), one_hot_discrete)
        if there.all():
            return found
        try:
            return map_leaves(lambda leaf, item: _merged(leaf, there, item), found, self._filled(fill, one_hot_discrete))
        except ValueError as err:
            raise BadEpisode(str(err), where="fill", fix="give the episode the space of this data") from err

    def _missing(self, at: int, length: int) -> EpisodeIndexError:
        before = self.lookback
        what = f"no record at timestep {at - before}: there are {length - before} from 0 on, {before} before"
        return EpisodeIndexError(what, where=ASKED, fix="pass fill=... for a value that stands for missing records")

    # ---- writing ----

    def set(self, new_data: Any, *, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite records: one for an int, as many as indices for a list or slice, all after the lookback buffer for None.

        `new_data` is a list of records, or for a numpy'ized buffer also a tree of arrays. Nothing is written unless all of it
        can be. Where numpy'ized data has a space, the first new value must lie in it: checking all is what `validate` is for.

        Raises EpisodeIndexError for indices outside the data and for lengths that differ, BadEpisode for values that fit
        neither the data nor, once numpy'ized, its space.
        """
        length = self.len_incl_lookback()
        rows: Any
        if at_indices is None or isinstance(at_indices, slice):
            rows = _within(self._range(at_indices or slice(0, None), length, neg_index_as_lookback), length)
        elif isinstance(at_indices, (list, np.ndarray)):
            rows = self._positions(at_indices, length, neg_index_as_lookback)
            if (outside := rows[(rows < 0) | (rows >= length)]).size:
                raise self._missing(int(outside[0]), length)
        else:
            rows = self._position(at_indices, length, neg_index_as_lookback)
            if not 0 <= rows < length:
                raise self._missing(rows, length)
        if self.finalized:
            self._set_arrays(rows, new_data)
        elif isinstance(rows, int):
            self.data[rows] = new_data
        else:
            self._set_records(rows, new_data)

    def _set_arrays(self, rows: Any, new: Any) -> None:
        if isinstance(new, list) and new and isinstance(self.data, (dict, tuple)) and not isinstance(rows, int):
            new = stack(new, self.space)
        try:
            values = map_leaves(lambda leaf, value: _value_for(leaf, rows, value), self.data, new)
            if self.space is not None:
                map_leaves(lambda part, value: _check_first(part, rows, value), space_tree(self.space), values)
        except ValueError as err:
            raise BadEpisode(f"another structure: {err}", where="new_data", fix="give the structure that is there") from err
        if not self._owned:
            self.data, self._owned = map_leaves(np.array, self.data), True
        map_leaves(lambda leaf, value: leaf.__setitem__(rows, value), self.data, values)

    def _set_records(self, rows: Any, new: Any) -> None:
        at = range(len(self.data))[rows] if isinstance(rows, slice) else rows.tolist()
        if isinstance(new, dict) or not isinstance(new, (Sequence, np.ndarray)) or len(new) != len(at):
            count = len(new) if isinstance(new, (Sequence, np.ndarray)) else f"a {type(new).__name__}"
            fix = "give a list with one record per timestep overwritten"
            raise EpisodeIndexError(f"{count} for {len(at)} timesteps", where="new_data", fix=fix)
        for row, record in zip(at, new, strict=True):
            self.data[row] = record

    # ---- states ----

    def get_state(self) -> dict[str, Any]:
        """RLlib's layout: data (records and arrays not copied), lookback, finalized, space."""
        return {
            "data": self.shared() if self.finalized else list(self.data),
            "lookback": self.lookback,
            "finalized": self.finalized,
            "space": known_space_to_rllib(self.space),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> InfiniteLookbackBuffer:
        """The buffer of a state by RLlib 2.40 to 2.60 or by `get_state`, over the state's arrays.

        Lists become tuples where the space says Tuple and, in numpy'ized data, everywhere: there they can only be structure.
        Raises BadEpisode for a state of another form.
        """
        try:
            data, finalized, lookback = state["data"], bool(state["finalized"]), int(state["lookback"])
            space = known_space_from_rllib(state.get("space"), where="space")
        except (KeyError, TypeError, AttributeError, ValueError) as err:
            raise BadEpisode(f"no state of a buffer: {err!r}", where="state", fix="see schemas/ for the form") from err
        if finalized:
            return cls.over(_arrays(data), lookback, space, finalized=True)
        if not isinstance(data, (list, tuple, np.ndarray)):
            raise BadEpisode(f"records in a {type(data).__name__}", where="data", fix="a list of records, or finalized: true")
        records = tuples_for(data, space) if has_tuple(space) or isinstance(data, list) else list(data)
        return cls.over(records, lookback, space, finalized=False)

    def __eq__(self, other: object) -> bool:
        """Whether both hold equal records, in the same state, with the same lookback and space."""
        if not isinstance(other, InfiniteLookbackBuffer):
            return NotImplemented
        mine = (self.lookback, self.finalized, self.space)
        return mine == (other.lookback, other.finalized, other.space) and _same(self.data, other.data)

    __hash__ = None  # type: ignore[assignment]  # its data changes

    def __repr__(self) -> str:
        kind = "arrays" if self.finalized else "list"
        return f"{type(self).__name__}({len(self)} records in {kind}, {self.lookback} before them)"


def check_item(item: Tree, space: Space | None, *, where: str) -> None:
    """Raise BadEpisode unless one record lies in `space` (None: anything does)."""
    if space is None:
        return
    try:
        map_leaves(lambda leaf, value: _check_in(leaf, value, where), space_tree(space), item)
    except ValueError as err:
        raise BadEpisode(f"{err}, wanted {space}", where=where, fix="give data of this space, or set the space first") from err


def _within(wanted: range, length: int) -> slice:
    """The slice of the data that holds those positions of `wanted` that exist, by the rules of Python's own slices."""
    if wanted.step > 0:
        return slice(max(wanted.start, 0), max(wanted.stop, 0), wanted.step)
    start = min(wanted.start, length - 1)
    if start < 0:
        return slice(0, 0)
    return slice(start, wanted.stop if wanted.stop >= 0 else None, wanted.step)


def _filled_leaf(space: Space, fill: Any, one_hot_discrete: bool) -> NDArray[Any]:
    """Of a one-hot vector every slot is filled, so that a fill of 0 gives zero-hot vectors."""
    if one_hot_discrete and isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return _full((hot_size(space),), fill, np.float32)
    return _full(space.shape or (), fill, space.dtype)


def _full(shape: tuple[int, ...], fill: Any, dtype: Any) -> NDArray[Any]:
    try:
        return np.full(shape, fill, dtype)
    except (TypeError, ValueError, OverflowError) as err:
        where, fix = f"data of {dtype}{shape}", "a number that this type can hold"
        raise BadEpisode(f"cannot fill with {fill!r}: {err}", where=where, fix=fix) from err


def _merged(leaf: NDArray[Any], there: NDArray[np.bool_], item: Any) -> NDArray[Any]:
    """(K, *shape): `leaf` in the rows where `there` (K,) is true, in order, and `item` in the others."""
    filled = np.asarray(item)
    if leaf.shape[1:] != filled.shape:
        raise ValueError(f"data of shape {leaf.shape[1:]}, filling of shape {filled.shape}")
    merged = np.empty((len(there), *filled.shape), np.result_type(leaf, filled) if len(leaf) else filled.dtype)
    merged[there], merged[~there] = leaf, filled
    return merged


def _value_for(leaf: NDArray[Any], rows: Any, new: Any) -> NDArray[Any]:
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


def _check_first(space: Space, rows: Any, value: NDArray[Any]) -> None:
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


def _arrays(data: Any) -> Tree:
    """Leaves (length, *shape) of numpy'ized data, lists as tuples. Raises BadEpisode."""
    if type(data) is np.ndarray and data.ndim:
        return data
    tree, sizes = _lists_to_tuples(data), {}
    for path, leaf in flatten(tree):
        if not isinstance(leaf, np.ndarray) or not leaf.ndim:
            raise BadEpisode(f"{path or 'data'} is a {type(leaf).__name__}, not an array", where="data", fix="finalized: false")
        sizes[path] = len(leaf)
    if not sizes or len(set(sizes.values())) > 1:
        raise BadEpisode(f"leaves of lengths {sizes}", where="data", fix="write the file again from its source")
    return tree


def _lists_to_tuples(tree: Any) -> Tree:
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise BadEpisode(f"keys that are not text: {list(tree)[:3]}", where="data", fix="name the parts with text")
        return {key: _lists_to_tuples(part) for key, part in tree.items()}
    return tuple(map(_lists_to_tuples, tree)) if isinstance(tree, (list, tuple)) else tree


def _same(left: Any, right: Any) -> bool:
    """Whether two lists of records, or two trees of arrays, hold equal values in one structure."""
    if isinstance(left, dict):
        same = isinstance(right, dict) and left.keys() == right.keys()
        return same and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(_same, left, right))
    return same_leaf(left, right)
