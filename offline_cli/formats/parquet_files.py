"""Parquet files as Arrow tables, in order, read ahead by a few threads; a damaged file raises by name.

Files are joined into tables of some tens of thousands of rows where their columns agree, because a recorder that writes a file
per call leaves thousands of files of a few rows, and each conversion of a column has a price of its own. A file whose columns
take more than `BIG` bytes is read row group by row group.
"""

from __future__ import annotations

import io
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.errors import PROBLEM, BadData, OfflineCliError
from offline_cli.formats.small_parquet import (
    FewRows,
    one_ahead,
    parquet_batches,
    read_small_files,
    same_columns,
    small_sizes,
)
from offline_cli.options import engines
from offline_cli.parquet.bounds import Unfolded, check_bound, check_footer
from offline_cli.parquet.extension_types import ParquetFile, extension_failures, without_objects
from offline_cli.parquet.shards import arrow_file, dropping, threads_may_read
from offline_cli.scopes import Scope, part_of
from offline_cli.storage.failures import storage_failures
from offline_cli.storage.locations import Location
from offline_cli.storage.timeouts import ReadingPool
from offline_cli.tally import Lost, Rejects

__all__ = ["WORKERS", "Chunk", "chunks", "schema_of"]

WORKERS: Final[int] = engines.WORKERS.default  # files read at a time by default
AHEAD = 4  # files that each of the workers may be ahead
BIG = 64 << 20  # bytes of a file's columns, unpacked
ROWS = 1 << 16  # rows of a joined table
BYTES = 64 << 20  # bytes of a joined table
GROWTH = 4  # times as many rows as the one before has each joined table, where the first is wanted soon

FIX: Final = "copy or write the file again, or --on-error skip to read the others"

