"""Parquet files as record batches in bounded memory: large ones row group by row group, small ones many at a time.

* `parquet_batches`: Arrow's own read-ahead keeps what it has read of all row groups until the last one is done: as much memory
  as the file is large. Row groups are read here in bunches of a few MiB, of remote files prefetched; a row group that is larger
  by itself is read page by page. Arrow's errors go to the caller.
* `read_small_files`: files of a few rows, by the hundred thousand, read from memory by threads or processes. What such a file
  costs is not its bytes but everything around them: an open Python file, a task handed to a thread, a table of its own. So a
  thread is given many files at a time, reads each with one call, and joins their tables. It holds Python's lock for most of
  that, and a second thread hardly helps: of very many files, processes read their share.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa

from offline_cli.engines.mapped import helpers, mapped
from offline_cli.errors import OfflineCliError
from offline_cli.parquet.bounds import check_footer, chunks_of
from offline_cli.parquet.extension_types import ParquetFile
from offline_cli.parquet.shards import threads_may_read
from offline_cli.scopes import Scope
from offline_cli.storage.locations import Location
from offline_cli.storage.timeouts import ReadingPool

__all__ = [
    "AHEAD",
    "FewRows",
    "ReadFile",
    "Unread",
    "in_one_chunk",
    "one_ahead",
    "parquet_batches",
    "read_small_files",
    "same_columns",
    "small_sizes",
    "validated",
]

AT_ONCE = 32 << 20  # packed bytes of the wanted columns
PAGES = 1 << 20  # packed bytes of one column, in a row group that is larger

SMALL: Final = 64 << 10  # bytes that such files have on average
LARGEST: Final = 512 << 10  # bytes of one that is read at once, and parsed from memory
BUNCH: Final = 256  # files that are given to a thread at a time,
BUNCH_BYTES: Final = 1 << 20  # and how many bytes of them,
ROOM: Final = 16 << 20  # which may unfold to so many
FEW: Final = 256  # files for which it does not pay
MANY: Final = 5000  # files from which on processes pay
SLOW_START: Final = 16  # files at once are one in so many of those before: a reader that stops early has not read many of them
THREADS: Final = 2
AHEAD: Final = 4  # bunches that wait for their turn

ReadFile = Callable[[Location, bytes], pa.Table | None]
"""The table of a file, of which these are the bytes; None: it is to be read in parts. Raises OfflineCliError."""


def parquet_batches(
    stream: Any,
    *,
    columns: Sequence[str] | None,
    rows: int,
    at_once: int = AT_ONCE,
    apart: bool = False,
    use_threads: bool = True,
    metadata: Any = None,
) -> Iterator[pa.RecordBatch]:
    """All rows of an open file, in order, in batches of at most `rows` of them. `columns`: top-level names; None: all.

    `metadata`: its footer, if that has been read.

    `apart`: no batch has rows of two row groups, for a file whose row groups pack so well that many of them are small together.
    `stream`: see `arrow_file`, which gives one that Arrow's threads may read.
    """
    threaded = threads_may_read(stream)
    metadata = ParquetFile(stream).metadata if metadata is None else metadata
    check_footer(metadata)
    for groups, small in _bunches(metadata, columns, 0 if apart else at_once):
        parquet = ParquetFile(
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
        pool = held.enter(ReadingPool(1))
        coming = pool.submit(next, valid, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, valid, None)
            yield batch


def validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` itself. Raises ArrowInvalid for text that is not UTF-8, and for lists whose offsets decrease."""
    batch.validate(full=True)
    return batch


def _bunches(metadata: Any, columns: Sequence[str] | None, at_once: int) -> Iterator[tuple[list[int], bool]]:
    """(row groups, whether they are to be read at once): consecutive ones that are small together, or one that is not."""
    bunch: list[int] = []
    room = at_once
    for number in range(metadata.num_row_groups):
        size = sum(chunk.total_compressed_size for _, chunk in chunks_of(metadata, columns, [number]))
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


@dataclass(slots=True)
class FewRows:
    """The rows of files that follow each other, all of the same columns."""

    table: pa.Table
    urls: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # of each file
    sizes: list[int] = field(default_factory=list)  # bytes of each, as it is stored
    memory: list[int] = field(default_factory=list)  # bytes of the rows of each


@dataclass(frozen=True, slots=True)
class Unread:
    """A file to be read by itself."""

    number: int  # among those of its bunch


Found = FewRows | Unread | OfflineCliError


def small_sizes(files: Sequence[Location]) -> list[int] | None:
    """The bytes of each, where these are many small files of this machine. Raises StorageError."""
    if len(files) < FEW or not all(file.is_local for file in files):
        return None
    sizes = [file.size() for file in files]
    return sizes if sum(sizes) <= SMALL * len(files) else None


