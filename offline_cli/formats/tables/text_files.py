"""Parse text files into rows: CSV with Arrow, JSON with orjson; and detect formats by the first bytes.

Content is read in blocks of whole lines, decompressed and converted to UTF-8. A row that cannot be parsed becomes a `BadRow`
with its place and reason. If a file is truncated, the rows before that point are read, and the rest is one bad row.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from offline_cli.errors import BadData, MemoryLimitExceeded
from offline_cli.formats.source import Openable
from offline_cli.formats.tables.mapping import CsvForm
from offline_cli.parquet.reading import extension_failures
from offline_cli.schema_files import deeper_than, from_json
from offline_cli.scopes import Scope
from offline_cli.storage.failures import storage_failures

MAGIC: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
HEAD_BYTES: Final = 1 << 16
HEAD_PIECE: Final = 1 << 8  # bytes read at a time: a damaged piece is lost completely
PIECE: Final = 1 << 16
CSV_BLOCK: Final = 4 << 20  # bytes parsed at a time; a row must fit
JSON_BLOCK: Final = 16 << 20
NAMED: Final = tuple(f"{name}{packed}" for name in (".csv", ".tsv") for packed in ("", ".gz", ".zst", ".zstd"))
PROSE: Final = (
    *(".md", ".rst", ".html", ".htm", ".xml", ".tex", ".svg", ".log"),
    *(".py", ".sh", ".toml", ".yaml", ".yml", ".ini", ".cfg"),
)
MAX_NAME: Final = 64  # longest column name in a file that may be prose
BOM: Final = "\ufeff"
SAY_ENCODING: Final = 'set the file\'s [csv] encoding in the mapping, such as "cp1252", "latin-1" or "utf-16"'
PARTITION: Final = re.compile(r"^([^=/]+)=([^/]*)$")
ROW_FIX: Final = "correct the row, or skip its episode with --on-error skip; converting with quarantine keeps the row"
MAX_DEPTH: Final = 60  # Arrow allows nesting up to 64 deep
LONG_INTEGER: Final = re.compile(rb"[0-9]{19}")  # may exceed 64 bits, for which orjson returns floats

NumberedRows = tuple[NDArray[np.int64], pa.Table]  # (N,) row numbers in the file, and the rows


@dataclass(frozen=True, slots=True)
class BadRow:
    """An unparsable row, or the unreadable rest of a file."""

    file: int
    row: int  # row number in the file, counting bad rows
    error: BadData
    raw: bytes = b""


@dataclass(slots=True)
class LineCount:
    """Counts the lines of a file while it is read, to tell whether each row is one line."""

    header: int = 0  # lines before the first row
    known: bool = True
    _ends: int = 0
    _is_open: bool = False  # whether the last line has no end

    def of(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Count the lines of `blocks`, and pass these on."""
        for block in blocks:
            self._ends, self._is_open = self._ends + block.count(b"\n"), not block.endswith(b"\n")
            yield block

    def first(self, rows: int) -> int:
        """Line of the first of all `rows`, from 1; 0 where rows are not lines: blank lines, quoted line ends, JSON arrays."""
        return self.header + 1 if self.known and self._ends + self._is_open == self.header + rows else 0


# ---- content ----


def packing_of(head: bytes) -> str:
    """Compression by the first bytes of a file: `gzip`, `zstd` or ""."""
    return next((name for magic, name in MAGIC.items() if head.startswith(magic)), "")


@contextmanager
def damage(url: str) -> Iterator[None]:
    """Turn Arrow's errors for damaged bytes into BadData, and storage failures into StorageError."""
    with storage_failures(url, "reading it"):
        try:
            with extension_failures():
                yield
        except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # from storage; Arrow's own errors have no errno
                raise
            what = f"the file is truncated or damaged: {(str(error).strip() or type(error).__name__).splitlines()[0][:300]}"
            fix = "copy or write the file again; of several files, --on-error skip reads the others"
            raise BadData(what, where=url, fix=fix) from error


