"""One Parquet file, read row group by row group (`shard_writing.py` writes them).

Every page carries a checksum, which reading verifies: without it, one byte in four could change in a shard and be read as
another value. Whatever the Parquet reader raises on a broken or hostile file becomes BadData that names the shard.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa

from offline_cli.errors import BadData, MemoryLimitExceeded, StorageNotFound, UnsafeData
from offline_cli.files.failures import storage_failures
from offline_cli.files.locations import Location
from offline_cli.files.prefetch import Ahead
from offline_cli.files.remote_files import expect, ready
from offline_cli.files.timeouts import ReadingPool
from offline_cli.parquet.arrow_reading import (
    ParquetFile,
    arrow_file,
    check_footer,
    extension_failures,
    threads_may_read,
    without_objects,
)
from offline_cli.parquet.safety import (
    MAX_BYTES,
    MEMORY_LIMIT,
    Opening,
    Unfolded,
    chunk_ranges,
    file_ranges,
    refuse_bomb,
    unfolded_bytes,
)
from offline_cli.parquet.shard_hashes import dropping

__all__ = [
    "OpenShard",
    "check_bound",
    "expect_row_groups",
    "opened",
    "opened_stream",
    "parsed",
    "read_row_groups",
]

FIX: Final = "restore the file from a copy, or write the dataset again from its source"
READING: Final = 3  # times what a row group takes once read: texts are collected in memory that doubles while they are copied


class OpenShard(ParquetFile):
    """A Parquet file, and the stream that it is read from. Raises what Arrow raises."""

    def __init__(self, stream: BinaryIO, source: Any = None) -> None:
        """`source`: what Arrow reads in place of `stream`."""
        source = stream if source is None else source
        self.is_threaded = threads_may_read(source)
        super().__init__(source, page_checksum_verification=True, pre_buffer=self.is_threaded)
        self._source = source
        self._by_numbers: ParquetFile | None = None
        self.stream = stream
        self.size = stream.seek(0, io.SEEK_END)  # bytes

    def row_groups(self, groups: Sequence[int], columns: Sequence[str] | None, numbered: Collection[str] = ()) -> Any:
        """The pa.Table of row groups; text that is `numbered` stays numbers and a dictionary, if it is that in the file."""
        reader, names = self, [field.name for field in self.schema_arrow if pa.types.is_string(field.type)] if numbered else []
        names = [name for name in names if name in numbered]
        if names:
            options = {"page_checksum_verification": True, "pre_buffer": self.is_threaded, "read_dictionary": names}
            reader = self._by_numbers = self._by_numbers or ParquetFile(self._source, metadata=self.metadata, **options)
        return reader.read_row_groups(groups, columns=columns, use_threads=self.is_threaded)


class opened:  # noqa: N801  reads as what it gives, as in contextlib
    """The Parquet file at a location, closed at the end; a context manager that does nothing when it is dropped.

    Entering it raises BadData where the shard is missing, has another size, or is not Parquet.
    """

    def __init__(self, location: Location, *, size: int | None = None) -> None:
        """`size`: the bytes it must have; None: any."""
        self._location, self._size, self._stack = location, size, ExitStack()

    def __enter__(self) -> OpenShard:
        with ExitStack() as stack:
            stream = stack.enter_context(opened_stream(self._location, size=self._size))
            shard = parsed(stream, self._location, stack.enter_context(arrow_file(stream)))
            self._stack = stack.pop_all()
        return shard

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)


def opened_stream(location: Location, *, size: int | None = None, ahead: Ahead | None = None) -> BinaryIO:
    """The bytes of the shard at `location`. Raises BadData where it is missing, or has another size than it must have."""
    try:
        stream = location.open(ahead)
    except StorageNotFound as err:
        raise _bad("the shard is missing", location) from err
    have = stream.seek(0, io.SEEK_END)
    if size is not None and have != size:
        stream.close()
        raise _bad(f"the shard has {have} bytes, its manifest says {size}", location)
    return stream


def parsed(stream: BinaryIO, location: Location, source: Any = None) -> OpenShard:
    """The footer of a shard's bytes; `source`: what Arrow reads in place of them. Raises BadData where they are no Parquet."""
    with _parquet_failures(location):
        shard = OpenShard(stream, source)
        check_footer(shard.metadata)
        return shard


def expect_row_groups(
    file: OpenShard, location: Location, columns: Sequence[str] | None = None, groups: Sequence[int] | None = None
) -> None:
    """Prefetch `groups` of a remote shard; None: all. Raises BadData where the footer is broken."""
    if location.is_in_bucket:
        with _parquet_failures(location):
            expect(file.stream, lambda: file_ranges(file.metadata, columns, groups=groups))


