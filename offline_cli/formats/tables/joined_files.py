"""The rows of all files of a table, those of many small files together: reading such a file costs less than all around it.

Many small files of this machine are read from memory, many at a time (`read_small_files`). A file in which something is odd
is read by itself, which says what.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.errors import BadData, OfflineCliError
from offline_cli.formats.small_parquet import AHEAD, FewRows, read_small_files, same_columns, small_sizes
from offline_cli.formats.source import Openable, ReadOptions
from offline_cli.formats.tables.arrow_messages import ArrowBound, arrow_batches
from offline_cli.formats.tables.csv_files import csv_at_once
from offline_cli.formats.tables.files import MAX_ROWS, RawChunk, TableFile, flat, is_arrow_stream
from offline_cli.formats.tables.json_files import holding, json_at_once
from offline_cli.formats.tables.mapping import CsvForm
from offline_cli.formats.tables.packing import damage, packing_of
from offline_cli.parquet.bounds import check_bound, check_footer
from offline_cli.parquet.extension_types import ParquetFile, without_objects
from offline_cli.scopes import Scope, part_of

__all__ = ["raw_chunks"]

FIRST_ROWS: Final = 1 << 10  # in a first chunk of small files; the later ones have
GROWTH: Final = 4  # times as many, up to `MAX_ROWS`: a reader that stops early does not wait for thousands of files
ROOMY: Final = 4 << 20  # bytes of a chunk; where there is room for fewer, files are read one by one, which takes less memory
READ_OPTIONS: Final = ReadOptions()


def raw_chunks(
    files: Sequence[TableFile],
    columns: Collection[str] | None,
    form: CsvForm,
    *,
    chunk_bytes: int,
    temp_dir: str | None,
    whole: str | None = None,
    options: ReadOptions = READ_OPTIONS,
    scope: Scope | None = None,
) -> Generator[tuple[int | NDArray[np.int64], RawChunk | BadData], None, None]:
    """The rows of all files in order, as `TableFile.chunks` gives them, with the number of their file, or of each row's (N,).

    What is wrong with a file comes with its number, after the rows before. Raises BadData of a single row.
    """
    places: list[Any] = [table.file for table in files]
    joins = options.limit is None and chunk_bytes >= ROOMY  # rows joined beyond a limit would be counted
    sizes = small_sizes(places) if joins else None

    def by_itself(number: int, held: Scope) -> Iterator[tuple[int, RawChunk | BadData]]:
        file = files[number]
        try:
            for chunk in file.chunks(columns, form, chunk_bytes=chunk_bytes, temp_dir=temp_dir, whole=whole, scope=held):
                yield number, chunk
        except BadData as error:
            if error.where != file.url:  # one row's
                raise
            yield number, error

    with part_of(scope) as held:
        if sizes is None:
            for number in range(len(files)):
                yield from by_itself(number, held)
            return
        read = partial(_at_once, files[0].kind, columns, form, whole, chunk_bytes, files[0].memory_limit)
        room = chunk_bytes // 4  # rows wait for their turn, are joined, and are one chunk then
        number, most, waiting = 0, FIRST_ROWS, _Joined()
        for found in read_small_files(places, sizes, read, workers=options.workers, room=room // AHEAD, scope=held):
            if waiting.tables and not (isinstance(found, FewRows) and waiting.takes(found, most, room)):
                yield waiting.taken()
                most = min(MAX_ROWS, GROWTH * most)
            if isinstance(found, FewRows):
                number = waiting.add(found, files, number)
            elif isinstance(found, BadData):
                number = _next(files, number, found.where)
                yield number - 1, found
            elif isinstance(found, OfflineCliError):
                raise found
            else:
                number = _next(files, number, found.url)
                yield from by_itself(number - 1, held)
        if waiting.tables:
            yield waiting.taken()


def _next(files: Sequence[TableFile], number: int, url: str) -> int:
    """The number after that of the file at `url`, from `number` on: files without rows are passed over."""
    while files[number].url != url:
        number += 1
    return number + 1


@dataclass(slots=True)
class _Joined:
    """Rows of small files that become one chunk."""

    tables: list[pa.Table] = field(default_factory=list)
    files: list[int] = field(default_factory=list)  # number of each
    rows: list[int] = field(default_factory=list)  # of each
    nbytes: int = 0  # of the files
    memory: int = 0  # bytes

    def takes(self, found: FewRows, rows: int, memory: int) -> bool:
        """Whether these rows go with those that are here, of which `rows` and `memory` are enough."""
        return sum(self.rows) < rows and self.memory < memory and same_columns(self.tables[0], found.table)

    def add(self, found: FewRows, files: Sequence[TableFile], number: int) -> int:
        """Add rows of files from `number` on; gives the number of the file after them."""
        for url in found.urls:
            number = _next(files, number, url)
            self.files.append(number - 1)
        self.tables.append(found.table)
        self.rows += found.rows
        self.nbytes += sum(found.sizes)
        self.memory += sum(found.memory)
        return number

    def taken(self) -> tuple[NDArray[np.int64], RawChunk]:
        """The rows, of which none are left here."""
        rows = np.concatenate([np.arange(count) for count in self.rows])
        chunk = RawChunk(pa.concat_tables(self.tables).combine_chunks(), rows, self.nbytes, ())
        numbers = np.repeat(self.files, self.rows)
        self.tables, self.files, self.rows, self.nbytes, self.memory = [], [], [], 0, 0
        return numbers, chunk


def _at_once(
    kind: str,
    columns: Collection[str] | None,
    form: CsvForm,
    whole: str | None,
    chunk_bytes: int,
    memory_limit: int,
    file: Openable,
    data: bytes,
) -> pa.Table | None:
    """All rows of a small file; None where something is odd, for `TableFile.chunks` to say what."""
    if packing_of(data):
        return None
    try:
        with damage(file.url):
            if kind == "parquet":
                table = _parquet_at_once(data, columns, chunk_bytes, file.url)
            elif kind == "csv":
                table = csv_at_once(data, file.url, form, columns)
            elif kind == "json":
                table = json_at_once(data, columns)
            else:
                stream, bound = io.BytesIO(data), ArrowBound(file.url, len(data), memory_limit)
                found = arrow_batches(stream, columns, chunk_bytes, MAX_ROWS, is_stream=is_arrow_stream(data), bound=bound)
                batches = [batch for batch, _ in found]
                table = pa.Table.from_batches(batches) if batches else None
    except BadData:
        return None
    table = None if table is None else flat(table, whole)
    return None if table is None or len(set(table.column_names)) < table.num_columns else table


def _parquet_at_once(data: bytes, columns: Collection[str] | None, most: int, url: str) -> pa.Table | None:
    """All rows of a small file; None where they take more than `most` bytes. Raises Arrow's errors, UnsafeData."""
    parquet = ParquetFile(pa.BufferReader(data), pre_buffer=False, page_checksum_verification=True)
    metadata = parquet.metadata
    check_footer(metadata)
    names = parquet.schema_arrow.names
    held = holding(names, columns)
    wanted = None if len(held) == len(names) else held  # None is looked up faster
    unfolded = check_bound(url, lambda: nullcontext(io.BytesIO(data)), metadata, size=len(data), columns=wanted)
    if unfolded.apart or unfolded.nbytes > most or wanted == []:
        return None
    table = parquet.read(columns=wanted, use_threads=False)
    table.validate(full=True)
    return without_objects(table)
