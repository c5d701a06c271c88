"""Memory budgets: for data, for one episode, and returning free memory to the system.

Arrow's allocators keep freed memory for speed: a conversion that creates and drops tables of all sizes ends up holding twice
the memory in use. So the package selects the C library's allocator (`offline_cli/__init__.py`), which on Linux can return free
memory to the system, numpy's arrays included.

During conversion an episode is in memory several times: as fragments, joined arrays, packed item, and in the Parquet writer's
buffers. An episode that is too long raises, by name, before it is joined and packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import MemoryLimitExceeded
from offline_cli.parquet.reading import MEMORY_LIMIT as MEMORY_LIMIT

PROGRAM: Final = 192 << 20  # bytes of the program with its libraries, and of the table being written
WRITTEN: Final = 7  # memory for writing an episode, as a multiple of its arrays: arrays, packed item, Parquet buffers
HELD: Final = 5  # peak memory of an episode, as a multiple of its arrays: 256 MB took 1.4 GB with the program, 141 MB 0.8 GB


def room_for_data(memory_limit: int) -> int:
    """Bytes that readers may use under a limit for the whole process."""
    return max(memory_limit // 4, memory_limit - PROGRAM)


def give_back() -> None:
    """Return free memory to the system (takes a few milliseconds)."""
    pa.system_memory_pool().release_unused()


@dataclass(frozen=True, slots=True)
class EpisodeLimit:
    """The maximum bytes for the arrays of one episode."""

    most: int

    @classmethod
    def within(cls, memory_limit: int) -> EpisodeLimit:
        """The limit for a process that may use `memory_limit` bytes."""
        return cls(room_for_data(memory_limit) // HELD)

    def check(self, batch: EpisodeBatch, place: str) -> None:
        """Raise MemoryLimitExceeded if an episode of `batch` is too large."""
        if batch.nbytes > self.most:
            self.check_steps(int(batch.lengths.max()), batch, batch.ids[int(batch.lengths.argmax())], place)

    def check_steps(self, steps: int, batch: EpisodeBatch, name: str, place: str) -> None:
        """Raise MemoryLimitExceeded if an episode of `steps` steps like those of `batch` is too large."""
        self._check(steps, steps * batch.nbytes // max(1, batch.num_steps), f"episode {name}", place)

    def _check(self, steps: int, taken: int, name: str, place: str) -> None:
        if taken > self.most:
            what = f"{name} has {steps:,} steps or more, {taken / 1e6:,.0f} MB, too many for the memory limit"
            fix = "raise --memory-limit, or split the episode into shorter, truncated ones"
            raise MemoryLimitExceeded(what, where=place, fix=fix)