def unpacked(file: Openable, scope: Scope, *, seekable: bool = False, temp_dir: str | None = None) -> Any:
    """A stream of a file's decompressed content. `seekable`: decompress to a temporary file first."""
    stored = scope.enter(file.open())
    packing = packing_of(stored.read(4))
    stored.seek(0)
    if not packing:
        return stored
    stream = scope.enter(pa.CompressedInputStream(pa.PythonFile(stored, mode="r"), packing))
    if not seekable:
        return stream
    plain = scope.enter(tempfile.TemporaryFile(dir=temp_dir))  # noqa: SIM115  the scope closes it
    shutil.copyfileobj(stream, plain, 1 << 20)
    plain.seek(0)
    return plain


def line_blocks(file: Openable, encoding: str | None, size: int, most: int, scope: Scope) -> Iterator[bytes]:
    """Content as UTF-8, in blocks of about `size` bytes that end at line ends. `encoding` None: bytes are not decoded.

    Raises BadData if the file is truncated or has another encoding (`is_undecoded`), after yielding the whole lines before;
    MemoryLimitExceeded for a line of more than `most` bytes.
    """
    decoder, lines = None if encoding is None else codecs.getincrementaldecoder(encoding)(), 0
    held, failed, piece, stream = bytearray(), None, b"...", unpacked(file, scope)
    while piece:
        try:
            with damage(file.url):
                piece = bytes(stream.read(min(PIECE, size)))
            held += piece if decoder is None else decoder.decode(piece, final=not piece).encode()
            lines += piece.count(b"\n")
        except BadData as error:
            piece, failed = b"", error
        except UnicodeError as error:
            is_cut, where = not piece, file.url
            if isinstance(error, UnicodeDecodeError) and "\n".encode(encoding or "") == b"\n":
                lines += error.object[: error.start].count(b"\n")
                where = f"{file.url} line {lines + 1}"
            piece, failed = b"", BadData(f"text that is not {encoding}: {error}", where=where, fix=SAY_ENCODING)
            failed.__cause__ = None if is_cut else error  # cut within a letter: truncated
        if len(held) >= size or not piece:
            cut = (held.rfind(b"\n") + 1 or held.rfind(b"\r") + 1) if piece or failed else len(held)
            if cut:
                yield bytes(held[:cut])
                del held[:cut]
            if len(held) > most:
                fix = "raise --memory-limit, or write shorter lines"
                raise MemoryLimitExceeded(f"a line of {len(held) >> 20} MiB", where=file.url, fix=fix)
    if failed is not None:
        raise failed


def is_undecoded(error: BaseException) -> bool:
    """Whether `line_blocks` raised an error for text of another encoding, which is no matter of single rows."""
    return isinstance(error.__cause__, UnicodeError)


def unpacked_head(file: Openable) -> bytes:
    """The first bytes of the decompressed content; fewer if the file is damaged, for format detection."""
    head = b""
    with Scope() as scope:
        stream = unpacked(file, scope)
        with suppress(pa.ArrowException, OSError, EOFError):
            while len(head) < HEAD_BYTES and (piece := bytes(stream.read(HEAD_PIECE))):
                head += piece
    return head


def is_named_csv(name: str) -> bool:
    """Whether a file name is that of a CSV table, compressed or not."""
    return name.lower().endswith(NAMED)


def looks_like_csv(head: bytes, name: str) -> bool:
    """Whether a file is a CSV table: by name, or by two first lines with the same number of cells; not prose."""
    if not head.strip() or name.lower().endswith(PROSE):
        return False
    try:
        text = "" if b"\0" in head else codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        text = ""
    return is_named_csv(name) or any(_is_table(text, delimiter) for delimiter in ",\t;|")


