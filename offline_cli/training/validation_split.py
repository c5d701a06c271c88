"""Which episodes are held out for validation: whole ones, by a hash of seed and id, the same in every run with the same seed,
whatever their order and however they are read.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch

__all__ = ["ValidationSplit"]


@dataclass(slots=True)
class ValidationSplit:
    """`see` the ids of all episodes, `settle`, and divide them: at least one is held out, and never all.

    Two ids with one 64-bit hash count as one.
    """

    fraction: float
    seed: int
    episodes: int = 0  # seen, once settled
    _ranks: array[int] = field(default_factory=lambda: array("Q"))
    _last: int = -1  # the highest rank that is held out

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
        return min(max(1, round(self.fraction * self.episodes)), self.episodes - 1)

    def chosen(self, ids: Iterable[str]) -> NDArray[np.bool_]:
        """(E,) which of them are held out."""
        return np.array([_rank(id_, self.seed) <= self._last for id_ in ids], np.bool_)

    def divided(self, episodes: EpisodeBatch) -> tuple[EpisodeBatch, EpisodeBatch]:
        """The episodes to learn from, and those held out."""
        chosen = self.chosen(episodes.ids)
        return episodes.select(np.flatnonzero(~chosen)), episodes.select(np.flatnonzero(chosen))


def _rank(id_: str, seed: int) -> int:
    name = id_.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, key=str(seed).encode()[:64]).digest(), "big")
