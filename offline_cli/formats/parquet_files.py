"""Read Parquet files as Arrow tables, in order, ahead in a few threads; a damaged file is rejected by name.

Small files with equal columns are joined into tables of some ten thousand rows: some recorders write thousands of files with a
few rows each, and converting a column has a fixed cost. A file whose columns may take more than `BIG` bytes is read by row
group, in batches of bounded size. A scan of pyarrow.dataset does not do: it ends at the first damaged file, without the files
after it and some before it.
"""

from __future__ import annotations

import io
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli import choices
from offline_cli.errors import BadData
from offline_cli.formats.arrow_leaves import arrow_failures
from offline_cli.parquet.reading import (
    ParquetFile,
    arrow_file,
    rows_at_once,
    threads_may_read,
    without_objects,
)
from offline_cli.scopes import Scope, part_of
from offline_cli.storage.locations import Location
from offline_cli.tally import Lost, Rejects

WORKERS: Final[int] = choices.WORKERS  # default number of files read in parallel
AHEAD = 4  # files read ahead per worker
BIG = 64 << 20  # decompressed bytes of a file's columns
ROWS = 1 << 16  # rows of a joined table
BYTES = 64 << 20  # bytes of a joined table
PAGES = 1 << 20  # compressed bytes of a column read at a time from a big file
GROWTH = 4  # growth factor of joined tables when the first one is kept small


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of consecutive files."""

    table: pa.Table
    files: tuple[str, ...]  # URLs
    starts: NDArray[np.int64]  # (F+1,) the rows of file f are starts[f]:starts[f+1]
    first: int  # number of the first row in its file
    nbytes: int  # stored bytes of the files
    lost_before: str = ""  # the preceding file, if it or its rest was unreadable

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
        """The same rows in chunks of at most `rows`."""
        total = self.table.num_rows
        for first in range(0, total, rows):
            stop = min(first + rows, total)
            begin, end = self.file_of(np.array([first, stop - 1]))
            yield Chunk(
                self.table.slice(first, stop - first),
                self.files[begin : end + 1],
                np.clip(self.starts[begin : end + 2] - first, 0, stop - first),
                int(self.row_in_file(np.array([first]))[0]),
                self.nbytes * stop // total - self.nbytes * first // total,
                "" if first else self.lost_before,
            )


def schema_of(file: Location) -> pa.Schema:
    """The schema of a Parquet file. Raises BadData if it is truncated or damaged."""
    with arrow_failures(file), file.open() as stream:
        return _schema(ParquetFile(stream, pre_buffer=False), file.url)


def _schema(parquet: ParquetFile, url: str) -> pa.Schema:
    schema = parquet.schema_arrow
    names = schema.names
    if len(set(names)) < len(names):
        twice = [name for name, times in Counter(names).items() if times > 1]
        raise BadData(f"two columns have the name {twice[0][:80]!r}", where=url, fix="rename one of them")
    return schema


# ---- many files to chunks ----


def chunks(
    files: Sequence[Location],
    rejects: Rejects,
    *,
    columns: Sequence[str] | None = None,
    workers: int = WORKERS,
    first_rows: int | None = None,
    on_cut: Callable[[str], None] | None = None,
    scope: Scope | None = None,
) -> Iterator[Chunk]:
    """All rows of `files` in order; damaged files go to `rejects`. `columns`: to read; None: all.

    `first_rows`: size of the first chunk; later ones grow, so that a reader that stops early does not wait for thousands of
    small files. `on_cut`: called with a file whose rest is damaged, after the chunk with its last readable rows. `scope` owns
    files and threads.
    """
    waiting: list[Chunk] = []
    rows = size = 0
    most = ROWS if first_rows is None else min(ROWS, first_rows)
    for part in _parts(files, rejects, columns, workers, part_of(scope)):
        follows = not isinstance(part, str) and (not waiting or _follows(part, waiting[0]))
        if waiting and (not follows or rows >= most or size >= BYTES):
            yield _joined(waiting)
            waiting, rows, size, most = [], 0, 0, min(ROWS, GROWTH * most)
        if not isinstance(part, str):
            waiting.append(part)
            rows, size = rows + part.table.num_rows, size + int(part.table.nbytes)
        elif on_cut is not None:
            on_cut(part)
    if waiting:
        yield _joined(waiting)


def _follows(part: Chunk, before: Chunk) -> bool:
    """Whether both can be joined: equal columns, including field metadata (Ray's tensors)."""
    same = part.table.schema.equals(before.table.schema, check_metadata=True)
    return bool(same) and not part.first and not part.lost_before


def _joined(parts: list[Chunk]) -> Chunk:
    starts = np.cumsum([0, *(part.table.num_rows for part in parts)]).astype(np.int64)
    table, files = pa.concat_tables([part.table for part in parts]), tuple(part.files[0] for part in parts)
    return replace(parts[0], table=table, files=files, starts=starts, nbytes=sum(part.nbytes for part in parts))


def _parts(
    files: Sequence[Location], rejects: Rejects, columns: Sequence[str] | None, workers: int, scope: Scope
) -> Iterator[Chunk | str]:
    """Chunks of one file each, or the place of a file whose rest is damaged. Reads ahead the next rows, and the first rows of
    the next files.
    """
    with scope:
        held = scope.part()  # closed after the threads have ended
        pool = ThreadPoolExecutor(min(workers, max(1, len(files))), "offline-cli")
        scope.callback(pool.shutdown, cancel_futures=True)
        alone = len(files) == 1  # otherwise the pool's threads already run in parallel
        pending = (_parts_of(file, columns, held, use_threads=alone) for file in files)
        ahead: deque[tuple[Iterator[Chunk], Future[Chunk | None]]] = deque()
        lost = ""
        while True:
            ahead.extend((parts, pool.submit(next, parts, None)) for parts in islice(pending, AHEAD * workers - len(ahead)))
            if not ahead:
                return
            parts, coming = ahead.popleft()
            is_begun = False
            try:
                while (part := coming.result()) is not None:
                    coming = pool.submit(next, parts, None)
                    yield replace(part, lost_before=lost) if lost else part
                    lost, is_begun = "", True
            except BadData as error:
                rejects.add(error)
                rejects.lose_episodes(Lost.UNREADABLE)
                lost = error.where
                if is_begun:
                    yield lost


def _parts_of(file: Location, columns: Sequence[str] | None, held: Scope, *, use_threads: bool) -> Iterator[Chunk]:
    """The rows of a file, at once or, if they may take more than `BIG` bytes, in batches; any thread may iterate."""
    with arrow_failures(file), held.part() as opened:
        stream = opened.enter(file.open())
        source = opened.enter(arrow_file(stream))
        threads = threads_may_read(source)
        parquet = ParquetFile(source, pre_buffer=False)
        metadata = parquet.metadata
        stored, total, groups = stream.seek(0, io.SEEK_END), metadata.num_rows, range(metadata.num_row_groups)
        names = _schema(parquet, file.url).names
        wanted = None if columns is None else [name for name in names if name in columns]
        declared = sum(metadata.row_group(group).total_byte_size for group in groups)
        # a row may be as large as the declared size of the whole file
        rows = total if total * max(declared, stored) <= BIG else rows_at_once(parquet, wanted, BIG)
        if rows >= total:
            if total:
                yield _chunk(parquet.read(columns=wanted, use_threads=use_threads and threads), file.url, stored)
            return
        first, rows = 0, min(ROWS, rows)
        for group in groups:
            # a reader that prefetches row groups keeps all of them until the last one is read
            parquet = ParquetFile(source, metadata=metadata, pre_buffer=False, buffer_size=PAGES)
            for batch in parquet.iter_batches(rows, [group], wanted, use_threads=threads):
                yield _chunk(pa.Table.from_batches([batch]), file.url, stored * batch.num_rows // total, first)
                first += batch.num_rows


def _chunk(table: pa.Table, url: str, nbytes: int, first: int = 0) -> Chunk:
    table.validate(full=True)  # also checks that text is UTF-8
    plain = without_objects(table).replace_schema_metadata(None)
    return Chunk(plain, (url,), np.array([0, table.num_rows], np.int64), first, nbytes)
