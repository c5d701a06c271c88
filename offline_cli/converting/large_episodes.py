"""The limit on what one episode takes until it is written; refuses a longer one by name, before it is joined and packed.

An episode is in memory several times while it is converted: its fragments, the joined arrays, the packed item, and what the
Parquet writer makes of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import MemoryLimitExceeded
from offline_cli.formats.memory import room_for_data

__all__ = ["EpisodeLimit"]

HELD: Final = 5  # times the bytes of its arrays: 256 MB were seen to take 1.4 GB with the program, and 141 MB 0.8 GB


@dataclass(frozen=True, slots=True)
class EpisodeLimit:
    """Bytes that the arrays of one episode may take."""

    most: int

    @classmethod
    def within(cls, memory_limit: int) -> EpisodeLimit:
        """Of a process that may take `memory_limit` bytes in all."""
        return cls(room_for_data(memory_limit) // HELD)

    def check(self, batch: EpisodeBatch, place: str) -> None:
        """Raise MemoryLimitExceeded where an episode of `batch` is too large."""
        if batch.nbytes > self.most:
            self.check_steps(int(batch.lengths.max()), batch, batch.ids[int(batch.lengths.argmax())], place)

    def check_steps(self, steps: int, batch: EpisodeBatch, name: str, place: str) -> None:
        """Raise MemoryLimitExceeded where `steps` steps as large as those of `batch` are too many for one episode."""
        taken = steps * batch.nbytes // max(1, batch.num_steps)
        if taken > self.most:
            what = f"episode {name} has {steps:,} steps or more, {taken / 1e6:,.0f} MB, too many for the memory limit"
            fix = "raise --memory-limit, or record or cut it as episodes that are truncated earlier"
            raise MemoryLimitExceeded(what, where=place, fix=fix)
