"""CSV files as batches of text columns; rows of another length are rejected one by one, with their numbers.

* `csv_batches`, `csv_header`: every cell stays text here: the columns decide what is a number. Nothing about the form is
  guessed: the delimiter is a comma, a tab in files called `.tsv`, or what the mapping says; the first line is the header unless
  the mapping names the columns. A header that names a column twice raises.
* `InvalidRows`: rows that the parser could not read, put back between the rows that it could, by their numbers. The parser
  calls its handler of invalid rows up to a block before it returns the rows around them. Only the numbers that it gives them
  show where they belong.
"""

from __future__ import annotations

import codecs
import csv
import io
import threading
import time
import weakref
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from offline_cli.errors import BadData
from offline_cli.formats.tables.mapping import CsvForm
from offline_cli.scopes import Scope, part_of

__all__ = ["PIECE", "Broken", "InvalidRows", "csv_at_once", "csv_batches", "csv_header", "delimiter_of", "likely_encoding"]

LONGEST: Final = 5.0  # seconds to wait for Arrow's threads, which have nothing left to do
PAUSE: Final = 0.0001  # seconds between two looks
PIECE: Final = 1000  # invalid rows that are passed on at once: an error is made for each

GO_ON: Final = "--on-error skip to leave out its episode; converting with quarantine keeps the row"

Broken = tuple[int, BadData, bytes]  # number of the row, what is wrong, its text

HEAD_BYTES = 1 << 20
PART = 1 << 16  # bytes read at once: where a packed file breaks off, at most so much is lost
BOM = "\ufeff"
UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # how such files begin
UTF_32: Final = codecs.BOM_UTF32_LE  # which begins as one of these
NO_LETTER: Final = "\N{REPLACEMENT CHARACTER}"
SAY_ENCODING: Final = 'set [csv] encoding = "cp1252", "latin-1" or "utf-16", as the file has it, in the mapping'
ENDINGS = ("", ".gz", ".zst", ".zstd")
BLOCKS_AHEAD = 8  # blocks in a batch; the parser reads four times as many ahead, and a row has to lie within one
LEAST_BLOCK = 1 << 18


class InvalidRows:
    """The rows of one file that could not be read and have not been passed on; the parser may add some from its own thread."""

    def __init__(self, url: str, extra: int) -> None:
        """`extra`: rows before the first row of data, which the parser counts too."""
        self._url, self._first = url, 1 + extra  # the parser counts from 1
        self._lock = threading.Lock()
        self._next = 0  # number of the next row of data
        self._wanted = 0  # cells that a row should have
        self._numbers, self._cells, self._lengths = array("q"), array("q"), array("q")
        self._texts = bytearray()

    def handle(self, row: Any) -> str:
        """The parser's handler."""
        text = str(row.text).encode()
        with self._lock:
            self._wanted = row.expected_columns
            self._numbers.append(row.number - self._first)
            self._cells.append(row.actual_columns)
            self._lengths.append(len(text))
            self._texts += text
        return "skip"

    @property
    def held(self) -> int:
        """How many there are."""
        return len(self._numbers)

    def placed(
        self, batch: pa.RecordBatch, *, is_cut: bool = False
    ) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64], Sequence[Broken]]]:
        """The good rows that come next in the file, with their numbers and the invalid rows between and right after them.

        `is_cut`: without the last row of all, in which the file breaks off.
        """
        invalid, cells, texts = self._taken(batch.num_rows)
        if is_cut:
            last_is_invalid = len(invalid) > 0 and int(invalid[-1]) >= self._next + batch.num_rows + len(invalid) - 1
            invalid, batch = (invalid[:-1], batch) if last_is_invalid else (invalid, batch.slice(0, max(0, batch.num_rows - 1)))
        count = batch.num_rows
        if len(invalid) and invalid[0] < 0:
            what = f"a header of {self._wanted} names that is a row of {cells[0]} cells"
            raise BadData(what, where=self._url, fix="quote the names that hold quotes or the delimiter")
        good = np.arange(count)
        numbers = self._next + good + np.searchsorted(invalid - self._next - np.arange(len(invalid)), good, side="right")
        self._next += count + len(invalid)
        done = 0
        for first in range(0, max(1, len(invalid)), PIECE):
            later = invalid[first + PIECE : first + PIECE + 1]
            stop = int(np.searchsorted(numbers, later[0])) if len(later) else count
            broken = [
                self._broken(*said)
                for said in zip(invalid[first : first + PIECE].tolist(), cells[first:], texts[first:], strict=False)
            ]
            if stop > done or broken:
                yield batch.slice(done, stop - done), numbers[done:stop], broken
            done = stop

    def _taken(self, count: int) -> tuple[NDArray[np.int64], Sequence[int], Sequence[bytes]]:
        """Number, cells and text of those before the end of the next `count` good rows, or right after it."""
        with self._lock:
            numbers = np.array(self._numbers, np.int64)
            good_before = numbers - self._next - np.arange(len(numbers))
            upto = int(np.searchsorted(good_before, count, side="right"))
            cells, lengths = self._cells[:upto], self._lengths[:upto]
            texts: list[bytes] = []
            stop = 0
            for length in lengths:
                texts.append(bytes(self._texts[stop : stop + length]))
                stop += length
            del self._numbers[:upto], self._cells[:upto], self._lengths[:upto], self._texts[:stop]
        return numbers[:upto], cells, texts

    def _broken(self, number: int, cells: int, text: bytes) -> Broken:
        mend = "quote cells that hold the delimiter" if cells > self._wanted else "fill in the cells that are missing"
        what = f"a row of {cells} cells under {self._wanted} columns"
        return number, BadData(what, where=f"{self._url} row {number}", fix=f"{mend}, or {GO_ON}"), text


