"""Rows that do not fit into memory, sorted on disk: runs of them, each sorted by key, then all runs together key by key.

The keys that come out together are chosen so that their rows fit into memory, by what each key was seen to take. Refuses a key
that is too large by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.formats.tables.key_runs import NumberedRows
from offline_cli.formats.tables.sorted_rows import piece_ends, sorted_positions
from offline_cli.formats.tables.temp_blocks import TempBlock, TempBlocks

__all__ = ["TempRuns"]

KEY = "__key"  # the column of the numbers of keys, on disk only
MIN_BLOCK, MAX_BLOCK = 64 << 10, 1 << 20


@dataclass(slots=True)
class TempRuns:
    """Takes runs of rows, gives them back sorted by key; rows of one key in the order in which they came."""

    blocks: TempBlocks
    memory: int  # bytes for the blocks, one of each run, that are open while the runs are read
    _runs: list[list[_Block]] = field(default_factory=list)
    _sizes: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # (K,) bytes in memory of the rows of each key

    def add(self, rows: list[NumberedRows]) -> None:
        """Put a run of rows aside; empties the list."""
        table = pa.concat_tables([part.table for part in rows])
        keys = np.concatenate([part.keys for part in rows])
        rows.clear()
        table = table.combine_chunks()  # taking rows of many chunks is several times slower
        width = table.nbytes / len(keys)
        self._count(keys, width)
        positions = sorted_positions(keys, None)
        step = max(1, int(self._block_bytes() / max(1.0, width)))
        starts = range(0, len(keys), step)
        self._runs.append([self._written(table, keys, positions[first : first + step]) for first in starts])

    def _block_bytes(self) -> int:
        """Smaller from run to run, so that a block of each takes little together however many there come to be."""
        return min(MAX_BLOCK, max(MIN_BLOCK, self.memory // (2 * (len(self._runs) + 1))))

    def _count(self, keys: NDArray[np.int64], width: float) -> None:
        sizes = np.bincount(keys, minlength=len(self._sizes)).astype(np.float64) * width
        sizes[: len(self._sizes)] += self._sizes
        self._sizes = sizes

    def _written(self, table: pa.Table, keys: NDArray[np.int64], positions: NDArray[np.int64]) -> _Block:
        chosen = keys[positions]
        rows = table.take(pa.array(positions)).append_column(KEY, pa.array(chosen))
        return _Block(self.blocks.append(rows), int(chosen[0]))

    def groups(self, size: int) -> Iterator[Iterator[NumberedRows]]:
        """The rows of as many keys as take about `size` bytes, or of one that takes more; read each group to its end."""
        cursors = [_Cursor(self.blocks, run) for run in self._runs]
        stops = piece_ends(np.cumsum(self._sizes), size)
        self._sizes = np.zeros(0)  # no longer needed, and large where episodes are short
        for stop in stops:
            yield (rows for cursor in cursors for rows in cursor.below(stop))


@dataclass(frozen=True, slots=True)
class _Block:
    place: TempBlock
    first_key: int


class _Cursor:
    """One run, read on from key to key; holds one block of it."""

    def __init__(self, blocks: TempBlocks, run: Sequence[_Block]) -> None:
        self._blocks, self._run = blocks, run
        self._next = 0
        self._rest: NumberedRows | None = None  # of the block read last

    def below(self, stop: int) -> Iterator[NumberedRows]:
        """Those of the rows left whose key is below `stop`."""
        while True:
            if self._rest is None:
                if self._next == len(self._run) or self._run[self._next].first_key >= stop:
                    return
                self._rest = self._read()
            rows = self._rest
            cut = int(np.searchsorted(rows.keys, stop))
            self._rest = rows.slice(cut, len(rows.keys)) if cut < len(rows.keys) else None
            if cut:
                yield rows.slice(0, cut)
            if self._rest is not None:
                return

    def _read(self) -> NumberedRows:
        table = self._blocks.read(self._run[self._next].place)
        self._next += 1
        at = table.schema.get_field_index(KEY)
        return NumberedRows(table.remove_column(at), table.column(at).to_numpy())