Small = tuple[pa.Table | None, int, Unfolded]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one or more files, one after the other."""

    table: pa.Table
    files: tuple[str, ...]  # URLs
    starts: NDArray[np.int64]  # (F+1,) the rows of file f are starts[f]:starts[f+1]
    first: int  # number, in its file, of the first row of the first file
    nbytes: int  # of the files, as they are stored
    lost_before: str = ""  # the file right before these rows that could not be read, or whose rest could not

    def file_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Index into `files` of each row."""
        return np.searchsorted(self.starts, rows, side="right") - 1

    def row_in_file(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of each row in its own file."""
        files = self.file_of(rows)
        return rows - self.starts[files] + np.where(files == 0, self.first, 0)

    def where(self, row: int) -> str:
        """`file row n` of one row, for messages."""
        rows = np.array([row], np.int64)
        return f"{self.files[int(self.file_of(rows)[0])]} row {int(self.row_in_file(rows)[0])}"

    def parts(self, rows: int) -> Iterator[Chunk]:
        """The same rows in chunks of at most `rows`, which end where files end if they can."""
        first, total = 0, self.table.num_rows
        while first < total:
            stop = min(first + rows, total)
            ends = self.starts[(first < self.starts) & (self.starts <= stop)]
            stop = int(ends[-1]) if len(ends) else stop
            begin, end = self.file_of(np.array([first, stop - 1]))
            yield Chunk(
                self.table.slice(first, stop - first),
                self.files[begin : end + 1],
                np.clip(self.starts[begin : end + 2] - first, 0, stop - first),
                int(self.row_in_file(np.array([first]))[0]),
                self.nbytes * stop // total - self.nbytes * first // total,
                "" if first else self.lost_before,
            )
            first = stop


def schema_of(file: Location) -> pa.Schema:
    """The columns of a Parquet file. Raises BadData for one that is cut or damaged."""
    with _damage(file), file.open() as stream:
        return _schema(ParquetFile(stream, pre_buffer=False), file.url)


def _schema(parquet: ParquetFile, url: str) -> pa.Schema:
    schema = parquet.schema_arrow
    names = schema.names
    if len(set(names)) < len(names):
        twice = [name for name, times in Counter(names).items() if times > 1]
        raise BadData(f"two columns are called {twice[0][:80]!r}", where=url, fix="rename one of them")
    return schema


@contextmanager
def _damage(file: Location, memory_limit: int | None = None) -> Iterator[None]:
    """Within it, a file that Arrow cannot read raises BadData, and failing storage StorageError. `memory_limit`: it is ours."""
    with storage_failures(file.url, "reading it"):
        try:
            with extension_failures():
                yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: names of columns
            if isinstance(error, OSError) and error.errno is not None:  # the storage's; Arrow's own have no number
                raise
            text = str(error).strip().splitlines()
            raise BadData(
                f"not a whole Parquet file: {text[0] if text else type(error).__name__}",
                where=file.url,
                fix=FIX if memory_limit is None else f"restore it from a copy, or leave it out: {dropping(file)}",
                details={PROBLEM: "unreadable-file"},
            ) from error


def chunks(
    files: Sequence[Location],
    rejects: Rejects,
    *,
    columns: Sequence[str] | None = None,
    workers: int = WORKERS,
    first_rows: int | None = None,
    own_limit: int | None = None,
    on_cut: Callable[[str], None] | None = None,
    scope: Scope | None = None,
) -> Iterator[Chunk]:
    """All rows of `files` in order, only those of `columns` where given; damaged files go to `rejects`.

    `first_rows`: after so many a first chunk ends, others after ever more: a reader that stops early does not wait for
    thousands of small files. `own_limit`: they are shards of ours, of which a row group may take so many
    bytes, however well it is packed. `on_cut`: called with a file of which the rest is damaged, after the chunk of its last
    rows that are not. `scope` owns files and threads while they are read.
    """
    waiting: list[_Part] = []
    rows = size = 0
    most = ROWS if first_rows is None else min(ROWS, first_rows)
    for whole in _parts(files, rejects, columns, workers, first_rows, own_limit, part_of(scope)):
        if isinstance(whole, str):
            if waiting:
                yield _chunk(waiting)
                waiting, rows, size = [], 0, 0
            if on_cut is not None:
                on_cut(whole)
            continue
        rest: _Part | None = whole
        while rest is not None:
            full = rows >= most or size >= BYTES
            if waiting and (full or rest.first or rest.lost_before or not same_columns(waiting[0].table, rest.table)):
                yield _chunk(waiting)
                waiting, rows, size, most = [], 0, 0, min(ROWS, GROWTH * most)
            part, rest = rest.divided(most - rows, BYTES - size)
            waiting.append(part)
            rows, size = rows + part.table.num_rows, size + sum(part.memory)
    if waiting:
        yield _chunk(waiting)


@dataclass(frozen=True, slots=True)
class _Part:
    table: pa.Table
    urls: Sequence[str]  # of one file, or of several whole ones
    rows: Sequence[int]  # of each of them
    sizes: Sequence[int]  # bytes of each, as it is stored, or its share of them
    memory: Sequence[int]  # bytes of the rows of each
    first: int = 0  # number of its first row in the file
    lost_before: str = ""

    @classmethod
    def of(cls, table: pa.Table, url: str, size: int, first: int = 0) -> _Part:
        """Of one file."""
        return cls(table, (url,), (table.num_rows,), (size,), (int(table.nbytes),), first)

    def divided(self, rows: int, memory: int) -> tuple[_Part, _Part | None]:
        """It, up to the file with which it has so many rows or bytes in memory, and what is left."""
        reached = [np.searchsorted(np.cumsum(of_files), most) for of_files, most in ((self.rows, rows), (self.memory, memory))]
        stop = int(min(reached)) + 1
        if stop >= len(self.urls):
            return self, None
        before = sum(self.rows[:stop])
        parts = (self.table.slice(0, before), slice(0, stop)), (self.table.slice(before), slice(stop, None))
        left, right = (
            _Part(table, self.urls[files], self.rows[files], self.sizes[files], self.memory[files]) for table, files in parts
        )
        return replace(left, first=self.first, lost_before=self.lost_before), right


def _chunk(parts: list[_Part]) -> Chunk:
    starts = np.cumsum([0, *chain.from_iterable(part.rows for part in parts)]).astype(np.int64)
    tables = [part.table.replace_schema_metadata(None) for part in parts]
    urls, nbytes = tuple(chain.from_iterable(part.urls for part in parts)), sum(sum(part.sizes) for part in parts)
    return Chunk(pa.concat_tables(tables), urls, starts, parts[0].first, nbytes, parts[0].lost_before)


def _parts(
    files: Sequence[Location],
    rejects: Rejects,
    columns: Sequence[str] | None,
    workers: int,
    first_rows: int | None,
    own_limit: int | None,
    scope: Scope,
) -> Iterator[_Part | str]:
    """Parts; and the place of a file whose rest is damaged."""
    lost = ""
    with scope:
        for parts in _readings(files, columns, workers, first_rows, own_limit, scope):
            is_begun = False
            try:
                for part in parts:
                    yield replace(part, lost_before=lost) if lost else part
                    lost, is_begun = "", True
            except BadData as error:
                rejects.add(error)
                rejects.lose_episodes(Lost.UNREADABLE)
                lost = error.where
                if is_begun:
                    yield lost


def _readings(
    files: Sequence[Location],
    columns: Sequence[str] | None,
    workers: int,
    first_rows: int | None,
    own_limit: int | None,
    scope: Scope,
) -> Iterator[Iterator[_Part]]:
    """The parts of one file, or of several small ones; iterating raises what is wrong with it."""
    sizes = None if own_limit is not None else small_sizes(files)
    if sizes is None:
        for file, small in _read_ahead(files, columns, workers, own_limit, scope):
            yield _parts_of(file, small.result, columns, own_limit, scope)
        return
    read = partial(_table_of_bytes, columns)
    for found in read_small_files(files, sizes, read, workers=workers, first_rows=first_rows, scope=scope):
        if isinstance(found, OfflineCliError):
            yield _refused(found)
        elif isinstance(found, FewRows):
            yield iter([_Part(found.table, found.urls, found.rows, found.sizes, found.memory)])
        else:
            yield _parts_of(found, partial(_read_small, found, columns, None), columns, None, scope)


def _refused(error: OfflineCliError) -> Iterator[_Part]:
    """Raises it in its turn."""
    yield from ()
    raise error


def _read_ahead(
    files: Sequence[Location], columns: Sequence[str] | None, workers: int, own_limit: int | None, scope: Scope
) -> Iterator[tuple[Location, Future[Small]]]:
    """Each file with its reader; the next files are opened ahead."""
    read = partial(_read_small, use_threads=len(files) == 1)  # else each thread of the pool has a file
    with scope.part() as held:
        pool = held.enter(ReadingPool(min(workers, max(1, len(files)))))
        ahead: deque[tuple[Location, Future[Small]]] = deque()
        pending = iter(files)
        while True:
            for file in islice(pending, AHEAD * workers - len(ahead)):
                ahead.append((file, pool.submit(read, file, columns, own_limit)))
            if not ahead:
                return
            yield ahead.popleft()


def _parts_of(
    file: Location, small: Callable[[], Small], columns: Sequence[str] | None, own_limit: int | None, scope: Scope
) -> Iterator[_Part]:
    with _damage(file, own_limit):
        table, size, unfolded = small()
    if table is None:
        yield from _read_big(file, columns, unfolded, own_limit, scope)
    elif table.num_rows:
        yield _Part.of(table, file.url, size)


def _read_small(file: Location, columns: Sequence[str] | None, own_limit: int | None, *, use_threads: bool = False) -> Small:
    """The whole file, or None for one that is to be read in parts; the bytes that are stored of it, and what they unfold to."""
    with file.open() as stream, arrow_file(stream) as source:
        return _read_whole(stream, source, file, columns, own_limit, use_threads=use_threads and threads_may_read(source))


def _table_of_bytes(columns: Sequence[str] | None, file: Location, data: bytes) -> pa.Table | None:
    with _damage(file):
        return _read_whole(io.BytesIO(data), pa.BufferReader(data), file, columns, None)[0]


def _read_whole(
    stream: BinaryIO,
    source: Any,
    file: Location,
    columns: Sequence[str] | None,
    own_limit: int | None,
    *,
    use_threads: bool = False,
) -> Small:
    """`source`: what Arrow reads in place of `stream`. `use_threads`: its own, which may read that."""
    parquet = ParquetFile(source, page_checksum_verification=True, pre_buffer=threads_may_read(source))
    metadata = parquet.metadata
    check_footer(metadata)
    stored = stream.seek(0, io.SEEK_END)
    names = _schema(parquet, file.url).names
    wanted = None if columns is None else [name for name in names if name in columns]
    unfolded = check_bound(file, lambda: nullcontext(stream), metadata, columns=wanted, memory_limit=own_limit, size=stored)
    if unfolded.apart or unfolded.nbytes > BIG:
        return None, stored, unfolded
    table = parquet.read(columns=wanted, use_threads=use_threads)
    table.validate(full=True)  # text that is not UTF-8 is the file's fault
    return without_objects(table), stored, unfolded


def _read_big(
    file: Location, columns: Sequence[str] | None, unfolded: Unfolded, own_limit: int | None, scope: Scope
) -> Iterator[_Part]:
    with _damage(file, own_limit), scope.part() as held:
        stream = held.enter(file.open())
        source = held.enter(arrow_file(stream))
        parquet = ParquetFile(stream, pre_buffer=False)
        wanted = None if columns is None else [name for name in parquet.schema_arrow.names if name in columns]
        total, stored = parquet.metadata.num_rows, stream.seek(0, io.SEEK_END)
        rows = max(1, min(ROWS, total * BYTES // max(1, unfolded.nbytes)))
        first = 0
        form: dict[str, Any] = {"columns": wanted, "rows": rows, "apart": unfolded.apart, "metadata": parquet.metadata}
        for batch in one_ahead(parquet_batches(source, **form), held):
            table = without_objects(pa.Table.from_batches([batch]))
            yield _Part.of(table, file.url, stored * batch.num_rows // total, first)
            first += batch.num_rows
