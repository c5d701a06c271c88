"""What one episode of a table takes in memory until it is written, and the limit on it; refuses one that takes more."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from offline_cli.errors import MemoryLimitExceeded
from offline_cli.formats.memory import WRITTEN

__all__ = ["Footprint"]

JOINED: Final = 2  # times the bytes of its rows: as they were read, and joined


@dataclass(slots=True)
class Footprint:
    """Bytes that the rows of one episode take, counted as they come."""

    limit: int
    kept: Collection[str] = ()  # columns that become arrays of the episode
    rows: int = 0  # bytes of the rows so far
    taken: int = 0  # with all that is made of them

    def add(self, rows: pa.Table) -> None:
        """Count these rows too."""
        kept = sum(int(rows.column(name).nbytes) for name in self.kept if name in rows.column_names)
        self.rows += int(rows.nbytes)
        self.taken += max(JOINED * int(rows.nbytes), WRITTEN * kept)

    @property
    def is_too_large(self) -> bool:
        """Whether they are all that fits, and more."""
        return self.taken > self.limit

    def begun(self) -> Footprint:
        """That of the next episode, before its first row."""
        return Footprint(self.limit, self.kept)

    def error(self, *, where: str, fix: str) -> MemoryLimitExceeded:
        """For rows that are too large."""
        return MemoryLimitExceeded(
            f"the rows of one episode take more than {self.rows / 1e6:,.0f} MB, which is too much for the memory limit",
            where=where,
            fix=f"raise --memory-limit, or {fix}",
        )
