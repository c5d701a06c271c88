"""Record batches of Arrow files, Arrow streams and Parquet files, each bounded in memory before it is used.

A batch of more than the memory limit raises MemoryLimitExceeded. Values of extension types that would be unpickled stay bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from offline_cli.errors import PROBLEM, MemoryLimitExceeded, UnsafeData
from offline_cli.parquet.bounds import check_footer
from offline_cli.parquet.extension_types import ParquetFile, without_objects
from offline_cli.scopes import Scope

__all__ = [
    "ArrowBound",
    "arrow_batches",
    "arrow_schema",
    "holding",
    "is_arrow_stream",
    "parquet_batches",
    "parquet_row_bytes",
    "parquet_schema",
    "wholes",
]

ARROW_STREAM: Final = b"\xff\xff\xff\xff"
LARGEST_FREE: Final = 64 << 20  # bytes that any file may unfold to
MOST_RATIO: Final = 1000  # times the bytes of the file, beyond that


@dataclass(frozen=True, slots=True)
class ArrowBound:
    """What one record batch may take."""

    url: str
    size: int  # of the file, as it is stored
    memory_limit: int  # bytes

    def check(self, needs: int) -> None:
        """Raise UnsafeData for a bomb, MemoryLimitExceeded for what is too large."""
        if needs > max(LARGEST_FREE, MOST_RATIO * self.size):
            what = f"{self.size} bytes of Arrow that unfold to at least {needs >> 20} MiB"
            raise UnsafeData(
                what, where=self.url, fix="write the file again from its source", details={PROBLEM: "unreadable-file"}
            )
        if needs > self.memory_limit:
            what = f"a record batch takes {needs >> 20} MiB, more than the memory limit of {self.memory_limit >> 20} MiB"
            raise MemoryLimitExceeded(what, where=self.url, fix="raise --memory-limit, or write smaller record batches")


def is_arrow_stream(head: bytes) -> bool:
    """Whether Arrow IPC that begins so is a stream, and no file."""
    return head[:4] == ARROW_STREAM


def wholes(name: str) -> Iterator[str]:
    """The column itself, and the structs that it may be a part of."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def holding(names: Iterable[str], flat: Collection[str] | None) -> list[str]:
    """Those of `names`, in their order, that hold any of the columns `flat`; all where that is None."""
    if flat is None:
        return list(names)
    wanted = {whole for name in flat for whole in wholes(name)}
    return [name for name in names if name in wanted]


def parquet_schema(stream: Any) -> pa.Schema:
    """The columns of a Parquet file."""
    return ParquetFile(stream, pre_buffer=False).schema_arrow


def parquet_row_bytes(stream: Any) -> float:
    """Bytes of a row, as they are in memory about."""
    metadata = ParquetFile(stream, pre_buffer=False).metadata
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return float(size / max(1, metadata.num_rows))


def parquet_batches(
    stream: Any, columns: Collection[str] | None, chunk_bytes: int, max_rows: int, *, size: int, url: str, scope: Scope
) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Each batch, and the share of the rows that have been read with it. `size`: of the file, as it is stored."""
    parquet = ParquetFile(stream, pre_buffer=False, page_checksum_verification=True)
    check_footer(parquet.metadata)
    metadata = parquet.metadata
    groups = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    wanted = holding(parquet.schema_arrow.names, columns)
    rows = max(1, min(max_rows, metadata.num_rows * chunk_bytes // max(1, sum(groups))))
    done = 0
    for batch in parquet.iter_batches(rows, columns=wanted, use_threads=chunk_bytes >= 8 << 20):
        batch.validate(full=True)
        done += batch.num_rows
        yield without_objects(batch), done / max(1, metadata.num_rows)


def arrow_schema(stream: Any, *, is_stream: bool) -> pa.Schema:
    """The columns of an Arrow IPC file or stream."""
    return (pa.ipc.open_stream(stream) if is_stream else pa.ipc.open_file(stream)).schema


def arrow_batches(
    stream: Any, columns: Collection[str] | None, chunk_bytes: int, max_rows: int, *, is_stream: bool, bound: ArrowBound
) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Each batch, cut where it is too large, and the share of the batches that have been read with it."""
    if is_stream:
        reader = pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(use_threads=False))
        wanted = holding(reader.schema.names, columns)
        for batch in reader:
            bound.check(batch.nbytes)
            yield from _cut(batch.select(wanted), 0.0, chunk_bytes, max_rows)
        return
    names = pa.ipc.open_file(stream).schema.names
    fields = [number for number, name in enumerate(names) if name in set(holding(names, columns))]
    stream.seek(0)
    file = pa.ipc.open_file(stream, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False))
    for number in range(file.num_record_batches):
        batch = file.get_batch(number)
        bound.check(batch.nbytes)
        yield from _cut(batch, (number + 1) / file.num_record_batches, chunk_bytes, max_rows)


def _cut(batch: pa.RecordBatch, share: float, chunk_bytes: int, max_rows: int) -> Iterator[tuple[pa.RecordBatch, float]]:
    batch.validate(full=True)
    rows = max(1, min(max_rows, batch.num_rows * chunk_bytes // max(1, batch.nbytes)))
    for first in range(0, batch.num_rows, rows):
        yield without_objects(batch.slice(first, rows)), share