def read_row_groups(
    file: OpenShard,
    location: Location,
    *,
    columns: Sequence[str] | None = None,
    memory_limit: int = MEMORY_LIMIT,
    groups: Sequence[int] | None = None,
    numbered: Collection[str] = (),
    pool: ReadingPool | None = None,
    at_once: int = 0,
) -> Iterator[Any]:
    """The pa.Table of each row group of an opened shard of ours, in order; None: of all. Raises BadData, StorageError, and as
    `check_bound` does.

    `numbered`: columns of text in long runs, of which a row group within bounds gives numbers and a dictionary. `pool`: one of
    its threads reads the next row group while the caller has the one before, where both are small. `at_once`: bytes in memory
    of small row groups that come as one table.
    """
    expect_row_groups(file, location, columns, groups)
    opening = location.open if location.is_in_bucket else partial(nullcontext, file.stream)  # another may have its name by now

    def bound(group: int) -> Unfolded:
        with _parquet_failures(location):
            how: dict[str, Any] = {"columns": columns, "group": group, "memory_limit": memory_limit, "size": file.size}
            return check_bound(location, opening, file.metadata, **how, enough=at_once or MAX_BYTES)

    def read(run: _Run) -> Any:
        with _parquet_failures(location):
            for group in run.groups if location.is_in_bucket else ():
                ready(file.stream, partial(chunk_ranges, file.metadata, group, columns))
            table = file.row_groups(run.groups, columns, numbered if run.bounded else ())
        return without_objects(table)

    runs = _runs(range(file.num_row_groups) if groups is None else groups, bound, at_once)

    def ahead() -> tuple[_Run | None, Any]:
        """What comes next; its table, unless that waits for its turn."""
        run = next(runs, None)
        return run, read(run) if run is not None and run.bounded else None

    coming = None
    while True:
        run, table = ahead() if coming is None else coming.result()
        if run is None:
            return
        table = read(run) if table is None else table
        coming = None if pool is None else pool.submit(ahead)
        yield table
        table = None  # the next one comes beside what the caller keeps


class _Run(NamedTuple):
    """Row groups that come one after the other and are read at once."""

    groups: list[int]
    bounded: bool  # whether they are known to be within bounds


def _runs(groups: Iterable[int], bound: Callable[[int], Unfolded], at_once: int) -> Iterator[_Run]:
    """One after the other; or as many as take so many bytes, and with all that repeats no more than one may."""
    run, size, most = list[int](), 0, 0
    for group in groups:
        found = bound(group)
        if run and (found.most is None or size + found.nbytes > at_once or most + found.most > MAX_BYTES):
            yield _Run(run, bounded=True)
            run, size, most = [], 0, 0
        run.append(group)
        size, most = size + found.nbytes, most + (found.most or 0)
        if size >= at_once or found.most is None:
            yield _Run(run, bounded=found.most is not None)
            run, size, most = [], 0, 0
    if run:
        yield _Run(run, bounded=True)


def check_bound(
    location: Location,
    opening: Opening,
    metadata: Any,
    *,
    size: int,
    columns: Sequence[str] | None = None,
    group: int | None = None,
    memory_limit: int | None = None,
    enough: int = MAX_BYTES,
) -> Unfolded:
    """As `refuse_bomb`, of the file at `location`, or one `group` of it.

    `memory_limit`: of a shard of ours, the bytes that reading a row group may take, however well it is packed; None: it is
    not ours. Raises UnsafeData, MemoryLimitExceeded.
    """
    try:
        return refuse_bomb(opening, metadata, size, where=location.url, columns=columns, group=group, enough=enough)
    except UnsafeData:
        if memory_limit is None:
            raise
    total = 0
    for number in range(metadata.num_row_groups) if group is None else [group]:
        unfolded = unfolded_bytes(opening, metadata, limit=memory_limit // READING, columns=columns, group=number)
        needs = READING * unfolded
        if needs > memory_limit:
            what = (
                f"reading row group {number} may take {needs >> 20} MiB, more than the memory limit of {memory_limit >> 20} MiB"
            )
            raise MemoryLimitExceeded(what, where=location.url, fix="raise --memory-limit")
        total += unfolded
    return Unfolded(total, apart=True)


@contextmanager
def _parquet_failures(location: Location) -> Iterator[None]:
    """Within it, errors of Arrow about the bytes raise BadData, errors of storage StorageError."""
    try:
        with storage_failures(location.url, "reading it"):
            try:
                with extension_failures():
                    yield
            except OSError as err:
                if err.errno is not None:  # Arrow's own complaints about bytes are OSErrors without a number
                    raise
                raise _bad(f"the shard cannot be read as Parquet: {err}", location) from err
    except (pa.ArrowException, UnicodeDecodeError) as err:  # names of columns are text, or should be
        raise _bad(f"the shard cannot be read as Parquet: {err}", location) from err


def _bad(what: str, location: Location) -> BadData:
    return BadData(what, where=location.url, fix=f"{FIX}; or leave it out: {dropping(location)}")