def read_small_files(
    files: Sequence[Location],
    sizes: Sequence[int],
    read: ReadFile,
    *,
    workers: int,
    first_rows: int | None = None,
    room: int = ROOM,
    scope: Scope,
) -> Iterator[FewRows | Location | OfflineCliError]:
    """What `files` hold, in their order; a file itself where it is to be read alone; what was wrong with one.

    `sizes`: as `small_sizes` says. `read` can be pickled. `workers`: processes or threads at most. `first_rows`:
    about so many are wanted. `room`: bytes that the files given to a thread at a time may unfold to; up to `AHEAD` times as
    many wait.
    """
    room = min(room, ROOM)
    processes = 0 if len(files) < MANY or (first_rows or MANY) < MANY else helpers(workers, None)
    if "ray" in sys.modules:  # whose types a worker does not know, so that its tables would be others
        processes = 0
    waiting: deque[Sequence[Location]] = deque()

    def bunches() -> Iterator[Sequence[Location]]:
        for bunch in _bunches_of_files(files, sizes):
            waiting.append(bunch)
            yield bunch

    read_all = partial(_read_bunch, read, room)
    with scope.part() as held:
        found = (
            held.enter(mapped(read_all, bunches(), workers=processes))
            if processes
            else _by_threads(read_all, bunches(), min(THREADS, workers), held)
        )
        for outcomes in found:
            bunch = waiting.popleft()
            for outcome in outcomes:
                yield bunch[outcome.number] if isinstance(outcome, Unread) else outcome


def _bunches_of_files(files: Sequence[Location], sizes: Sequence[int]) -> Iterator[Sequence[Location]]:
    first = 0
    while first < len(files):
        most, size = max(1, min(BUNCH, first // SLOW_START)), 0
        stop = first
        while stop < min(len(files), first + most) and (stop == first or size <= BUNCH_BYTES):
            size += sizes[stop]
            stop += 1
        yield files[first:stop]
        first = stop


def _by_threads(
    read: Callable[[Sequence[Location]], list[Found]], bunches: Iterator[Sequence[Location]], threads: int, scope: Scope
) -> Iterator[list[Found]]:
    pool = scope.enter(ReadingPool(threads))
    ahead: deque[Future[list[Found]]] = deque()
    for bunch in bunches:
        ahead.append(pool.submit(read, bunch))
        if len(ahead) >= AHEAD:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()


def _read_bunch(read: ReadFile, room: int, files: Sequence[Location]) -> list[Found]:
    found = _FoundRows()
    for number, file in enumerate(files):
        try:
            data = _all_bytes(file)
            table = read(file, data) if data and room > 0 else None
        except OfflineCliError as error:
            found.add_other(error)
            continue
        if table is None:
            found.add_other(Unread(number))
        elif table.num_rows:
            room -= found.add(in_one_chunk(table), file, len(data))
    return found.ended()


def _all_bytes(file: Location) -> bytes:
    """Of a small file; none of a larger or an empty one. Raises StorageError."""
    data, size = file.start(LARGEST)
    return data if len(data) == size else b""


class _FoundRows:
    """What is found of files, one after the other."""

    def __init__(self) -> None:
        self._found: list[Found] = []
        self._tables: list[pa.Table] = []  # of the last of these, where that is rows

    def add(self, table: pa.Table, file: Location, size: int) -> int:
        """Add the rows of a file of `size` bytes, in one chunk; gives their bytes in memory."""
        memory = int(table.nbytes)
        if not self._tables or not same_columns(self._tables[0], table):
            self.ended()
            self._found.append(FewRows(table))
        self._tables.append(table)
        last = self._found[-1]
        assert isinstance(last, FewRows), "tables are those of the last ones"
        last.urls.append(file.url)
        last.rows.append(table.num_rows)
        last.sizes.append(size)
        last.memory.append(memory)
        return memory

    def add_other(self, found: Unread | OfflineCliError) -> None:
        self.ended()
        self._found.append(found)

    def ended(self) -> list[Found]:
        """All, after which other rows follow."""
        _join(self._found, self._tables)
        return self._found


def _join(found: list[Found], tables: list[pa.Table]) -> None:
    """Make one table of `tables`, which are those of the last one found; none are left."""
    if len(tables) > 1:
        last = found[-1]
        assert isinstance(last, FewRows), "tables are those of the last ones"
        schema = tables[0].schema
        plain = pa.concat_tables([table.replace_schema_metadata(None) for table in tables])
        last.table = plain.combine_chunks().replace_schema_metadata(schema.metadata)
    tables.clear()


def same_columns(left: pa.Table, right: pa.Table) -> bool:
    """Also by the metadata of fields, where Ray keeps the shapes of tensors."""
    if not left.schema.equals(right.schema):
        return False
    return all((mine.metadata or {}) == (theirs.metadata or {}) for mine, theirs in zip(left.schema, right.schema, strict=True))


def in_one_chunk(table: pa.Table) -> pa.Table:
    """The same rows; a table without rows may have no chunks."""
    return table.combine_chunks() if any(column.num_chunks > 1 for column in table.columns) else table
