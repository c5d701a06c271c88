"""InfiniteLookbackBuffer: one kind of episode data (such as observations), preceded by a lookback buffer.

The first `lookback` records belong to an earlier chunk of the episode: index 0 is the first record after them, and `len` does
not count them.

A *position* counts from the first stored record, lookback buffer included. For a position outside the data, an int or list
raises, a slice omits it as Python slices do, and `fill` fills it.

Arrays that may be shared (with bytes, an EpisodeBatch, another chunk) are copied before the first write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index as whole_number
from typing import Any, Required, TypedDict

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.episode_spaces import hot_size, known_space_from_rllib, known_space_to_rllib, one_hot, space_tree
from offline_cli.episodes.stacking import MAX_DEPTH, concatenate, has_tuple, row_count, stack, tuples_for, unstack
from offline_cli.errors import BadEpisode, EpisodeIndexError
from offline_cli.spaces import Space
from offline_cli.trees import Tree, flatten, leaves, map_leaves, rows_of

__all__ = ["GetterOptions", "Indices", "InfiniteLookbackBuffer", "SetterOptions", "check_item"]

Indices = int | list[int] | slice | None
"""Indices of getters and setters: a timestep, several, a range, or None for everything but the lookback buffer."""

ASKED = "the requested indices"
RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}  # dtype kinds, ordered: converting to a lower rank loses precision


class GetterOptions(TypedDict, total=False):
    """Options of getters: see `InfiniteLookbackBuffer.get`."""

    neg_index_as_lookback: bool
    fill: Any
    one_hot_discrete: bool


class SetterOptions(TypedDict, total=False):
    """Options of setters: see `InfiniteLookbackBuffer.set`."""

    new_data: Required[Any]
    at_indices: Indices
    neg_index_as_lookback: bool


class InfiniteLookbackBuffer:
    """Records of an episode; the first `lookback` of them precede its timestep 0.

    Not numpy'ized (`finalized` False): `data` is a list of records. Numpy'ized: a tree of arrays, leaves (length, *shape).
    """

    def __init__(self, data: list[Any] | Tree | None = None, lookback: int = 0, space: Space | None = None) -> None:
        """`data`: a list (copied) for a buffer that grows cheaply, or a tree of arrays for a numpy'ized buffer."""
        self.finalized = data is not None and not isinstance(data, list)
        self.data: Any = data if self.finalized else list(data or ())
        self._owned = not self.finalized  # whether arrays are unshared and may be written in place
        self.space = space
        self.lookback = min(lookback, self.len_incl_lookback())

    @classmethod
    def over(cls, data: Any, lookback: int, space: Space | None, *, finalized: bool) -> InfiniteLookbackBuffer:
        """A buffer over possibly shared data, not validated; arrays are copied before the first write."""
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
        """Append a record: amortised O(1) for lists, O(length) for arrays."""
        if self.finalized:
            self.replace(self.appended(item))
        else:
            self.data.append(item)

    def appended(self, item: Any) -> Any:
        """The data with one more record; the buffer is unchanged. Raises BadEpisode if the structure differs."""
        if not self.finalized:
            return [*self.data, item]
        return concatenate(self.data, map_leaves(lambda leaf: np.asarray(leaf)[None], item))

    def joined(self, other: InfiniteLookbackBuffer, *, drop: int) -> Any:
        """This data without its last `drop` records, followed by `other` without its lookback buffer; neither is modified.

        Raises BadEpisode if their structures differ.
        """
        other.shared()
        kept, theirs = rows_of(self.data, slice(0, self.len_incl_lookback() - drop)) if self.finalized else None, other.get()
        if not self.finalized:
            return [*self.data[: len(self.data) - drop], *(unstack(theirs) if other.finalized else theirs)]
        if not other.finalized and not theirs:
            return kept
        return concatenate(kept, theirs if other.finalized else stack(theirs, self.space))

    def finalize(self, dtype: Any = None) -> None:
        """Convert the list to arrays, of `dtype` if given; a numpy'ized buffer is left unchanged.

        Raises BadEpisode for an empty list, and for records of different structure or shape.
        """
        if not self.finalized:
            stacked = stack(self.data, self.space)
            self.replace(stacked if dtype is None else map_leaves(lambda leaf: leaf.astype(dtype, copy=False), stacked))
            self.finalized = True

    def replace(self, data: Any) -> None:
        """Take ownership of unshared `data`: records, or arrays if numpy'ized."""
        self.data, self._owned = data, True

    def part(self, start: int, stop: int, lookback: int, *, space: Space | None) -> InfiniteLookbackBuffer:
        """A new buffer of the records at positions `start` to `stop`; arrays are shared until one side is written."""
        data = self.shared()
        rows = slice(start, stop)
        return self.over(rows_of(data, rows) if self.finalized else data[rows], lookback, space, finalized=self.finalized)

    def shared(self) -> Any:
        """Share the data: from now on, arrays are copied before they are written here."""
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
        """Return one record for an int, several (list or batch) for a list or slice, all but the lookback buffer for None.

        Args:
            indices: Count from timestep 0; negative indices count from the end.
            neg_index_as_lookback: Negative indices count back from timestep 0, into the lookback buffer, instead.
            fill: The value for missing records; a list or slice then returns exactly one record per index.
            one_hot_discrete: Return Discrete and MultiDiscrete parts as float32 one-hot vectors.

        Raises EpisodeIndexError for an int or list outside the data without `fill`, BadEpisode if `fill` or the space
        does not fit the data.
        """
        length = self.len_incl_lookback()
        wanted = self._positions(indices, length, neg_index_as_lookback)
        if isinstance(wanted, int):
            return self._one(wanted, length, fill, one_hot_discrete)
        if isinstance(wanted, range):
            if fill is None or not wanted or (0 <= wanted[0] < length and 0 <= wanted[-1] < length):
                return self._shown(self._rows(_within(wanted, length)), one_hot_discrete)
            wanted = np.array(wanted, np.int64)
        return self._gather(wanted, length, fill, one_hot_discrete)

    __getitem__ = get

    def _positions(self, indices: Any, length: int, back: bool) -> int | range | NDArray[np.int64]:
        """The positions for `indices`; they may lie outside the data."""

        def position(index: Any) -> int:
            return whole_number(index) + (self.lookback if index >= 0 or back else length)

        try:
            if indices is None:
                return range(self.lookback, length)
            if isinstance(indices, slice):
                start = self.lookback if indices.start is None else position(indices.start)
                stop = length if indices.stop is None else position(indices.stop)
                return range(start, stop, 1 if indices.step is None else indices.step)
            if not isinstance(indices, (list, np.ndarray)):
                return position(indices)
            index = np.asarray(indices)
            if index.size and (index.ndim != 1 or index.dtype.kind not in "iu"):
                raise TypeError("not a list of integers")
            return (index + (self.lookback if back else np.where(index >= 0, self.lookback, length))).astype(np.int64)
        except (TypeError, ValueError) as err:
            fix = "an int, a list of ints, a slice with a step other than 0, or None for all"
            raise EpisodeIndexError(f"indices {indices!r}", where=ASKED, fix=fix) from err

    def _rows(self, rows: Any) -> Any:
        if type(self.data) is np.ndarray or not self.finalized:  # fast path
            return self.data[rows]
        return map_leaves(lambda leaf: leaf[rows], self.data)

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

    def _gather(self, wanted: NDArray[np.int64], length: int, fill: Any, one_hot_discrete: bool) -> Any:
        there = (wanted >= 0) & (wanted < length)
        if fill is None and not there.all():
            raise self._missing(int(wanted[~there][0]), length)
        if not self.finalized:
            return [self._one(at, length, fill, one_hot_discrete) for at in wanted.tolist()]
        if there.all():
            return self._shown(self._rows(wanted), one_hot_discrete)
        item = self._filled(fill, one_hot_discrete)
        if not length:
            return map_leaves(lambda leaf: np.repeat(np.asarray(leaf)[None], len(wanted), axis=0), item)
        found = self._shown(self._rows(np.clip(wanted, 0, length - 1)), one_hot_discrete)
        try:
            return map_leaves(lambda leaf, one: np.where(there.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, one), found, item)
        except ValueError as err:
            raise BadEpisode(str(err), where="fill", fix="give the episode the space of this data") from err

    def _filled(self, fill: Any, one_hot_discrete: bool) -> Any:
        """A record of `fill` values: in the space's dtypes, else shaped like the other records."""

        def of_space(leaf: Space) -> NDArray[Any]:
            if one_hot_discrete and isinstance(leaf, (spaces.Discrete, spaces.MultiDiscrete)):
                return np.full(hot_size(leaf), fill, np.float32)  # so a fill of 0 gives all-zero vectors
            return np.full(leaf.shape or (), fill, leaf.dtype)

        try:
            if self.space is not None:
                return map_leaves(of_space, space_tree(self.space))
            if not self.finalized or (isinstance(self.data, np.ndarray) and self.data.ndim == 1):
                return fill
            # Scalar records keep the dtype of `fill`, so that 0.5 survives among integers.
            return map_leaves(lambda leaf: np.full(leaf.shape[1:], fill, leaf.dtype if leaf.ndim > 1 else None), self.data)
        except (TypeError, ValueError, OverflowError) as err:
            fix = "give a number that the data's dtype can hold"
            raise BadEpisode(f"cannot fill with {fill!r}: {err}", where="fill", fix=fix) from err

    def _missing(self, at: int, length: int) -> EpisodeIndexError:
        before = self.lookback
        what = f"no record at timestep {at - before}: {length - before} records from timestep 0 on, {before} before it"
        return EpisodeIndexError(what, where=ASKED, fix="pass fill=VALUE to fill missing records")

    # ---- writing ----

    def set(self, new_data: Any, *, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite one record for an int, one per index for a list or slice, all but the lookback buffer for None.

        `new_data` is a list of records, or for a numpy'ized buffer also a tree of arrays. On an error nothing is written. If
        numpy'ized data has a space, the first new value must lie in it; `validate` checks all values.

        Raises EpisodeIndexError for indices outside the data or a wrong number of values, BadEpisode for values that do not
        fit the data or, once numpy'ized, its space.
        """
        length = self.len_incl_lookback()
        rows: Any = self._positions(at_indices, length, neg_index_as_lookback)
        if isinstance(rows, range):
            rows = _within(rows, length)
        else:
            outside = [at for at in np.atleast_1d(rows).tolist() if not 0 <= at < length]
            if outside:
                raise self._missing(outside[0], length)
        if self.finalized:
            self._set_arrays(rows, new_data)
        elif isinstance(rows, int):
            self.data[rows] = new_data
        else:
            at_each = range(length)[rows] if isinstance(rows, slice) else rows.tolist()
            if isinstance(new_data, dict) or not isinstance(new_data, (Sequence, np.ndarray)) or len(new_data) != len(at_each):
                raise _other_count(len(new_data) if isinstance(new_data, (Sequence, np.ndarray)) else 1, len(at_each))
            for row, record in zip(at_each, new_data, strict=True):
                self.data[row] = record

    def _set_arrays(self, rows: Any, new: Any) -> None:
        if isinstance(new, list) and new and isinstance(self.data, (dict, tuple)) and not isinstance(rows, int):
            new = stack(new, self.space)
        try:
            values = map_leaves(lambda leaf, value: _value_for(leaf, rows, value), self.data, new)
            if isinstance(rows, int):
                check_item(map_leaves(lambda value: value[()], values), self.space, where="new_data")
            elif row_count(values):
                check_item(rows_of(values, 0), self.space, where="new_data")
        except ValueError as err:
            raise BadEpisode(f"wrong structure: {err}", where="new_data", fix="give values with the data's structure") from err
        if not self._owned:
            self.replace(map_leaves(np.array, self.data))
        map_leaves(lambda leaf, value: leaf.__setitem__(rows, value), self.data, values)

    # ---- states ----

    def get_state(self) -> dict[str, Any]:
        """The state in RLlib's layout: data (not copied), lookback, finalized, space."""
        return {
            "data": self.shared() if self.finalized else list(self.data),
            "lookback": self.lookback,
            "finalized": self.finalized,
            "space": known_space_to_rllib(self.space),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], space: Space | None = None) -> InfiniteLookbackBuffer:
        """Restore a buffer from a state of RLlib 2.40 to 2.60 or of `get_state`; it shares the state's arrays.

        `space`: the episode's, if known. Lists become tuples where the space is a Tuple and, in numpy'ized data, everywhere:
        there they can only be structure. RLlib 2.40 stored numpy'ized steps of Dict and Tuple spaces as
        `space.to_jsonable([data])`, as if the episode were one sample.

        Raises BadEpisode for an invalid state.
        """
        try:
            data, finalized, lookback = (
                state["data"],
                bool(state.get("finalized", False)),
                whole_number(state.get("lookback", 0)),
            )
            own = known_space_from_rllib(state.get("space"), where="space")
            space = own if space is None else space
            if lookback < 0:
                raise ValueError(f"a lookback of {lookback}")
            if finalized:
                tree = _lists_to_tuples(data)
                if space is not None and not all(isinstance(leaf, np.ndarray) for leaf in leaves(tree)):
                    [tree] = space.from_jsonable(data)
                return cls.over(_arrays(tree), lookback, space, finalized=True)
        except (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError, RecursionError) as err:
            raise BadEpisode(f"not the state of a buffer: {err!r}", where="state", fix="see schemas/ for the form") from err
        if not isinstance(data, (list, tuple, np.ndarray)):
            raise BadEpisode(
                f"records are a {type(data).__name__}, not a list",
                where="data",
                fix="give a list of records, or finalized: true",
            )
        records = tuples_for(data, space) if has_tuple(space) or isinstance(data, list) else list(data)
        return cls.over(records, lookback, space, finalized=False)

    def __repr__(self) -> str:
        kind = "arrays" if self.finalized else "list"
        return f"{type(self).__name__}({len(self)} records in {kind}, {self.lookback} before them)"


