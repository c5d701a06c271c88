"""Where a table is cut into row groups, so that readers take each of them; refuses none, but writes some without compression.

Readers refuse a row group that unfolds beyond the bound of `parquet_bombs`. So a row group that they would refuse, which is
found out by writing it into memory and asking the same bound, is cut into ones that unfold to less. Where a single row is
beyond, an episode of hundreds of MiB in which nothing moves for instance, its shard is written without compression and
dictionaries: no manifest is needed then to know that it is no bomb. All other tables are cut, and written, as they always were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import UnsafeData
from offline_cli.storage import parquet_bombs
from offline_cli.storage.blocks import BLOCK_BYTES
from offline_cli.storage.parquet_bombs import in_memory_bytes, refuse_bomb
from offline_cli.storage.parquet_options import parquet_options

__all__ = ["Cuts", "cuts_of"]

SLACK: Final = 4  # a quarter of the bound is left to headers of pages and to what a dictionary takes beside its column
SURE: Final = 2  # so many times the bytes that readers ask for, packed in parts, are no fewer as a whole
PIECE: Final = 1 << 20  # bytes packed at a time
LIMITED: Final = ("lz4", "snappy", "none")  # no more than 255 times as much unfolds from what these pack
LIMIT: Final = 255


@dataclass(frozen=True, slots=True)
class Cuts:
    """How a table is written."""

    rows: tuple[int, ...]  # of each row group, in order
    is_plain: bool  # without compression and dictionaries


def cuts_of(table: Any, compression: str) -> Cuts:
    """The row groups of a pa.Table; the same for the same table."""
    if not table.num_rows:
        return Cuts((0,), is_plain=False)
    usual = _usual_rows(table)
    starts = range(0, table.num_rows, usual)
    counts = [min(usual, table.num_rows - first) for first in starts]
    room = parquet_bombs.MAX_BYTES - parquet_bombs.MAX_BYTES // SLACK
    if 16 * table.nbytes + 16 * table.num_columns * table.num_rows <= room:  # a bit counts as a byte, a text twice
        return Cuts(tuple(counts), is_plain=False)
    sizes = _row_sizes(table)
    if _largest(sizes, usual) <= room:
        return Cuts(tuple(counts), is_plain=False)
    rows: list[int] = []
    for first, count in zip(starts, counts, strict=True):
        if sizes[first : first + count].sum() <= room or not _is_refused(table.slice(first, count), compression):
            rows.append(count)
            continue
        for size, number in _smaller(sizes[first : first + count], room):
            at = sum(rows)
            if size > room and (count == 1 or _is_refused(table.slice(at, 1), compression)):
                return Cuts(tuple(counts), is_plain=True)
            rows.append(number)
    return Cuts(tuple(rows), is_plain=False)


def _usual_rows(table: Any) -> int:
    """All rows of a pa.Table in one group, unless it is large, as one of a single long episode or of images may be."""
    return max(1, table.num_rows if table.nbytes <= 2 * BLOCK_BYTES else int(table.num_rows * BLOCK_BYTES / table.nbytes))


def _row_sizes(table: Any) -> NDArray[np.int64]:
    """(N,) bytes in memory of each row, as readers count them."""
    sizes = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        sizes += np.concatenate([in_memory_bytes(chunk) for chunk in column.chunks])
    return sizes


def _largest(sizes: NDArray[np.int64], rows: int) -> int:
    """Bytes of the largest group of `rows` rows."""
    return int(np.add.reduceat(sizes, np.arange(0, len(sizes), rows)).max())


def _smaller(sizes: NDArray[np.int64], room: int) -> Iterator[tuple[int, int]]:
    """(bytes, rows) of consecutive groups of at most `room` bytes, or of one row."""
    size = count = 0
    for row in sizes.tolist():
        if count and size + row > room:
            yield size, count
            size = count = 0
        size, count = size + row, count + 1
    yield size, count


def _is_refused(group: Any, compression: str) -> bool:
    """Whether readers would refuse a pa.Table written as one row group; told by its first rows where these take enough."""
    total = int(_row_sizes(group).sum())
    enough = SURE * total // parquet_bombs.MAX_RATIO
    if group.num_rows == 1 and Columns.ITEM in group.column_names:
        if compression in LIMITED and parquet_bombs.MAX_RATIO > LIMIT:
            return False
        if compression not in LIMITED and _packs_to(group.column(Columns.ITEM), compression, enough) > enough:
            return False
        return _written(group, compression)[1]
    for share in (64, 16, 4):
        if group.num_rows >= 2 * share and _written(group.slice(0, group.num_rows // share), compression)[0] > enough:
            return False
    return _written(group, compression)[1]


def _packs_to(item: Any, compression: str, enough: int) -> int:
    """Bytes that the one value of a pa.ChunkedArray becomes, no longer counted once they are more than `enough`."""
    (chunk,) = item.chunks
    _, offsets, data = chunk.buffers()
    first, last = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + 2].tolist()
    sink = pa.MockOutputStream()
    with pa.CompressedOutputStream(sink, compression) as packed:
        for at in range(first, last, PIECE):
            packed.write(data.slice(at, min(PIECE, last - at)))
            if sink.size() > enough:
                break
    return int(sink.size())


def _written(group: Any, compression: str) -> tuple[int, bool]:
    """Bytes of a file of a pa.Table as one row group, and whether readers refuse it."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, group.schema, **parquet_options(group.schema, compression, is_plain=False)) as parquet:
        parquet.write_table(group.combine_chunks(), row_group_size=group.num_rows)
    file = sink.getvalue()
    try:
        refuse_bomb(lambda: nullcontext(pa.BufferReader(file)), pq.read_metadata(file), lambda: file.size, where="")
    except UnsafeData:
        return file.size, True
    return file.size, False
