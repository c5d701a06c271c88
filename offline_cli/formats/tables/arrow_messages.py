"""Parquet and Arrow IPC as record batches of bounded size, with a bound on what the messages of Arrow IPC unfold to.

* `ArrowBound`, `check_arrow_file`, `CheckedStream`: Arrow allocates whatever a message claims of its buffers, 33 GB from 6 kB
  of file, and unpacks a thousandth of that from zeros. So the metadata of each message, a flatbuffer, is checked first: the
  lengths of its buffers, and where they are compressed, the lengths that they begin with. Messages that take too much raise
  before they are read. Source: https://arrow.apache.org/docs/format/Columnar.html, "Serialization and Interprocess
  Communication".
* `parquet_batches`, `arrow_batches`: record batches; Arrow's own errors go to the caller.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from offline_cli.errors import PROBLEM, MemoryLimitExceeded, UnsafeData
from offline_cli.formats.small_parquet import one_ahead, validated
from offline_cli.formats.small_parquet import parquet_batches as bounded_batches
from offline_cli.formats.tables.json_files import holding
from offline_cli.parquet import bounds
from offline_cli.parquet.bounds import check_bound, check_footer
from offline_cli.parquet.extension_types import ParquetFile, without_objects
from offline_cli.parquet.shards import arrow_file
from offline_cli.scopes import Scope

__all__ = [
    "ArrowBound",
    "CheckedStream",
    "arrow_batches",
    "arrow_schema",
    "buffers_of",
    "check_arrow_file",
    "check_arrow_stream",
    "parquet_batches",
    "parquet_schema",
]

DICTIONARY: Final = 2
RECORD_BATCH: Final = 3
MARK: Final = b"\xff\xff\xff\xff"  # before the length of a message's metadata, since Arrow 0.15
FOOTER_END: Final = 10  # bytes of the footer's length and the magic after it
BREAKS_OFF: Final = "a message breaks off"
PIECE: Final = 1 << 20  # bytes of a stream read at a time, however many a message claims

UNREADABLE: Final = (struct.error, ValueError, IndexError, OverflowError)

ReadAt = Callable[[int, int], bytes]
Chosen = Collection[range] | None  # numbers of buffers; None: all

BUFFER = 1 << 16  # bytes of a stream
THREADED = 8 << 20  # bytes of a chunk from which on threads read columns, and the next chunk: each of them takes memory


@dataclass(frozen=True, slots=True)
class ArrowBound:
    """What one message may take."""

    url: str
    size: int  # of the file, as it is stored
    memory_limit: int  # bytes

    def check(self, metadata: bytes, body: ReadAt, chosen: Chosen = None) -> int:
        """Bytes of the message's body, of which `body` gives any; only the `chosen` buffers of it are read.

        Raises UnsafeData, MemoryLimitExceeded, ArrowInvalid.
        """
        try:
            needs, length = _needed(metadata, body, chosen)
        except UNREADABLE as error:
            raise pa.ArrowInvalid(f"the metadata of a message cannot be read: {error}") from error
        if needs > max(bounds.MAX_BYTES, bounds.MAX_RATIO * self.size):
            what = f"{self.size} bytes of Arrow that unfold to at least {needs >> 20} MiB"
            fix = "write the file again from its source"
            raise UnsafeData(what, where=self.url, fix=fix, details={PROBLEM: "unreadable-file"})
        if needs > self.memory_limit:
            limit = f"the memory limit of {self.memory_limit >> 20} MiB"
            what = f"a record batch takes {needs >> 20} MiB, more than {limit}"
            raise MemoryLimitExceeded(what, where=self.url, fix="raise --memory-limit, or write smaller record batches")
        return length


def buffers_of(schema: pa.Schema, fields: Collection[int]) -> Chosen:
    """The buffers that a record batch has of the top-level `fields`; all, where their number differs from batch to batch."""
    counts = [_buffers(kind) for kind in schema.types]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts) or not fields:  # to Arrow, no field means all of them
        return None
    ends = np.cumsum(known).tolist()
    return [range(ends[number] - known[number], ends[number]) for number in sorted(fields)]


def _buffers(kind: Any) -> int | None:
    """Of a pa.DataType, its children's with them; None where that is not known from the type alone."""
    if isinstance(kind, pa.BaseExtensionType):
        return _buffers(kind.storage_type)
    types = pa.types
    if types.is_null(kind):
        return 0
    if any(is_of(kind) for is_of in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)):
        return 3
    if any(is_of(kind) for is_of in (types.is_primitive, types.is_decimal, types.is_fixed_size_binary, types.is_dictionary)):
        return 2
    if any(is_of(kind) for is_of in (types.is_list, types.is_large_list, types.is_map)):
        own = 2
    elif types.is_struct(kind) or types.is_fixed_size_list(kind):
        own = 1
    else:
        return None
    if types.is_map(kind):
        return _plus(own + 1, (kind.key_type, kind.item_type))
    return _plus(own, [kind.field(number).type for number in range(kind.num_fields)])


