"""Which episodes were seen before: by id, however many there are, and by one 64-bit fingerprint of their content.

Two episodes with one id are duplicates when their fingerprints agree. Every word of every step is mixed with the position of
its step and with a key drawn anew in each process, so that equal fingerprints of different episodes are a matter of chance (one
in 2^64 for each pair compared), and nobody can prepare such a pair; between processes they mean nothing. The cost is a few
array operations, because an eager `EpisodeBatch.digest` would take longer than reading 20-step episodes does.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = ["EarlierEpisodes", "KnownIds", "fingerprints"]

_KEY = np.frombuffer(os.urandom(8), np.uint64)[0]
_ODD = np.uint64(0x9E3779B97F4A7C15)
_OTHER_ODD = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(32)
BLOCK = 1 << 16  # rows that are mixed at a time
MAX_WORDS = 64  # 8-byte words per step; above, hashing the bytes of each episode is faster than mixing columns


class KnownIds:
    """Ids of episodes, each with its number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        """Ids added."""
        return len(self._numbers)

    def __contains__(self, name: str) -> bool:
        """Whether the id was added."""
        return name in self._numbers

    def met(self, names: Collection[str]) -> set[str]:
        """Those of `names` that were added."""
        return self._numbers.keys() & names

    def number(self, name: str) -> int:
        """How many ids were added before this one, which was added too."""
        return self._numbers[name]

    def add(self, names: Collection[str]) -> None:
        """Add ids that are new and differ from each other."""
        self._numbers.update(zip(names, range(len(self), len(self) + len(names)), strict=True))


@dataclass(slots=True)
class EarlierEpisodes:
    """Whole episodes of a dataset that others are added to: copies of them are recognised as what the dataset keeps of them."""

    location: str  # the dataset's
    ids: Sequence[str]
    read: Callable[[], Iterator[EpisodeBatch]]  # all of them, in the order of their ids
    stored: Callable[[EpisodeBatch], EpisodeBatch]  # an episode as the dataset may have it, in each form; raises BadData
    _prints: NDArray[np.uint64] | None = None

    def is_same(self, number: int, other: EpisodeBatch) -> bool:
        """Whether one of them is the only episode of `other`. The first call reads all: ids of new recordings mostly differ."""
        if self._prints is None:
            parts = [fingerprints(batch) for batch in self.read()]
            self._prints = np.concatenate([np.zeros(0, np.uint64), *parts])
        try:
            return bool(np.isin(self._prints[number], fingerprints(self.stored(other))))
        except BadData:
            return False


# ---- fingerprints ----


def fingerprints(batch: EpisodeBatch) -> NDArray[np.uint64]:
    """(E,) numbers, equal for episodes with the same steps (extra outputs included), flags and length; ids, infos: no."""
    steps = [leaf for tree in (batch.actions, batch.rewards, dict(batch.extra)) for leaf in _by_path(tree)]
    observations = _by_path(batch.obs)
    if sum(leaf.itemsize * math.prod(leaf.shape[1:]) for leaf in (*steps, *observations)) > 8 * MAX_WORDS:
        plain = replace(_normal(batch), t_started=None, start_kind=None)  # a start that was not declared is not part of it
        return np.array([int.from_bytes(plain.digest(e)[:8], "little") for e in range(len(batch))], np.uint64)
    with np.errstate(over="ignore"):
        mixed = _sums(steps, batch.starts) ^ (_sums(observations, batch.obs_starts) * _ODD)
        flags = batch.terminated.astype(np.uint64) + batch.truncated.astype(np.uint64) * np.uint64(2)
        named = np.uint64(zlib.crc32(repr(sorted(batch.extra)).encode()))  # equal values under other names are not equal
        return _mix(mixed ^ named, flags + batch.lengths.astype(np.uint64) * np.uint64(4))


def _by_path(tree: Tree) -> list[NDArray[Any]]:
    """The leaves in the order of their paths: dicts of one episode may have their keys in different orders."""
    return [leaf for _, leaf in sorted(flatten(tree), key=itemgetter(0))]


def _sums(leaves: list[NDArray[np.generic]], starts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """(E,) for each episode the sum over its rows of a mix of position and words."""
    totals = np.zeros(len(starts), np.uint64)  # of the rows before each start
    before = np.zeros(1, np.uint64)
    for first in range(0, int(starts[-1]), BLOCK):  # blocks stay in the processor's cache, and long episodes take no memory
        stop = min(first + BLOCK, int(starts[-1]))
        sums = np.cumsum(np.concatenate([before, _mixed_rows(leaves, starts, first, stop)]), dtype=np.uint64)
        here = slice(*np.searchsorted(starts, [first, stop], side="right").tolist())
        totals[here] = sums[starts[here] - first]
        before = sums[-1:]
    return totals[1:] - totals[:-1]


def _mixed_rows(leaves: list[NDArray[np.generic]], starts: NDArray[np.int64], first: int, stop: int) -> NDArray[np.uint64]:
    """(stop - first,) of each of these rows the mix."""
    episodes = slice(int(np.searchsorted(starts, first, side="right")) - 1, int(np.searchsorted(starts, stop)))
    begins = starts[episodes]
    ends = np.clip(starts[episodes.start : episodes.stop + 1], first, stop)
    lengths = ends[1:] - ends[:-1]
    rows = np.arange(first, stop, dtype=np.uint64) - np.repeat(begins.astype(np.uint64), lengths)
    rows += _KEY
    for leaf in leaves:
        for words in _words(_normal_leaf(leaf[first:stop])):
            rows = _mix(rows, words)
    return rows


def _mix(state: NDArray[np.uint64], words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ words) * _ODD
    state ^= state >> _SHIFT
    state *= _OTHER_ODD
    state ^= state >> _SHIFT
    return state


def _words(leaf: NDArray[np.generic]) -> Iterator[NDArray[np.uint64]]:
    """The rows of `leaf` as columns of 8-byte words, the last one padded with zeros."""
    width = leaf.itemsize * math.prod(leaf.shape[1:])
    rows = np.zeros((len(leaf), -(-width // 8) * 8), np.uint8)
    rows[:, :width] = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).reshape(len(leaf), width)
    yield from rows.view(np.uint64).T


def _normal(batch: EpisodeBatch) -> EpisodeBatch:
    """`batch` with one form of zero and one of NaN, so that fingerprints are equal where values are."""
    return replace(
        batch,
        obs=map_leaves(_normal_leaf, batch.obs),
        actions=map_leaves(_normal_leaf, batch.actions),
        rewards=_normal_leaf(batch.rewards),
        extra={name: map_leaves(_normal_leaf, tree) for name, tree in batch.extra.items()},
    )


def _normal_leaf(leaf: NDArray[Any]) -> NDArray[Any]:
    if leaf.dtype.kind not in "fc":
        return leaf
    leaf = leaf + leaf.dtype.type(0)  # -0.0 becomes 0.0
    unknown = np.isnan(leaf)
    if unknown.any():
        leaf[unknown] = np.nan
    return leaf