def _is_table(text: str, delimiter: str) -> bool:
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        header, first = next(rows, []), next(rows, [])
    except csv.Error:
        return False
    names = {name.strip() for name in header}
    return 1 < len(header) == len(first) == len(names) and max(map(len, names)) <= MAX_NAME


# ---- names of columns ----


def partitions_of(file: Openable) -> dict[str, str]:
    """Partition columns from `key=value` folders in the path."""
    parts = (PARTITION.match(part) for part in file.url.split("/")[:-1])
    return {part[1]: unquote(part[2]) for part in parts if part is not None and part[2] != "__HIVE_DEFAULT_PARTITION__"}


def refuse_twins(names: Sequence[str], url: str, fix: str = "rename one of them") -> None:
    """Raise BadData if a name occurs twice."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise BadData(f"two columns are named {twice[0]!r}", where=url, fix=fix)


def csv_header(file: Openable, form: CsvForm) -> list[str]:
    """Names of the columns. Raises BadData if there are none, or duplicates."""
    if form.columns is not None:
        return list(form.columns)
    with Scope() as scope:
        head = next(line_blocks(file, form.encoding, HEAD_BYTES, CSV_BLOCK, scope), b"").decode()
    try:
        names = next(csv.reader(io.StringIO(head.removeprefix(BOM), newline=""), delimiter=_delimiter_of(form, file.url)), [])
    except csv.Error as error:
        raise BadData(
            f"the header cannot be read: {error}", where=file.url, fix="write the column names as the first line"
        ) from error
    if not names:
        raise BadData("the file is empty", where=file.url, fix="remove the file from the sources")
    refuse_twins(names, file.url, "rename one of them; for a file without a header, set [csv] columns in the mapping")
    return names


def _delimiter_of(form: CsvForm, url: str) -> str:
    return form.delimiter or ("\t" if url.lower().endswith(NAMED[len(NAMED) // 2 :]) else ",")


# ---- CSV ----


class _Lines(io.RawIOBase):
    """Blocks as a file object that ends with a newline. `failed`: the error if the blocks ended early."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._block = chain(blocks, [b"\n"]), b""
        self.failed: BadData | MemoryLimitExceeded | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            if not self._block:
                self._block = next(self._blocks, b"")
        except (BadData, MemoryLimitExceeded) as error:
            self.failed = error
        piece, self._block = self._block[:size], self._block[size:]
        return piece