def check_item(item: Tree, space: Space | None, *, where: str) -> None:
    """Raise BadEpisode unless the record lies in `space` (None: accept anything)."""
    if space is None:
        return
    fix = "give data of this space, or set the space first"

    def check(leaf: Space, value: Any) -> None:
        if isinstance(leaf, spaces.Box) and not isinstance(value, np.ndarray):  # gymnasium would warn each time
            value = np.asarray(value, leaf.dtype)
        elif isinstance(leaf, (spaces.MultiDiscrete, spaces.MultiBinary)):
            value = np.asarray(value)
        if not leaf.contains(value):
            kind = f"{value.dtype}{value.shape} " if isinstance(value, (np.ndarray, np.generic)) else ""
            raise BadEpisode(f"{kind}value outside {leaf}", where=where, fix=fix)

    try:
        map_leaves(check, space_tree(space), item)
    except (TypeError, ValueError) as err:
        raise BadEpisode(f"{err}, expected {space}", where=where, fix=fix) from err


def _within(wanted: range, length: int) -> slice:
    """`wanted` as a slice, clipped to the data as Python slices are."""
    if wanted.step > 0:
        return slice(max(wanted.start, 0), max(wanted.stop, 0), wanted.step)
    start = min(wanted.start, length - 1)
    if start < 0:
        return slice(0, 0)
    return slice(start, wanted.stop if wanted.stop >= 0 else None, wanted.step)


