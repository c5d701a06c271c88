"""Which episodes are held out to measure on: whole ones, by a hash of seed and id, the same in every run with the same seed,
whatever their order; refuses to hold out none, or all.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["HoldingOut", "held_out"]


def held_out(ids: tuple[str, ...], fraction: float, seed: int) -> NDArray[np.bool_]:
    """(E,) which episodes are held out: at least one, and never all. Raises ValueError for fewer than two."""
    if len(ids) < 2:
        raise ValueError("fewer than two episodes")
    ranks = [_rank(id_, seed) for id_ in ids]
    chosen = np.zeros(len(ids), np.bool_)
    chosen[sorted(range(len(ids)), key=lambda i: (ranks[i], ids[i]))[: _count(len(ids), fraction)]] = True
    return chosen


@dataclass(slots=True)
class HoldingOut:
    """The same for episodes that pass twice: `see` all ids, `settle`, and ask for any (two of one 64-bit hash count as one)."""

    fraction: float
    seed: int
    _ranks: array[int] = field(default_factory=lambda: array("Q"))
    _last: int = -1  # the highest rank that is held out
    episodes: int = 0  # seen

    def see(self, ids: Iterable[str]) -> None:
        """Further episodes, each seen once."""
        self._ranks.extend(_rank(id_, self.seed) for id_ in ids)

    def settle(self) -> None:
        """All episodes have been seen. Raises ValueError for fewer than two."""
        if len(self._ranks) < 2:
            raise ValueError("fewer than two episodes")
        self.episodes = len(self._ranks)
        last = self.count - 1
        self._last = int(np.partition(np.frombuffer(self._ranks, np.uint64), last)[last])
        self._ranks = array("Q")

    @property
    def count(self) -> int:
        """How many episodes are held out, once settled."""
        return _count(self.episodes, self.fraction)

    def chosen(self, ids: Iterable[str]) -> NDArray[np.bool_]:
        """(E,) which of them are held out."""
        return np.array([_rank(id_, self.seed) <= self._last for id_ in ids], np.bool_)


def _rank(id_: str, seed: int) -> int:
    name = id_.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, key=str(seed).encode()[:64]).digest(), "big")


def _count(episodes: int, fraction: float) -> int:
    return min(max(1, round(fraction * episodes)), episodes - 1)
