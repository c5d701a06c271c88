"""CSV files as batches of text columns; refuses headers that name a column twice, and rows of another length, row by row.

Every cell stays text here: what is a number is for the columns to say. Nothing about the form is guessed: a comma stands
between cells, a tab in files called `.tsv`, or what the mapping says; the first line is the header unless the mapping names the
columns.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from offline_cli.errors import BadData
from offline_cli.formats.tables.mapping import CsvForm

__all__ = ["csv_batches", "csv_header", "delimiter_of"]

HEAD_BYTES = 1 << 20
BOM = "\ufeff"
ENDINGS = ("", ".gz", ".zst", ".zstd")
BLOCKS_AHEAD = 8  # blocks in a batch; the parser reads four times as many ahead, and a row has to lie within one
LEAST_BLOCK = 1 << 18

Broken = tuple[int, BadData, bytes]  # number of the row, what is wrong, its text


def delimiter_of(form: CsvForm, url: str) -> str:
    """What stands between cells."""
    if form.delimiter is not None:
        return form.delimiter
    return "\t" if url.lower().endswith(tuple(f".tsv{ending}" for ending in ENDINGS)) else ","


def csv_header(stream: Any, form: CsvForm, url: str) -> list[str]:
    """The names of the columns. Raises BadData where there are none, or one stands twice."""
    if form.columns is not None:
        return list(form.columns)
    text = bytes(stream.read(HEAD_BYTES)).decode(form.encoding, "replace").removeprefix(BOM)
    try:
        names = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter_of(form, url)), [])
    except csv.Error as error:
        raise BadData(f"no header can be read: {error}", where=url, fix="write the names of the columns first") from error
    if not names:
        raise BadData("an empty file", where=url, fix="leave the file out")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        fix = "rename one of them, or name all columns in the mapping under [csv] columns, where the file has no header"
        raise BadData(f"two columns are called {twice[0]!r}", where=url, fix=fix)
    return names


def csv_batches(
    stream: Any, url: str, form: CsvForm, names: Sequence[str], columns: Collection[str] | None, batch_bytes: int
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64], Sequence[Broken]]]:
    """(batch, numbers of its rows, rows of another length than the header's); `names`: all columns of the file."""
    wanted = set(names if columns is None else columns)
    rows = _Rows(url, header=form.columns is None)
    block = max(LEAST_BLOCK, batch_bytes // BLOCKS_AHEAD)
    reader = pyarrow.csv.open_csv(
        _Utf8(stream, url) if codecs.lookup(form.encoding).name == "utf-8" else stream,
        read_options=pyarrow.csv.ReadOptions(
            block_size=block, use_threads=False, column_names=form.columns, encoding=form.encoding
        ),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter=delimiter_of(form, url), newlines_in_values=True, invalid_row_handler=rows.invalid
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.large_string()),
            include_columns=[name for name in names if name in wanted],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=["", *form.nulls],
        ),
    )
    for batch in _joined(reader, url, batch_bytes, block):
        yield batch, rows.numbers(batch.num_rows), rows.taken()
    if left := rows.taken():  # after the last row that could be read
        yield pa.RecordBatch.from_pylist([], reader.schema), np.arange(0), left


def _joined(reader: Any, url: str, batch_bytes: int, block: int) -> Iterator[pa.RecordBatch]:
    """Batches of about `batch_bytes`. Raises BadData for a row that is longer than a block of the parser's."""
    waiting: list[pa.RecordBatch] = []
    try:
        for batch in reader:
            waiting.append(batch)
            if sum(part.nbytes for part in waiting) >= batch_bytes:
                yield from _one_batch(waiting)
    except pa.ArrowInvalid as error:
        yield from _one_batch(waiting)
        if "straddl" not in str(error):
            raise
        fix = "leave out what is so long, write the table as Parquet, or --on-error skip to go on without the rest of the file"
        raise BadData(f"a row of more than {block >> 10} KiB", where=url, fix=fix) from error
    yield from _one_batch(waiting)


def _one_batch(waiting: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """All rows that wait, as one batch or none; empties the list."""
    batches: list[pa.RecordBatch] = pa.Table.from_batches(waiting).combine_chunks().to_batches() if waiting else []
    waiting.clear()
    return batches


class _Utf8:
    """Raises BadData at the first byte that is no UTF-8; the parser would print a traceback for a row that it skips."""

    closed = False

    def __init__(self, stream: Any, url: str) -> None:
        self._stream, self._url, self._done = stream, url, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def read(self, size: int = -1) -> bytes:
        """The next bytes, all of them checked but for a letter that is cut in two."""
        data = bytes(self._stream.read(size))
        try:
            self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            fix = 'say [csv] encoding = "latin-1", or what else it is, in the mapping'
            what = f"text that is not UTF-8: {error.reason} near byte {self._done + error.start}"
            raise BadData(what, where=self._url, fix=fix) from error
        self._done += len(data)
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        """The stream is its opener's to close."""


class _Rows:
    """Numbers the rows of one file, those that could not be read included."""

    def __init__(self, url: str, *, header: bool) -> None:
        self._url, self._first = url, 1 + header  # the parser counts from 1, and the header too
        self._next = 0
        self._invalid: list[Broken] = []

    def invalid(self, row: Any) -> str:
        """The parser's handler of rows of another length."""
        number = row.number - self._first
        error = BadData(
            f"a row of {row.actual_columns} cells under {row.expected_columns} columns",
            where=f"{self._url} row {number}",
            fix="quote cells that hold the delimiter, or --on-error skip to go on without the row",
        )
        self._invalid.append((number, error, str(row.text).encode()))
        return "skip"

    def numbers(self, count: int) -> NDArray[np.int64]:
        """(count,) of the rows that come next, which are all that the parser has read by now."""
        numbers = np.arange(self._next, self._next + count + len(self._invalid))
        self._next += len(numbers)
        return np.setdiff1d(numbers, [number for number, _, _ in self._invalid], assume_unique=True)

    def taken(self) -> Sequence[Broken]:
        """The rows that could not be read since the last call."""
        taken, self._invalid = self._invalid, []
        return taken
