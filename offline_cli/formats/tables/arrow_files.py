"""Parquet and Arrow IPC as record batches of bounded size; refuses nothing: Arrow's own errors go to the caller."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from offline_cli.formats.parquet_batches import one_ahead, validated
from offline_cli.formats.parquet_batches import parquet_batches as bounded_batches
from offline_cli.formats.tables.arrow_messages import (
    ArrowBound,
    CheckedStream,
    buffers_of,
    check_arrow_file,
    check_arrow_stream,
)
from offline_cli.formats.tables.json_files import holding
from offline_cli.scopes import Scope
from offline_cli.storage.arrow_reading import arrow_file, check_footer, without_objects
from offline_cli.storage.parquet_safety import refuse_bomb
from offline_cli.storage.parquet_statistics import chunk_statistics

__all__ = ["arrow_batches", "arrow_schema", "parquet_batches", "parquet_nullable", "parquet_schema"]

BUFFER = 1 << 16  # bytes of a stream
THREADED = 8 << 20  # bytes of a chunk from which on threads read columns, and the next chunk: each of them takes memory


def parquet_schema(stream: Any) -> pa.Schema:
    """The columns of a Parquet file."""
    return pq.ParquetFile(stream, pre_buffer=False).schema_arrow


def parquet_nullable(stream: Any) -> set[str]:
    """The flat columns that have a null, or do not say that they have none."""
    metadata = pq.ParquetFile(stream, pre_buffer=False).metadata
    names = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    groups = chunk_statistics(stream, metadata)
    return {name for chunks in groups for name, said in zip(names, chunks, strict=True) if said.null_count != 0}


def parquet_batches(
    stream: Any, columns: Collection[str] | None, chunk_bytes: int, max_rows: int, *, size: int, url: str, scope: Scope
) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Each batch, and the share of the rows that have been read with it. `size`: of the file, as it is stored."""
    parquet = pq.ParquetFile(stream, pre_buffer=False)
    check_footer(parquet.metadata)
    total = parquet.metadata.num_rows
    wanted = holding(parquet.schema_arrow.names, columns)
    unfolded = refuse_bomb(lambda: nullcontext(stream), parquet.metadata, lambda: size, where=url, columns=wanted)
    rows = max(1, min(max_rows, total * chunk_bytes // max(1, unfolded.nbytes)))
    done = 0
    threads = chunk_bytes >= THREADED
    with scope.part() as held:
        source = held.enter(arrow_file(stream))
        batches = bounded_batches(
            source, columns=wanted, rows=rows, at_once=2 * chunk_bytes, apart=unfolded.apart, use_threads=threads
        )
        for batch in one_ahead(batches, held) if threads else map(validated, batches):
            done += batch.num_rows
            if batch.num_rows:
                yield without_objects(batch), done / total


def arrow_schema(stream: Any, *, is_stream: bool) -> pa.Schema:
    """The columns of an Arrow IPC file or stream."""
    return (pa.ipc.open_stream(stream) if is_stream else pa.ipc.open_file(stream)).schema


def arrow_batches(
    stream: Any, columns: Collection[str] | None, chunk_bytes: int, max_rows: int, *, is_stream: bool, bound: ArrowBound
) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Each batch, cut where it is too large, and the share of the batches that have been read with it."""
    if is_stream:
        seekable = stream.seekable()
        source = stream if seekable else io.BufferedReader(CheckedStream(stream, bound), BUFFER)
        reader = pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=False))
        wanted = holding(reader.schema.names, columns)
        while True:
            if seekable:
                check_arrow_stream(stream, bound)
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            yield from _cut(batch.select(wanted), 0.0, chunk_bytes, max_rows)
    schema = pa.ipc.open_file(stream).schema
    numbers = {name: number for number, name in enumerate(schema.names)}
    fields = [numbers[name] for name in holding(numbers, columns)]
    chosen = buffers_of(schema, fields)
    check_arrow_file(stream, None, bound)
    stream.seek(0)
    reader = pa.ipc.open_file(stream, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False))
    for number in range(reader.num_record_batches):
        share = (number + 1) / reader.num_record_batches
        check_arrow_file(stream, number, bound, chosen)
        yield from _cut(reader.get_batch(number), share, chunk_bytes, max_rows)


def _cut(batch: pa.RecordBatch, share: float, chunk_bytes: int, max_rows: int) -> Iterator[tuple[pa.RecordBatch, float]]:
    batch.validate(full=True)
    rows = max(1, min(max_rows, batch.num_rows * chunk_bytes // max(1, batch.nbytes)))
    if rows >= batch.num_rows:
        yield without_objects(batch), share
        return
    for first in range(0, batch.num_rows, rows):
        yield without_objects(_copied(batch.slice(first, rows))), share


def _copied(part: pa.RecordBatch) -> pa.RecordBatch:
    """Memory of its own: a view of one column would keep the whole batch, all columns of the file, in memory."""
    return pa.RecordBatch.from_arrays([pa.concat_arrays([column]) for column in part.columns], schema=part.schema)
