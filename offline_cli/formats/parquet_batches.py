"""One Parquet file as record batches of bounded size, in bounded memory; refuses nothing: Arrow's errors go to the caller.

Arrow's own way to read ahead keeps what it has read of all row groups until the last one is done: as much memory as the file is
large. Row groups are read here in bunches of a few MiB, of remote files fetched beforehand; a row group that is larger by
itself is read page by page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from offline_cli.scopes import Scope
from offline_cli.storage.arrow_reading import check_footer, threads_may_read
from offline_cli.storage.parquet_safety import file_ranges
from offline_cli.storage.remote_files import expect, ready
from offline_cli.storage.timeouts import reading_pool

__all__ = ["one_ahead", "parquet_batches", "validated"]

AT_ONCE = 32 << 20  # packed bytes of the wanted columns
PAGES = 1 << 20  # packed bytes of one column, in a row group that is larger


def parquet_batches(
    stream: Any,
    *,
    columns: Sequence[str] | None,
    rows: int,
    at_once: int = AT_ONCE,
    apart: bool = False,
    use_threads: bool = True,
) -> Iterator[pa.RecordBatch]:
    """All rows of an open file, in order, in batches of at most `rows` of them. `columns`: top-level names; None: all.

    `apart`: no batch has rows of two row groups, for a file whose row groups pack so well that many of them are small together.
    `stream`: see `arrow_file`, which gives one that Arrow's threads may read.
    """
    threaded = threads_may_read(stream)
    metadata = pq.read_metadata(stream)
    check_footer(metadata)
    bunches = list(_bunches(metadata, columns, 0 if apart else at_once))
    together = [group for groups, small in bunches if small for group in groups]
    expect(stream, lambda: file_ranges(metadata, columns, groups=together))
    for groups, small in bunches:
        if small:
            ready(stream, partial(file_ranges, metadata, columns, groups=groups))
        parquet = pq.ParquetFile(
            stream,
            metadata=metadata,
            pre_buffer=small and threaded,
            buffer_size=0 if small else PAGES,
            page_checksum_verification=True,
        )
        yield from parquet.iter_batches(
            batch_size=rows, row_groups=groups, columns=columns, use_threads=use_threads and threaded
        )


def one_ahead(batches: Iterator[pa.RecordBatch], scope: Scope) -> Iterator[pa.RecordBatch]:
    """The same, validated, each of them read by a thread of `scope` while the one before it is worked on."""
    valid = map(validated, batches)
    with scope.part() as held:
        pool = held.enter(reading_pool(1))
        coming = pool.submit(next, valid, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, valid, None)
            yield batch


def validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` itself. Raises ArrowInvalid for text that is not UTF-8, and for lists whose places go back."""
    batch.validate(full=True)
    return batch


def _bunches(metadata: Any, columns: Sequence[str] | None, at_once: int) -> Iterator[tuple[list[int], bool]]:
    """(row groups, whether they are to be read at once): consecutive ones that are small together, or one that is not."""
    bunch: list[int] = []
    room = at_once
    for number in range(metadata.num_row_groups):
        size = _packed_bytes(metadata.row_group(number), columns)
        if bunch and size > room:
            yield bunch, True
            bunch, room = [], at_once
        if size > at_once:
            yield [number], False
        else:
            bunch.append(number)
            room -= size
    if bunch:
        yield bunch, True


def _packed_bytes(group: Any, columns: Sequence[str] | None) -> int:
    chunks = [group.column(i) for i in range(group.num_columns)]
    if columns is not None:  # a name may hold dots itself
        wanted = tuple(f"{name}." for name in columns)
        chunks = [chunk for chunk in chunks if f"{chunk.path_in_schema}.".startswith(wanted)]
    return sum(chunk.total_compressed_size for chunk in chunks)