def csv_rows(
    file: Openable, number: int, form: CsvForm, names: Sequence[str], bad: list[BadRow], count: LineCount
) -> Iterator[NumberedRows]:
    """Batches of rows as text columns `names`. Rows with another number of cells, and an unreadable rest, go to `bad`."""
    skipped, first, ragged = int(form.columns is None), 0, list[int]()
    count.header = skipped

    def refuse(row: pa.csv.InvalidRow) -> str:
        ragged.append(row.number - 1 - skipped)
        what = f"the row has {row.actual_columns} cells, but there are {row.expected_columns} columns"
        error = BadData(what, where=f"{file.url} row {ragged[-1]}", fix=ROW_FIX)
        bad.append(BadRow(number, ragged[-1], error, row.text.encode("utf-8", "surrogateescape")))
        return "skip"

    read = pa.csv.ReadOptions(use_threads=False, block_size=CSV_BLOCK, column_names=names, skip_rows_after_names=skipped)
    parse = pa.csv.ParseOptions(delimiter=_delimiter_of(form, file.url), newlines_in_values=True, invalid_row_handler=refuse)
    convert = pa.csv.ConvertOptions(
        check_utf8=False,
        column_types=dict.fromkeys(names, pa.string()),
        null_values=["", *form.nulls],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    with Scope() as scope:
        lines = _Lines(count.of(line_blocks(file, form.encoding, CSV_BLOCK, CSV_BLOCK, scope)))
        try:
            with damage(file.url):
                for batch in pa.csv.open_csv(pa.PythonFile(lines, mode="r"), read, parse, convert):
                    rows = np.arange(first, first + batch.num_rows)
                    first += batch.num_rows
                    rows += np.searchsorted(np.array(ragged) - np.arange(len(ragged)), rows, side="right")
                    yield rows, pa.Table.from_batches([batch])
        except BadData as error:
            lines.failed = lines.failed or error
        if isinstance(lines.failed, MemoryLimitExceeded) or (lines.failed is not None and is_undecoded(lines.failed)):
            raise lines.failed
        if lines.failed is not None:
            rest = first + len(ragged)
            at_row = BadData(lines.failed.what, where=f"{file.url} row {rest}", fix=lines.failed.fix)
            bad.append(BadRow(number, rest, at_row))


# ---- JSON ----


def json_rows(file: Openable, number: int, most: int, bad: list[BadRow], count: LineCount) -> Iterator[NumberedRows]:
    """Batches of rows from JSON lines, or a JSON array of objects; lines that are not objects go to `bad`.

    `most`: limit of a line or array, in bytes. Raises MemoryLimitExceeded.
    """
    row = 0
    try:
        with Scope() as scope:
            blocks = count.of(line_blocks(file, None, JSON_BLOCK, max(JSON_BLOCK, most), scope))
            for items in _items(blocks, file.url, most):
                rows, numbers = list[dict[str, Any]](), list[int]()
                count.known &= all(isinstance(item, bytes) for item in items)
                for item in items:
                    try:
                        rows.append(_object(item, f"{file.url} row {row}"))
                        numbers.append(row)
                    except BadData as error:
                        bad.append(BadRow(number, row, error, item if isinstance(item, bytes) else b""))
                    row += 1
                if rows:
                    names = dict.fromkeys(chain.from_iterable(rows))
                    columns = {name: _column([one.get(name) for one in rows]) for name in names}
                    yield np.array(numbers, np.int64), pa.table(columns)
    except BadData as error:
        bad.append(BadRow(number, row, error))


def _items(blocks: Iterator[bytes], url: str, most: int) -> Iterator[list[Any]]:
    """Nonblank lines of each block; or all items of an array."""
    first = next(blocks, b"").removeprefix(codecs.BOM_UTF8)
    if first.lstrip()[:1] != b"[":
        for block in chain([first], blocks):
            yield [line for line in block.split(b"\n") if line.strip()]
        return
    for block in blocks:
        first += block
        if len(first) > most:
            what = f"a JSON array of more than {most >> 20} MiB, which must be read at once"
            raise MemoryLimitExceeded(what, where=url, fix="raise --memory-limit, or convert it to JSON lines: jq -c '.[]'")
    try:
        found = _parsed(first)
    except ValueError as error:
        raise BadData(f"not complete JSON: {error}", where=url, fix="write the file again from its source") from error
    yield found if isinstance(found, list) else [found]


def _parsed(data: bytes) -> Any:
    """Parse JSON with orjson; with Python's parser if there are integers beyond 64 bits, NaN or Infinity."""
    if not LONG_INTEGER.search(data):
        with suppress(ValueError):
            return orjson.loads(data)
    return from_json(data)


def _object(item: Any, where: str) -> dict[str, Any]:
    fix = "write one JSON object per line, or skip the line with --on-error skip"
    try:
        value = _parsed(item) if isinstance(item, bytes) else item
    except ValueError as error:
        raise BadData(f"the line is not complete JSON: {error}", where=where, fix=fix) from error
    if not isinstance(value, dict):
        raise BadData(f"the line holds a {type(value).__name__}, not an object", where=where, fix=fix)
    if deeper_than(value, MAX_DEPTH):
        raise BadData(f"the line is nested more than {MAX_DEPTH} deep", where=where, fix=fix)
    return value


def _column(values: list[Any]) -> pa.Array:
    """An Arrow column; text if the values have no common type."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
        return pa.array(texts, pa.large_string())