def delimiter_of(form: CsvForm, url: str) -> str:
    """The delimiter between cells."""
    if form.delimiter is not None:
        return form.delimiter
    return "\t" if url.lower().endswith(tuple(f".tsv{ending}" for ending in ENDINGS)) else ","


def likely_encoding(stream: Any) -> str:
    """How the names in the first line seem to be written, as [csv] `encoding` has it; empty: in no way that it could be."""
    data = bytes(stream.read(PART))
    if data.startswith(UTF_16) and not data.startswith(UTF_32):
        return "utf-16"
    line = data.partition(b"\n")[0]
    for encoding in () if b"\0" in line else ("utf-8", "cp1252", "latin-1"):
        with suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder(encoding)().decode(line, final=len(line) < len(data))
            return encoding
    return ""


def csv_header(stream: Any, form: CsvForm, url: str) -> list[str]:
    """The names of the columns. Raises BadData where there are none, or one twice."""
    if form.columns is not None:
        return list(form.columns)
    data, names = b"", list[str]()
    while len(data) < HEAD_BYTES and (more := bytes(stream.read(PART))):  # not all of it: the file may break off later
        data += more
        lines = io.StringIO(data.decode(form.encoding, "replace").removeprefix(BOM), newline="")
        try:
            names = next(csv.reader(lines, delimiter=delimiter_of(form, url)), [])
        except csv.Error as error:
            fix = "write the names of the columns first"
            raise BadData(f"no header can be read: {error}", where=url, fix=fix) from error
        if lines.read(1):  # the row is whole
            break
    if not names:
        raise BadData("an empty file", where=url, fix="leave the file out")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        fix = "rename one of them, or name all columns in the mapping under [csv] columns, where the file has no header"
        fix = f"{SAY_ENCODING}: this one is not that of the names" if NO_LETTER in twice[0] else fix
        raise BadData(f"two columns are called {twice[0]!r}", where=url, fix=fix)
    return names


def csv_batches(
    stream: Any,
    url: str,
    form: CsvForm,
    names: Sequence[str],
    columns: Collection[str] | None,
    batch_bytes: int,
    scope: Scope | None = None,
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64], Sequence[Broken]]]:
    """(batch, numbers of its rows, rows of another length than the header's); `names`: all columns of the file.

    Each row that could not be read comes with the good rows around it; at most `PIECE` of them come at once.
    `scope` owns the parser.
    """
    block = max(LEAST_BLOCK, batch_bytes // BLOCKS_AHEAD)
    extra = 2 if form.columns is None else 1  # rows that are not data: our own first one, and the header
    invalid = InvalidRows(url, extra)
    text = _Utf8(stream, url, form.encoding, first=_empty_row(len(names), delimiter_of(form, url)))
    parser = _Parser(text, **_options(form, url, names, columns, block, invalid.handle))
    with part_of(scope) as held:
        reader = held.enter(parser)
        waiting, size = [_empty(reader.schema)], 0
        try:
            for batch in _without_first(reader, extra):
                waiting.append(batch)
                size += batch.nbytes
                if text.error is None and (size >= batch_bytes or invalid.held >= PIECE):
                    yield from invalid.placed(_joined(waiting))
                    waiting, size = waiting[:1], 0
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error):
                raise
            fix = "leave out what is so long, write the table as Parquet, or --on-error skip to leave out the rest"
            text.error, is_cut = BadData(f"a row of more than {block >> 10} KiB", where=url, fix=fix), False
        else:
            is_cut = text.error is not None
        yield from invalid.placed(_joined(waiting), is_cut=is_cut)
        if text.error is not None:
            raise text.error


def csv_at_once(data: bytes, url: str, form: CsvForm, columns: Collection[str] | None) -> pa.Table | None:
    """All rows of a small file; None where some cannot be read. Raises as Arrow and `csv_header` do, and UnicodeError."""
    names = csv_header(io.BytesIO(data), form, url)
    text = codecs.getincrementaldecoder(form.encoding)().decode(data, final=True).removeprefix(BOM).encode()
    invalid: list[Any] = []

    def handle(row: Any) -> str:
        invalid.append(row)
        return "skip"

    options = _options(form, url, names, columns, len(text) + 1, handle)
    table = pyarrow.csv.read_csv(pa.BufferReader(text), **options)
    return None if invalid else table.slice(1 if form.columns is None else 0)


