"""Files of text: what packed ones hold, whether first bytes are a CSV table, and the rows of CSV and JSON.

DuckDB parses CSV. It is given UTF-8 and one kind of line ends, by links in a folder of our own: it never sees the names of
files. orjson parses JSON, line by line. Rows that cannot be read have a place and a reason; a damaged file raises by name.
"""

# ruff: noqa: S608  names of our own alone become SQL, values are bound

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import duckdb
import orjson
import pyarrow as pa

from offline_cli.errors import BadData, MemoryLimitExceeded
from offline_cli.formats.memory_limits import room_for_data
from offline_cli.formats.source import Openable
from offline_cli.formats.tables.mapping import CsvForm
from offline_cli.parquet.reading import extension_failures
from offline_cli.safe_json import deeper_than, from_json
from offline_cli.scopes import Scope
from offline_cli.storage.failures import storage_failures

__all__ = ["NO_LETTER", "SAY_ENCODING", "BadRow", "CsvParser", "csv_header", "damage", "is_named_csv", "json_columns"]
__all__ += ["likely_encoding", "looks_like_csv", "packing_of", "partitions_of", "refuse_twins", "unpacked", "unpacked_head"]

MAGIC: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
HEAD_BYTES: Final = 1 << 16
MOST_HEADER: Final = 1 << 20  # bytes of it; the file may break off later, and is not read for its names
HEAD_PIECE: Final = 1 << 8  # read at a time: a piece with damage in it is lost whole
PIECE: Final = 1 << 16
NAMED: Final = tuple(f"{name}{packed}" for name in (".csv", ".tsv") for packed in ("", ".gz", ".zst", ".zstd"))
TABS: Final = tuple(name for name in NAMED if name.startswith(".tsv"))
PROSE: Final = (
    *(".md", ".rst", ".html", ".htm", ".xml", ".tex", ".svg", ".log"),
    *(".py", ".sh", ".toml", ".yaml", ".yml", ".ini", ".cfg"),
)
DELIMITERS: Final = (",", "\t", ";", "|")
MAX_NAME: Final = 64  # letters of the name of a column, in a file that may be prose
ROOMY: Final = 512 << 20  # bytes for data, with which CSV is parsed in larger parts
BOM: Final = "\ufeff"
NO_LETTER: Final = "\N{REPLACEMENT CHARACTER}"
SAY_ENCODING: Final = 'set [csv] encoding = "cp1252", "latin-1" or "utf-16", as the file has it, in the mapping'
PARTITION: Final = re.compile(r"^([^=/]+)=([^/]*)$")
ROW_FIX: Final = "--on-error skip to leave out its episode; converting with quarantine keeps the row"
REASONS: Final = {
    "MISSING COLUMNS": "fill in the cells that are missing",
    "TOO MANY COLUMNS": "quote cells that hold the delimiter",
}
JSON_BLOCK: Final = 16 << 20
MAX_DEPTH: Final = 60  # Arrow takes structs and lists nested up to 64 deep
JSON_FIX: Final = "write one JSON object a line, or --on-error skip to leave out the line"
LONG_INTEGER: Final = re.compile(rb"[0-9]{19}")  # may be beyond 64 bits, where orjson makes floats


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that has no columns, because its file's parser could not read it; or the rest of a file."""

    file: int
    row: int  # number in the file, those of bad rows included
    error: BadData
    raw: bytes = b""


# ---- content, unpacked ----


def packing_of(head: bytes) -> str:
    """`gzip`, `zstd`, or nothing, by the first bytes of a file."""
    return next((name for magic, name in MAGIC.items() if head.startswith(magic)), "")


@contextmanager
def damage(url: str) -> Iterator[None]:
    """Within it, bytes that Arrow cannot read raise BadData, and failing storage StorageError."""
    with storage_failures(url, "reading it"):
        try:
            with extension_failures():
                yield
        except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the storage's; Arrow's own have no number
                raise
            what = f"the file breaks off or is damaged: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
            fix = "copy or write the file again, or --on-error skip to read the others"
            raise BadData(what, where=url, fix=fix) from error


def unpacked(file: Openable, scope: Scope, *, seekable: bool = False, temp_dir: str | None = None) -> Any:
    """A file's content from its start; `seekable`: packed content is first written to a temporary file."""
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


