"""One kind of data of an episode (its observations, say) with a lookback buffer on the left.

The first `lookback` records belong to an earlier chunk of the episode and are read-only context: index 0 is the first record
after them, and `len` does not count them. The data is a list of records until `finalize` turns it into arrays, one per leaf,
(length, *shape). An index beyond both raises.

Arrays are copied before the first write when somebody else may hold them too: bytes, an EpisodeBatch, another chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from offline_cli.episodes.buffers.indexing import (
    ASKED,
    Indices,
    arrays_from_state,
    clip,
    filled_item,
    filled_like,
    inside,
    one_hot,
    overwrite,
    position,
    position_range,
    positions,
    records_from_state,
    with_filled,
)
from offline_cli.episodes.buffers.stacking import concatenate, row_count, same_records, stack, unstack
from offline_cli.episodes.episode_spaces import known_space_from_rllib, known_space_to_rllib, space_tree
from offline_cli.errors import BadEpisode, EpisodeIndexError
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

__all__ = ["FILL", "GetterOptions", "InfiniteLookbackBuffer"]

FILL = "pass fill=... for a value that stands for missing records"


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

    # ---- sizes ----

    def __len__(self) -> int:
        """The number of records after the lookback buffer."""
        return max(self.len_incl_lookback() - self.lookback, 0)

    def len_incl_lookback(self) -> int:
        """The number of all records."""
        data = self.data
        return len(data) if type(data) is np.ndarray or not self.finalized else row_count(data)

    @property
    def space_struct(self) -> Tree:
        """`space` as a tree: dicts and tuples with leaf spaces; None without a space."""
        return None if self.space is None else space_tree(self.space)

    # ---- growing and shrinking ----

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
            return
        batch = stack(items, self.space) if isinstance(items, list) and items else items
        if not isinstance(items, list) or items:
            self.replace(concatenate(self.data, batch))

    def concat(self, other: InfiniteLookbackBuffer) -> None:
        """Add the records of `other`, its lookback buffer left out."""
        self.extend(other.get())

    def pop(self, index: int = -1) -> None:
        """Remove the record at `index`, counted over all records, lookback buffer included."""
        if not self.finalized:
            self.data.pop(index)
            return
        length = self.len_incl_lookback()
        gone = range(length)[index]
        keep: Any = slice(0, gone) if gone == length - 1 else np.delete(np.arange(length), gone)
        self.data = map_leaves(lambda leaf: leaf[keep], self.data)

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
        if type(indices) is int:
            row = indices + (self.lookback if indices >= 0 or neg_index_as_lookback else length)
            return self._one(row, length, fill, one_hot_discrete)
        if indices is None:
            indices = slice(None)
            neg_index_as_lookback, fill = False, None
        frame = (length, self.lookback, neg_index_as_lookback)
        if isinstance(indices, slice):
            wanted = position_range(indices, *frame)
            if fill is None or inside(wanted, length):
                return self._shown(self._rows(clip(wanted, length)), one_hot_discrete)
            return self._gather(np.array(wanted, np.int64), length, fill, one_hot_discrete)
        if isinstance(indices, (list, np.ndarray)):
            return self._gather(positions(indices, *frame), length, fill, one_hot_discrete)
        return self._one(position(indices, *frame), length, fill, one_hot_discrete)

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
        if self.space is not None:
            return filled_item(self.space, fill, one_hot_discrete=one_hot_discrete)
        if not self.finalized or (isinstance(self.data, np.ndarray) and self.data.ndim == 1):
            return fill
        return filled_like(self.data, fill)

    def _gather(self, wanted: Any, length: int, fill: Any, one_hot_discrete: bool) -> Any:
        there = (wanted >= 0) & (wanted < length)
        if fill is None and not there.all():
            raise self._missing(int(wanted[~there][0]), length)
        if not self.finalized:
            return [self._one(at, length, fill, one_hot_discrete) for at in wanted.tolist()]
        found = self._shown(map_leaves(lambda leaf: leaf[wanted[there]], self.data), one_hot_discrete)
        return found if there.all() else with_filled(found, there, map_leaves(np.asarray, self._filled(fill, one_hot_discrete)))

    def _missing(self, at: int, length: int) -> EpisodeIndexError:
        before = self.lookback
        what = f"no record at timestep {at - before}: there are {length - before} from 0 on, {before} before"
        return EpisodeIndexError(what, where=ASKED, fix=FILL)

    def __getitem__(self, item: Indices) -> Any:
        """`buffer[3]`, `buffer[:5]`, `buffer[[0, 2]]`: as `get` without options."""
        return self.get(item)

    # ---- writing ----

    def set(self, new_data: Any, *, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite records: one for an int, as many as indices for a list or slice, all after the lookback buffer for None.

        `new_data` is a list of records, or for a numpy'ized buffer also a tree of arrays. Nothing is written unless all of it
        can be.

        Raises EpisodeIndexError for indices outside the data and for lengths that differ, BadEpisode for values that fit
        neither the data nor, once numpy'ized, its space.
        """
        length = self.len_incl_lookback()
        if type(at_indices) is int:  # the most frequent case: pieces beside an environment write over the last record
            row = at_indices + (self.lookback if at_indices >= 0 or neg_index_as_lookback else length)
            if not 0 <= row < length:
                raise self._missing(row, length)
            if self.finalized:
                self._set_rows(row, new_data)
            else:
                self.data[row] = new_data
            return
        frame = (length, self.lookback, neg_index_as_lookback)
        if at_indices is None or isinstance(at_indices, slice):
            self._set_rows(clip(position_range(slice(0, None) if at_indices is None else at_indices, *frame), length), new_data)
        elif isinstance(at_indices, (list, np.ndarray)):
            rows = positions(at_indices, *frame)
            outside = rows[(rows < 0) | (rows >= length)]
            if outside.size:
                raise self._missing(int(outside[0]), length)
            self._set_rows(rows, new_data)
        else:
            self.set(new_data, at_indices=position(at_indices, *frame) - self.lookback, neg_index_as_lookback=True)

    def _set_rows(self, rows: Any, new: Any) -> None:
        if not self.finalized:
            self._set_records(rows, new)
            return
        if isinstance(new, list) and not isinstance(rows, int):
            new = self._batch_of(new)
        if not self._owned:
            self.data, self._owned = map_leaves(np.array, self.data), True
        overwrite(self.data, rows, new, self.space)

    def _batch_of(self, records: list[Any]) -> Tree:
        nested = isinstance(self.data, (dict, tuple)) and records
        return stack(records, self.space) if nested else records

    def _set_records(self, rows: Any, new: Any) -> None:
        if isinstance(rows, int):
            self.data[rows] = new
            return
        at = range(len(self.data))[rows] if isinstance(rows, slice) else rows.tolist()
        if isinstance(new, dict) or not isinstance(new, (Sequence, np.ndarray)) or len(new) != len(at):
            count = len(new) if isinstance(new, (Sequence, np.ndarray)) else f"a {type(new).__name__}"
            fix = "give a list with one record per timestep overwritten"
            raise EpisodeIndexError(f"{count} for {len(at)} timesteps", where="new_data", fix=fix)
        for row, record in zip(at, new, strict=True):
            self.data[row] = record

    def __setitem__(self, key: Indices, value: Any) -> None:
        """`buffer[3] = record`: as `set` without options."""
        self.set(value, at_indices=key)

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
        if not finalized:
            data = records_from_state(data, space)
        elif type(data) is not np.ndarray or not data.ndim:
            data = arrays_from_state(data)
        return cls.over(data, lookback, space, finalized=finalized)

    # ---- the rest ----

    def __add__(self, other: Any) -> InfiniteLookbackBuffer:
        """A new buffer with the records of a list or another buffer (without its lookback) added, or a number added to each.

        Raises BadEpisode for numpy'ized buffers.
        """
        if self.finalized or (isinstance(other, InfiniteLookbackBuffer) and other.finalized):
            fix = "use extend, or numpy on get()"
            raise BadEpisode("a numpy'ized buffer cannot be added to", where="buffer + ...", fix=fix)
        if isinstance(other, (int, float, complex)):
            data = [item + other if isinstance(item, (int, float, complex)) else item for item in self.data]
        else:
            data = self.data + (other.data[other.lookback :] if isinstance(other, InfiniteLookbackBuffer) else list(other))
        return InfiniteLookbackBuffer(data, self.lookback, self.space)

    def __eq__(self, other: object) -> bool:
        """Whether both hold equal records, in the same state, with the same lookback and space."""
        if not isinstance(other, InfiniteLookbackBuffer):
            return NotImplemented
        mine = (self.lookback, self.finalized, self.space)
        return mine == (other.lookback, other.finalized, other.space) and same_records(self.data, other.data)

    __hash__ = None  # type: ignore[assignment]  # its data changes

    def __repr__(self) -> str:
        kind = "arrays" if self.finalized else "list"
        return f"{type(self).__name__}({len(self)} records in {kind}, {self.lookback} before them)"