def _plus(own: int, children: Collection[Any]) -> int | None:
    total = own
    for child in children:
        count = _buffers(child)
        if count is None:
            return None
        total += count
    return total


def check_arrow_file(stream: Any, number: int | None, bound: ArrowBound, chosen: Chosen = None) -> None:
    """Check the `chosen` buffers of record batch `number` of an open Arrow file; None: its dictionaries.

    Raises as `ArrowBound.check`.
    """
    try:
        size = stream.seek(0, io.SEEK_END)
        (length,) = struct.unpack("<i", _at(stream, size - FOOTER_END, 4))
        footer = _at(stream, size - FOOTER_END - length, length) if 0 < length < size else b""
        blocks = _vector(footer, _root(footer), 2 if number is None else 3, "<i8", 3)
        for offset, sizes, _ in blocks.tolist() if number is None else [blocks[number].tolist()]:
            length = sizes & 0xFFFFFFFF  # of the metadata; padding follows
            metadata = _at(stream, offset, length) if 0 <= offset <= size - length else b""
            bound.check(metadata[8 if metadata[:4] == MARK else 4 :], partial(_at_from, stream, offset + length), chosen)
    except UNREADABLE as error:
        raise pa.ArrowInvalid(f"the footer cannot be read: {error}") from error


def check_arrow_stream(stream: Any, bound: ArrowBound) -> None:
    """Check the messages up to the next record batch of an open seekable Arrow stream; it stays where it is.

    Raises as `ArrowBound.check`.
    """
    began = at = stream.tell()
    size = stream.seek(0, io.SEEK_END)
    try:
        while head := _at(stream, at, 8):
            at += 8 if head[:4] == MARK else 4
            (length,) = struct.unpack_from("<i", head, 4 if head[:4] == MARK else 0)
            if not length:
                break
            if not 0 < length <= size - at:
                raise pa.ArrowInvalid(BREAKS_OFF)
            metadata = _at(stream, at, length)
            body = bound.check(metadata, partial(_at_from, stream, at + length))
            at += length + body
            if not 0 <= body <= size - at + body:
                raise pa.ArrowInvalid(BREAKS_OFF)
            if _kind(metadata) == RECORD_BATCH:
                break
    except UNREADABLE as error:
        raise pa.ArrowInvalid(f"the metadata of a message cannot be read: {error}") from error
    finally:
        stream.seek(began)


class CheckedStream(io.RawIOBase):
    """An Arrow stream that is unpacked while it is read: each message is held, and checked, before it is passed on.

    Raises as `ArrowBound.check`.
    """

    def __init__(self, stream: Any, bound: ArrowBound) -> None:
        super().__init__()
        self._stream, self._bound = stream, bound
        self._message = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._message:
            self._message = memoryview(self._next())
        into = memoryview(buffer).cast("B")
        part = self._message[: len(into)]
        into[: len(part)] = part
        self._message = self._message[len(part) :]
        return len(part)

    def _next(self) -> bytes:
        """The next message as it stands, framing and body; nothing at the end."""
        head = self._exactly(4)
        head += self._exactly(4) if head == MARK else b""
        if len(head) < 4:
            return head
        (length,) = struct.unpack("<i", head[-4:])
        metadata = self._exactly(max(0, length))
        if length <= 0:
            return head
        if len(metadata) < length:
            raise pa.ArrowInvalid(BREAKS_OFF)
        try:
            length = _body_length(metadata)
        except UNREADABLE as error:
            raise pa.ArrowInvalid(f"the metadata of a message cannot be read: {error}") from error
        body = self._exactly(max(0, length))
        if len(body) != length:
            raise pa.ArrowInvalid(BREAKS_OFF)
        self._bound.check(metadata, lambda at, count: body[at : at + count])
        return head + metadata + body

    def _exactly(self, count: int) -> bytes:
        """So many bytes, or as many as there are."""
        parts = []
        while count and (part := bytes(self._stream.read(min(count, PIECE)))):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def _at(stream: Any, offset: int, count: int) -> bytes:
    stream.seek(offset)
    return bytes(stream.read(count))