def pieces_of(stream: Any, size: int) -> Iterator[bytes]:
    """The content in pieces of about `size` bytes; where it breaks off, what was read before comes first."""
    held, failed = bytearray(), None
    while failed is None:
        try:
            piece = bytes(stream.read(min(PIECE, size)))
        except Exception as error:  # noqa: BLE001  it is raised below
            piece, failed = b"", error
        held += piece
        if held and (len(held) >= size or not piece):
            yield bytes(held)
            held.clear()
        if not piece:
            break
    if failed is not None:
        raise failed


def unpacked_head(file: Openable) -> bytes:
    """The first bytes of the content; where the file is damaged, those before that, or none: they still show its kind."""
    head = b""
    with Scope() as scope:
        stream = unpacked(file, scope)
        with suppress(pa.ArrowException, OSError, EOFError):
            while len(head) < HEAD_BYTES and (piece := bytes(stream.read(HEAD_PIECE))):
                head += piece
    return head


def is_named_csv(name: str) -> bool:
    """Whether a file is called a CSV table, packed or not."""
    return name.lower().endswith(NAMED)


def looks_like_csv(head: bytes, name: str) -> bool:
    """Whether the first bytes of a file are a table: two lines of as many cells, or a CSV file's name; prose is none."""
    if not head.strip() or name.lower().endswith(PROSE):
        return False
    try:
        text = "" if b"\0" in head else codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        text = ""
    return is_named_csv(name) or any(_is_table(text, delimiter) for delimiter in DELIMITERS)


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
    """Columns of a folder with `key=value` in its path."""
    parts = (PARTITION.match(part) for part in file.url.split("/")[:-1])
    return {part[1]: unquote(part[2]) for part in parts if part is not None and part[2] != "__HIVE_DEFAULT_PARTITION__"}


