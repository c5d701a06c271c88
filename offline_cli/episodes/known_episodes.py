"""Duplicate detection: earlier episodes by id and by a 64-bit fingerprint of their content.

Two episodes with the same id are duplicates if their fingerprints are equal. A fingerprint is a keyed hash with a random key
per process: different episodes collide by chance (1 in 2^64 per compared pair), never by design. Fingerprints of different
processes are not comparable.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.trees import flatten

__all__ = ["EarlierEpisodes", "fingerprints", "hash_rows"]

_KEY = os.urandom(32)


@dataclass(slots=True)
class EarlierEpisodes:
    """Existing episodes of a dataset, to compare appended ones with."""

    location: str  # of the dataset
    ids: Sequence[str]
    read: Callable[[], Iterator[EpisodeBatch]]  # reads all, in the order of `ids`
    stored: Callable[[EpisodeBatch], EpisodeBatch]  # the stored forms that an episode may have here; raises BadData
    _prints: NDArray[np.uint64] | None = None

    def is_same(self, number: int, other: EpisodeBatch) -> bool:
        """Whether existing episode `number` equals the single episode in `other`; the first call reads all existing ones."""
        if self._prints is None:
            parts = [fingerprints(batch) for batch in self.read()]
            self._prints = np.concatenate([np.zeros(0, np.uint64), *parts])
        try:
            return bool(np.isin(self._prints[number], fingerprints(self.stored(other))))
        except BadData:
            return False


def fingerprints(batch: EpisodeBatch) -> NDArray[np.uint64]:
    """(E,) hashes of steps (with extra outputs), flags and length, without ids and infos."""
    trees = [("actions", batch.actions), ("rewards", batch.rewards), *((f"extra.{n}", tree) for n, tree in batch.extra.items())]
    acted = sorted((part for name, tree in trees for part in flatten(tree, name)), key=itemgetter(0))
    seen = sorted(flatten(batch.obs), key=itemgetter(0))  # key order may differ between equal episodes
    form = repr([(path, leaf.dtype.str, leaf.shape[1:]) for path, leaf in (*acted, *seen)]).encode()
    flags = zip(batch.terminated.tolist(), batch.truncated.tolist(), batch.lengths.tolist(), strict=True)
    hashes = [sha256(_KEY + form + repr(each).encode()) for each in flags]  # twice as fast as blake2b here, in hardware
    for leaves, starts in ((acted, batch.starts), (seen, batch.obs_starts)):
        for _, leaf in leaves:
            hash_rows(hashes, _normal(leaf), starts)
    return np.array([int.from_bytes(digest.digest()[:8], "little") for digest in hashes], np.uint64)


def hash_rows(hashes: Sequence[Any], leaf: NDArray[Any], starts: NDArray[np.int64]) -> None:
    """Feed each of E hashes the bytes of its rows of `leaf` (N, ...), from `starts` (E+1,)."""
    width = leaf.itemsize * math.prod(leaf.shape[1:])
    rows = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data
    for (first, stop), digest in zip(pairwise(starts.tolist()), hashes, strict=True):
        digest.update(rows[first * width : stop * width])


def _normal(leaf: NDArray[Any]) -> NDArray[Any]:
    if leaf.dtype.kind not in "fc":
        return leaf
    leaf = leaf + leaf.dtype.type(0)  # -0.0 becomes 0.0
    unknown = np.isnan(leaf)
    if unknown.any():
        leaf[unknown] = np.nan
    return leaf
