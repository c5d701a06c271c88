"""How a table is compressed so that readers believe its size: a long episode that hardly changes shrinks to next to nothing.

Readers take a file for a bomb that unfolds to more than `parquet_bombs.MAX_RATIO` times its bytes. zstd makes 7 KB of 100 MiB
of zeros; LZ4 reaches at most 255 bytes from one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from offline_cli.columns import Columns
from offline_cli.storage.parquet_bombs import MAX_BYTES, MAX_RATIO

__all__ = ["believable"]

UNBOUNDED: Final = ("zstd", "gzip", "brotli")  # may make less than a thousandth of what they compress
BOUNDED: Final = "lz4"
PIECE: Final = 1 << 20  # bytes
LEVELS: Final = {"zstd": 3}  # Arrow's own default finds less, outside of Parquet, than the Parquet writer does
MARGIN: Final = 4  # pieces are compressed alone, and without the other columns


def believable(table: Any, compression: str) -> str:
    """`compression`, or LZ4 where a packed episode in the pa.Table would be taken for a bomb."""
    if compression not in UNBOUNDED or table.nbytes <= MAX_BYTES or Columns.ITEM not in table.column_names:
        return compression
    items = (item for chunk in table.column(Columns.ITEM).chunks for item in _large_items(chunk))
    return BOUNDED if any(_shrinks(item, pa.Codec(compression, LEVELS.get(compression))) for item in items) else compression


def _large_items(chunk: Any) -> Iterator[Any]:
    """A pa.Buffer over each large value of a pa.BinaryArray, where it stands: a scalar would be a copy."""
    _, offsets, data = chunk.buffers()
    ends = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1].astype(np.int64)
    for first, size in zip(ends[:-1].tolist(), np.diff(ends).tolist(), strict=True):
        if size > MAX_BYTES:
            yield data.slice(first, size)


def _shrinks(item: Any, codec: Any) -> bool:
    """Whether a pa.Buffer becomes about a thousandth, or less; told by the first pieces where it does not."""
    enough, packed = item.size * MARGIN // MAX_RATIO, 0
    for first in range(0, item.size, PIECE):
        packed += len(codec.compress(item.slice(first, min(PIECE, item.size - first))))
        if packed > enough:
            return False
    return True