def refuse_twins(names: Sequence[str], url: str, fix: str = "rename one of them") -> None:
    """Raise BadData where one name occurs twice."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        fix = f"{SAY_ENCODING}: this one is not that of the names" if NO_LETTER in twice[0] else fix
        raise BadData(f"two columns are called {twice[0]!r}", where=url, fix=fix)


def _delimiter_of(form: CsvForm, url: str) -> str:
    return form.delimiter or ("\t" if url.lower().endswith(TABS) else ",")


def csv_header(file: Openable, form: CsvForm) -> list[str]:
    """The names of the columns. Raises BadData where there are none, or one twice."""
    if form.columns is not None:
        return list(form.columns)
    data, names = b"", list[str]()
    with damage(file.url), Scope() as scope:
        stream = unpacked(file, scope)
        while len(data) < MOST_HEADER and (more := bytes(stream.read(HEAD_BYTES))):
            data += more
            lines = io.StringIO(data.decode(form.encoding, "replace").removeprefix(BOM), newline="")
            try:
                names = next(csv.reader(lines, delimiter=_delimiter_of(form, file.url)), [])
            except csv.Error as error:
                what = f"no header can be read: {error}"
                raise BadData(what, where=file.url, fix="write the names of the columns first") from error
            if lines.read(1):  # the row is whole
                break
    if not names:
        raise BadData("an empty file", where=file.url, fix="leave the file out")
    refuse_twins(names, file.url, "rename one of them; for a file without a header, [csv] columns in the mapping names all")
    return names


def likely_encoding(file: Openable) -> str:
    """How the names in the first line seem to be written, as [csv] `encoding` has it; empty: in no way that it could be."""
    data = unpacked_head(file)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not data.startswith(codecs.BOM_UTF32_LE):
        return "utf-16"
    line = data.partition(b"\n")[0]
    for encoding in () if b"\0" in line else ("utf-8", "cp1252", "latin-1"):
        with suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder(encoding)().decode(line, final=len(line) < len(data))
            return encoding
    return ""


# ---- CSV ----


@dataclass(slots=True)
class CsvParser:
    """Parses files into the table `steps` of DuckDB: columns of all files as text (`c0`, `c1`, ...), and the file's number."""

    files: Sequence[Openable]
    form: CsvForm
    names: Sequence[str]  # of all files
    columns: Mapping[str, Sequence[str]]  # by URL, of the files that are not damaged before their first row
    con: Any
    folder: str
    memory_limit: int
    bad: list[BadRow] = field(default_factory=list)

    def parse(self) -> list[int]:
        """How many good rows each file has; `bad` has the others."""
        columns = ", ".join(f"c{i} VARCHAR" for i in range(len(self.names)))
        self.con.execute(f"CREATE TABLE steps ({columns}, file INTEGER)").fetchall()
        counts = []
        for number in range(len(self.files)):
            count, ends = self._insert(number)
            counts.append(count)
            if ends is not None:  # the file breaks off
                self.bad.append(BadRow(number, count + sum(one.file == number for one in self.bad), ends))
        return counts

    def _insert(self, number: int, *, mended: bool = False) -> tuple[int, BadData | None]:
        """Add the rows of a file, and put aside those that DuckDB rejects: how many, and why the others cannot be read.

        DuckDB does not read a file whose lines end in several ways at all: then it is read again, its line ends `mended`.
        """
        file, form, path, ends = self.files[number], self.form, f"{self.folder}/f{number}.csv", None
        try:
            with damage(file.url):
                self._copy(file, path, mended)
        except BadData as error:
            ends = error
        except UnicodeError as error:
            ends = BadData(f"text that is not {form.encoding}: {error}", where=file.url, fix=SAY_ENCODING)
        if file.url not in self.columns:  # damaged before its first row
            return 0, ends or BadData("the file is damaged before its first row", where=file.url, fix="write the file again")
        partitions, of_file = partitions_of(file), list(self.columns[file.url])
        said = ", ".join(f"'h{i}': 'VARCHAR'" for i in range(len(of_file)))
        chosen = dict.fromkeys(partitions, "?") | {name: f"h{i}" for i, name in enumerate(of_file)}
        select = ", ".join(f"{chosen.get(name, 'NULL')} AS c{i}" for i, name in enumerate(self.names))
        values: list[Any] = [partitions[name] for name in self.names if chosen.get(name) == "?"]
        skip, buffer = int(form.columns is None), 32_000_000 if room_for_data(self.memory_limit) >= ROOMY else 8_000_000
        read = (
            f"read_csv(?, columns = {{{said}}}, header = false, skip = ?, delim = ?, quote = '\"', escape = '\"', nullstr = ?,"
            " auto_detect = false, allow_quoted_nulls = false, store_rejects = true, compression = 'none',"
            f" strict_mode = {str(not mended).lower()}, max_line_size = 2000000, buffer_size = {buffer})"
        )
        values += [path, skip, _delimiter_of(form, file.url), ["", *form.nulls]]
        try:
            ((added,),) = self.con.execute(f"INSERT INTO steps SELECT {select}, {number} FROM {read}", values).fetchall()
        except duckdb.Error as error:
            self._rejects()
            if not mended:
                return self._insert(number, mended=True)
            what = f"the file cannot be read: {str(error).strip().splitlines()[0][:300]}"
            return 0, BadData(what, where=file.url, fix="write the file again")
        for line, reason, text, message in self._rejects():
            row, count = int(line) - 1 - skip, re.search(r"Found: ([0-9]+)", message or "")
            if reason in REASONS and count:
                what, mend = f"a row of {count[1]} cells under {len(of_file)} columns", REASONS[reason]
            elif reason == "INVALID ENCODING":
                what, mend = "text that is not UTF-8", SAY_ENCODING
            else:
                what, mend = f"a row that cannot be read: {(message or reason).splitlines()[0][:200]}", "correct the row"
            refused = BadData(what, where=f"{file.url} row {row}", fix=f"{mend}, or {ROW_FIX}")
            self.bad.append(BadRow(number, row, refused, (text or "").encode("utf-8", "surrogatepass").rstrip(b"\r\n")))
        return added, ends

    def _copy(self, file: Openable, path: str, mended: bool) -> None:
        """Make `path` lead to the content as plain UTF-8: a link to the file, or a copy as far as it can be read."""
        local: Any = getattr(file, "path", None)
        is_utf8 = codecs.lookup(self.form.encoding).name == "utf-8"
        with file.open() as stored:
            is_plain = is_utf8 and not packing_of(bytes(stored.read(4))) and not mended
        if is_plain and file.is_local and isinstance(local, str) and Path(local).is_file():
            with suppress(OSError, NotImplementedError):
                os.symlink(os.path.abspath(local), path)
                return
        Path(path).unlink(missing_ok=True)
        decoder, rest = codecs.getincrementaldecoder(self.form.encoding)(), b""
        with open(path, "wb") as out, Scope() as scope:
            for piece in chain(pieces_of(unpacked(file, scope), PIECE), [b""]):
                try:
                    data = rest + (piece if is_utf8 else decoder.decode(piece, final=not piece).encode())
                except UnicodeDecodeError as error:
                    raise UnicodeError(str(error)) from error  # no damage
                cut = data.rfind(b"\n") + 1 if piece else len(data)
                out.write(data[:cut].replace(b"\r\n", b"\n").replace(b"\r", b"\n") if mended else data[:cut])
                rest = data[cut:]

    def _rejects(self) -> list[tuple[Any, ...]]:
        """Line, kind, text and message of the rows that DuckDB rejected since it was asked before."""
        found: list[tuple[Any, ...]] = []
        with suppress(duckdb.CatalogException):  # no table of rejects: none was
            asked = "line, any_value(CAST(error_type AS VARCHAR)), any_value(csv_line), any_value(error_message)"
            found = self.con.execute(f"SELECT {asked} FROM reject_errors GROUP BY 1 ORDER BY 1").fetchall()
        self.con.execute("DROP TABLE IF EXISTS reject_errors; DROP TABLE IF EXISTS reject_scans").fetchall()
        return found