def _value_for(leaf: NDArray[Any], rows: Any, new: Any) -> NDArray[Any]:
    value, target = np.asarray(new), np.shape(leaf[rows])
    if not isinstance(rows, int) and (not value.ndim or len(value) != target[0]):
        raise _other_count(len(value) if value.ndim else 1, target[0])
    if RANK.get(value.dtype.kind, 4) > RANK.get(leaf.dtype.kind, 4):
        raise BadEpisode(f"{value.dtype} values into {leaf.dtype} data", where="new_data", fix="round them first")
    if not isinstance(new, (np.ndarray, np.generic)):  # Python numbers have no dtype
        value = value.astype(leaf.dtype)
    return np.broadcast_to(value, target)


def _other_count(have: int, want: int) -> EpisodeIndexError:
    fix = "give one value per timestep that is overwritten"
    return EpisodeIndexError(f"{have} for {want} timesteps", where="new_data", fix=fix)


def _arrays(tree: Tree) -> Tree:
    """`tree`; raises BadEpisode unless its leaves are arrays of equal length."""
    sizes = {}
    for path, leaf in flatten(tree):
        if not isinstance(leaf, np.ndarray) or not leaf.ndim:
            raise BadEpisode(f"{path or 'data'} is a {type(leaf).__name__}, not an array", where="data", fix="finalized: false")
        sizes[path] = len(leaf)
    if len(set(sizes.values())) != 1:
        raise BadEpisode(f"leaves of lengths {sizes}", where="data", fix="write the file again from its source")
    return tree


def _lists_to_tuples(tree: Any, depth: int = 0) -> Tree:
    if depth > MAX_DEPTH:
        raise ValueError(f"values nested deeper than {MAX_DEPTH}")
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise ValueError(f"keys that are not text: {list(tree)[:3]}")
        return {key: _lists_to_tuples(part, depth + 1) for key, part in tree.items()}
    return tuple(_lists_to_tuples(part, depth + 1) for part in tree) if isinstance(tree, (list, tuple)) else tree
