"""Where indices of getters and setters lie in a buffer's data; refuses to look at the data itself.

A position counts from the first record kept, lookback buffer included, and may lie outside the data: callers decide whether
that is an error, is left out (ranges without `fill`, as in Python) or is filled. An index of 0 or more counts from timestep
0, the first after the lookback buffer; a negative one from the end, or with `neg_index_as_lookback` back from timestep 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import EpisodeIndexError

__all__ = ["Indices", "clip", "inside", "position", "position_range", "positions"]

Indices = int | list[int] | slice | None
"""What getters and setters take: one timestep, several, a range, or None for all but the lookback buffer."""


def position(index: int, length: int, lookback: int, neg_index_as_lookback: bool) -> int:
    """The position of one index; below 0 or at least `length` where there is no record."""
    return index + (lookback if index >= 0 or neg_index_as_lookback else length)


def positions(indices: Any, length: int, lookback: int, neg_index_as_lookback: bool) -> NDArray[np.int64]:
    """(K,) the positions of a list of K indices. Raises EpisodeIndexError for anything but integers."""
    index = np.asarray(indices)
    if index.size == 0:
        return np.zeros(0, np.int64)
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise EpisodeIndexError(
            f"indices {indices!r}", where="the indices asked for", fix="an int, a list of ints, a slice, or None for all"
        )
    offset = lookback if neg_index_as_lookback else np.where(index >= 0, lookback, length)
    return (index + offset).astype(np.int64)


def position_range(part: slice, length: int, lookback: int, neg_index_as_lookback: bool) -> range:
    """The positions that `part` asks for, whether records are there or not; from timestep 0 to the end where it says nothing.

    Raises EpisodeIndexError for a step of 0.
    """
    below = lookback if neg_index_as_lookback else length
    start = lookback if part.start is None else part.start + (lookback if part.start >= 0 else below)
    stop = length if part.stop is None else part.stop + (lookback if part.stop >= 0 else below)
    step = 1 if part.step is None else part.step
    if step == 0:
        raise EpisodeIndexError("a slice with a step of 0", where="the indices asked for", fix="a step of 1 or more, or none")
    return range(start, stop, step)


def inside(wanted: range, length: int) -> bool:
    """Whether every position wanted holds a record."""
    return not wanted or (0 <= wanted[0] < length and 0 <= wanted[-1] < length)


def clip(wanted: range, length: int) -> slice:
    """The slice of the data that holds those positions of `wanted` that exist, by the rules of Python's own slices."""
    if wanted.step > 0:
        return slice(max(wanted.start, 0), max(wanted.stop, 0), wanted.step)
    start = min(wanted.start, length - 1)
    if start < 0:
        return slice(0, 0)
    return slice(start, wanted.stop if wanted.stop >= 0 else None, wanted.step)