# ---- JSON ----


def json_columns(
    file: Openable, number: int, memory_limit: int, bad: list[BadRow]
) -> Iterator[tuple[dict[str, pa.Array], list[int]]]:
    """Rows of JSON lines, or of an array of objects, block by block, each with its number; lines that hold none go to `bad`.

    Where the file breaks off, that is the last bad row.
    """
    row = 0
    try:
        with damage(file.url), Scope() as scope:
            for lines in _blocks(unpacked(file, scope), file.url, room_for_data(memory_limit) // 8):
                rows, numbers = list[dict[str, Any]](), list[int]()
                for line in lines:
                    if isinstance(line, bytes) and not line.strip():
                        continue
                    try:
                        rows.append(_object(line, f"{file.url} row {row}"))
                        numbers.append(row)
                    except BadData as error:
                        bad.append(BadRow(number, row, error, line if isinstance(line, bytes) else b""))
                    row += 1
                if rows:
                    names = dict.fromkeys(chain.from_iterable(rows))
                    yield {name: _column([one.get(name) for one in rows]) for name in names}, numbers
    except BadData as error:
        bad.append(BadRow(number, row, error))


def _blocks(stream: Any, url: str, most: int) -> Iterator[list[Any]]:
    """Lines by blocks, or all items of an array; the last line may lack its end."""
    rest, pieces = b"", pieces_of(stream, JSON_BLOCK)
    for number, piece in enumerate(pieces):
        data = rest + (piece if number else piece.removeprefix(codecs.BOM_UTF8))
        if not number and data.lstrip()[:1] == b"[":
            yield _array(data, pieces, url, most)
            return
        *lines, rest = data.split(b"\n")
        yield lines
        if len(rest) > max(JSON_BLOCK, most):
            what = f"a line of {len(rest) >> 20} MiB"
            raise MemoryLimitExceeded(what, where=url, fix="raise --memory-limit, or write shorter lines")
    yield [rest]


def _array(data: bytes, pieces: Iterator[bytes], url: str, most: int) -> list[Any]:
    for piece in pieces:
        data += piece
        if len(data) > most:
            what = f"a JSON array of more than {most >> 20} MiB, which is read at once"
            raise MemoryLimitExceeded(what, where=url, fix="raise --memory-limit, or make lines of it: jq -c '.[]'")
    try:
        found = _parsed(data)
    except ValueError as error:
        raise BadData(f"no whole JSON: {error}", where=url, fix="write the file again from its source") from error
    return found if isinstance(found, list) else [found]


def _parsed(data: bytes) -> Any:
    """By orjson; by Python's parser where numbers are beyond 64 bits, or NaN and Infinity, as Python writes them."""
    if not LONG_INTEGER.search(data):
        with suppress(ValueError):
            return orjson.loads(data)
    return from_json(data)


def _object(line: Any, where: str) -> dict[str, Any]:
    try:
        value = _parsed(line) if isinstance(line, bytes) else line
    except ValueError as error:
        raise BadData(f"a line that is not whole JSON: {error}", where=where, fix=JSON_FIX) from error
    if deeper_than(value, MAX_DEPTH) or not isinstance(value, dict):
        held = f"a {type(value).__name__}, not an object" if not isinstance(value, dict) else f"more than {MAX_DEPTH} levels"
        raise BadData(f"a line that holds {held}", where=where, fix=JSON_FIX)
    return value


def _column(values: list[Any]) -> pa.Array:
    """An Arrow column, of texts where the values have no other type in common."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
        return pa.array(texts, pa.large_string())
