"""Memory: how much there is for data, how much of it one episode may take, and returning what is free to the system.

Arrow's own allocators keep what is freed, for speed: a conversion that makes and drops tables of all sizes comes to hold twice
of what is in use. The package therefore asks for the C library's (`offline_cli/__init__.py`), which on Linux can return what is
free to the system, numpy's arrays included.

An episode is in memory several times while it is converted: its fragments, the joined arrays, the packed item, and what the
Parquet writer makes of that. An episode that is too long raises, by name, before it is joined and packed.
"""

from __future__ import annotations

import ctypes
import math
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import MemoryLimitExceeded
from offline_cli.parquet.reading import MEMORY_LIMIT as MEMORY_LIMIT
from offline_cli.spaces import Space, leaf_spaces

PROGRAM: Final = 192 << 20  # bytes of the program with its libraries, and of the table that is being written
WRITTEN: Final = 7  # times the bytes of an episode's arrays: these, the packed item, and what the Parquet writer makes of that
REWARD: Final = 8  # bytes
NEAR: Final = 0.7  # of a limit: what is free lies in pieces, and takes as much again between two batches
TIGHT: Final = 512 << 20  # bytes of a limit that leaves little beside the program
ARENAS: Final = -8  # glibc's M_ARENA_MAX
HELD: Final = 5  # times the bytes of its arrays: 256 MB took 1.4 GB with the program, and 141 MB 0.8 GB


def room_for_data(memory_limit: int) -> int:
    """Bytes of a limit on the whole process that readers may fill."""
    return max(memory_limit // 4, memory_limit - PROGRAM)


def give_back() -> None:
    """Return free memory to the system now: a few milliseconds."""
    pa.system_memory_pool().release_unused()


def give_back_near(memory_limit: int) -> None:
    """Return free memory to the system where the process has taken most of its limit; where that is not known, never."""
    with suppress(OSError, ValueError, AttributeError):  # only Linux reports it
        taken = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        if taken > NEAR * memory_limit:
            give_back()


def one_heap_near(memory_limit: int) -> None:
    """Under a tight limit have all threads share one heap from now on: one of its own keeps what is freed."""
    if memory_limit < TIGHT and os.name == "posix":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:  # glibc's; others have none, or ignore it
            mallopt(ARENAS, 1)


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
        self._check(steps, steps * batch.nbytes // max(1, batch.num_steps), f"episode {name}", place)

    def check_longest(self, steps: int | None, spaces: tuple[Space | None, Space | None], place: str) -> None:
        """Raise MemoryLimitExceeded where an episode of `steps` steps in these spaces, if they are known, is too large."""
        known = [space for space in spaces if space is not None]
        if steps is not None and len(known) == len(spaces):
            leaves = [leaf for space in known for leaf in leaf_spaces(space).values()]
            step = REWARD + sum(np.dtype(leaf.dtype).itemsize * math.prod(leaf.shape or ()) for leaf in leaves)
            self._check(steps, steps * step, "the longest episode", place)

    def _check(self, steps: int, taken: int, name: str, place: str) -> None:
        if taken > self.most:
            what = f"{name} has {steps:,} steps or more, {taken / 1e6:,.0f} MB, too many for the memory limit"
            fix = "raise --memory-limit, or record or cut it as episodes that are truncated earlier"
            raise MemoryLimitExceeded(what, where=place, fix=fix)