def _options(
    form: CsvForm,
    url: str,
    names: Sequence[str],
    columns: Collection[str] | None,
    block: int,
    handle: Callable[[Any], str],
) -> dict[str, Any]:
    """For Arrow's parser. `block`: bytes; a row has to lie within one. `handle`: of rows that have another number of cells."""
    wanted = set(names if columns is None else columns)
    return {
        "read_options": pyarrow.csv.ReadOptions(block_size=block, use_threads=False, column_names=list(names)),
        "parse_options": pyarrow.csv.ParseOptions(
            delimiter=delimiter_of(form, url), newlines_in_values=True, invalid_row_handler=handle
        ),
        "convert_options": pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.large_string()),
            include_columns=[name for name in names if name in wanted],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=["", *form.nulls],
        ),
    }


def _empty_row(cells: int, delimiter: str) -> bytes:
    """A row before all others, so that the parser has a first batch at once. It would

    continue until it has one, however many rows it passes to the handler meanwhile.
    """
    return (delimiter.join(['""'] * cells) + "\n").encode()


def _without_first(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        left = min(rows, batch.num_rows)
        rows -= left
        yield batch.slice(left)


def _joined(waiting: list[pa.RecordBatch]) -> pa.RecordBatch:
    """All rows that wait."""
    return (pa.Table.from_batches(waiting).combine_chunks().to_batches() or waiting)[0]


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


class _Parser:
    """The batches of Arrow's parser of an open file; a context manager, whose end waits for the thread that reads ahead."""

    def __init__(self, text: _Utf8, **options: Any) -> None:
        handed = _Handed(text)
        self._handed = weakref.ref(handed)
        self._reader: Any = pyarrow.csv.open_csv(handed, **options)
        self.schema = self._reader.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return self._reader.read_next_batch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._reader = None
        until = time.monotonic() + LONGEST
        while self._handed() is not None and time.monotonic() < until:
            time.sleep(PAUSE)


class _Handed:
    """What the parser's thread reads: Arrow alone refers to it, so that its end shows when the thread has released

    it. `read` is not a method of its own: the traceback of a stream's exception would refer to it, and so would whoever keeps
    the error.
    """

    closed = False

    def __init__(self, text: _Utf8) -> None:
        self.read = text.read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        """The opener closes the stream."""


class _Utf8:
    """The file's text as UTF-8, after a row of our own.

    Where the file cannot be read, or is not text in its encoding, it ends: `error` says why. The parser would forget what it
    has read ahead if it were raised here, and print a traceback for a row that it skips.
    """

    def __init__(self, stream: Any, url: str, encoding: str, *, first: bytes) -> None:
        self._stream, self._url, self._encoding, self._done = stream, url, encoding, 0
        self._is_utf8 = codecs.lookup(encoding).name == "utf-8"
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._first, self._rest, self._begun = first, b"", False
        self.error: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        """The next bytes, all of them checked but for a letter that is cut in two."""
        if first := self._first:
            self._first = b""
            return first
        parts, missing = [self._rest], size - len(self._rest)
        while (missing > 0 or size < 0) and (data := self._read(missing)):  # a short block may be shorter than a row
            parts.append(data)
            missing -= len(data)
        data = b"".join(parts)
        data, self._rest = (data, b"") if size < 0 else (data[:size], data[size:])  # recoded, it may be longer
        return data

    def _read(self, size: int) -> bytes:
        """Some of the next bytes; none at the end alone."""
        try:
            while self.error is None:
                data = bytes(self._stream.read(PART if size < 0 else min(size, PART)))
                if (text := self._recoded(data)) or not data:
                    return text
        except Exception as error:  # noqa: BLE001  raised after the rows before it
            self.error = error
        return b""

    def _recoded(self, data: bytes) -> bytes:
        try:
            text = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            name = "UTF-8" if self._is_utf8 else self._encoding
            what = f"text that is not {name}: {error.reason} near byte {self._done + error.start}"
            self.error = BadData(what, where=self._url, fix=SAY_ENCODING)
            data = data[: max(0, error.start - (len(error.object) - len(data)))]  # the decoder kept some of the bytes before
            text = ""
        except UnicodeError as error:
            self.error = BadData(f"text that is not {self._encoding}: {error}", where=self._url, fix=SAY_ENCODING)
            data, text = b"", ""
        self._done += len(data)
        recoded = data if self._is_utf8 else text.encode()
        if recoded and not self._begun:
            self._begun = True
            recoded = recoded.removeprefix(BOM.encode())
        return recoded
