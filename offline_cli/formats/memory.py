"""How much memory is there for data, and giving back what is free; refuses to count what others hold.

Arrow's own allocators keep what is freed, for speed: a conversion that makes and drops tables of all sizes comes to hold twice
of what is in use. The package therefore asks for the C library's (`offline_cli/__init__.py`), which on Linux can be told to
give back what is free, numpy's arrays included.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from offline_cli.storage.parquet_bombs import MEMORY_LIMIT

__all__ = ["MEMORY_LIMIT", "WRITTEN", "give_back", "room_for_data"]

PROGRAM: Final = 192 << 20  # bytes of the program with its libraries, and of the table that is being written
WRITTEN: Final = 7  # times the bytes of an episode's arrays: these, the packed item, and what the Parquet writer makes of that


def room_for_data(memory_limit: int) -> int:
    """Bytes of a limit on the whole process that readers may fill."""
    return max(memory_limit // 4, memory_limit - PROGRAM)


def give_back() -> None:
    """Have free memory go back to the system now: a few milliseconds."""
    pa.system_memory_pool().release_unused()