def _at_from(stream: Any, start: int, offset: int, count: int) -> bytes:
    return _at(stream, start + offset, count)


def _kind(metadata: bytes) -> int:
    field = _field(metadata, _root(metadata), 1)
    return metadata[field] if field else 0


def _body_length(metadata: bytes) -> int:
    field = _field(metadata, _root(metadata), 3)
    return int(struct.unpack_from("<q", metadata, field)[0]) if field else 0


def _needed(metadata: bytes, body: ReadAt, chosen: Chosen = None) -> tuple[int, int]:
    """Bytes that the `chosen` buffers of a message take in memory, and those of its body."""
    message = _root(metadata)
    kind = _kind(metadata)
    length = _body_length(metadata)
    header = _follow(metadata, message, 2)
    if kind == DICTIONARY and header:
        header = _follow(metadata, header, 1)
    if kind not in (DICTIONARY, RECORD_BATCH) or not header:
        return 0, length
    buffers = _vector(metadata, header, 2, "<i8", 2)
    if chosen is not None and kind == RECORD_BATCH:
        buffers = np.concatenate([buffers[part.start : part.stop] for part in chosen])
    if not _field(metadata, header, 3):
        return int(np.maximum(buffers[:, 1], 0).sum(dtype=object) or 0), length
    total = 0
    for offset, size in buffers.tolist():
        if size >= 8:
            (unpacked,) = struct.unpack("<q", body(offset, 8))
            total += size if unpacked < 0 else unpacked
    return total, length


# ---- flatbuffers: a table begins with the distance back to the places of its fields ----


def _root(data: bytes) -> int:
    return int(struct.unpack_from("<I", data)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table is; 0 where it is left out."""
    places = table - struct.unpack_from("<i", data, table)[0]
    if places < 0:
        raise ValueError("a table without fields")
    place = 4 + 2 * number
    if place >= struct.unpack_from("<H", data, places)[0]:
        return 0
    offset = struct.unpack_from("<H", data, places + place)[0]
    return table + offset if offset else 0


def _follow(data: bytes, table: int, number: int) -> int:
    """Where the table is that a field names; 0 where it is left out."""
    field = _field(data, table, number)
    return field + int(struct.unpack_from("<I", data, field)[0]) if field else 0


def _vector(data: bytes, table: int, number: int, dtype: str, width: int) -> Any:
    """(N, width) numbers of a vector of structs."""
    start = _follow(data, table, number)
    count = struct.unpack_from("<I", data, start)[0] if start else 0
    return np.frombuffer(data, dtype, count * width, start + 4).reshape(count, width) if count else np.zeros((0, width), dtype)


def parquet_schema(stream: Any) -> pa.Schema:
    """The columns of a Parquet file."""
    return ParquetFile(stream, pre_buffer=False).schema_arrow


def parquet_batches(
    stream: Any, columns: Collection[str] | None, chunk_bytes: int, max_rows: int, *, size: int, url: str, scope: Scope
) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Each batch, and the share of the rows that have been read with it. `size`: of the file, as it is stored."""
    parquet = ParquetFile(stream, pre_buffer=False)
    check_footer(parquet.metadata)
    total = parquet.metadata.num_rows
    wanted = holding(parquet.schema_arrow.names, columns)
    unfolded = check_bound(url, lambda: nullcontext(stream), parquet.metadata, size=size, columns=wanted)
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
