"""Tables written as text: the names, encoding and plain copies of CSV files, and JSON lines or arrays as Arrow tables.

DuckDB parses CSV; it is given UTF-8 and one kind of line ends. JSON is parsed by orjson line by line, so that a bad line has a
place and a reason.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa

from offline_cli.errors import BadData, MemoryLimitExceeded
from offline_cli.formats.memory_limits import room_for_data
from offline_cli.formats.source import Openable
from offline_cli.formats.tables.mapping import CsvForm
from offline_cli.formats.tables.packing import damage, packing_of, pieces_of, unpacked
from offline_cli.json_documents import deeper_than, from_json
from offline_cli.scopes import Scope

__all__ = [
    "NO_LETTER",
    "SAY_ENCODING",
    "csv_header",
    "delimiter_of",
    "json_tables",
    "likely_encoding",
    "plain_csv",
    "refuse_twins",
]

JSON_BLOCK: Final = 16 << 20
HEAD: Final = 1 << 20
MOST_NAME: Final = 1024  # letters of a column's name
MAX_DEPTH: Final = 60  # Arrow takes structs and lists nested up to 64 deep
BOM: Final = "\ufeff"
NO_LETTER: Final = "\N{REPLACEMENT CHARACTER}"
SAY_ENCODING: Final = 'set [csv] encoding = "cp1252", "latin-1" or "utf-16", as the file has it, in the mapping'
JSON_FIX: Final = "write one JSON object a line, or --on-error skip to leave out the line"
TABS: Final = (".tsv", ".tsv.gz", ".tsv.zst", ".tsv.zstd")
LONG_INTEGER: Final = re.compile(rb"[0-9]{19}")  # may be beyond 64 bits, where orjson makes floats


# ---- CSV ----


def delimiter_of(form: CsvForm, url: str) -> str:
    """The delimiter between cells: a comma, a tab in .tsv, or what the mapping says."""
    return form.delimiter or ("\t" if url.lower().endswith(TABS) else ",")


def refuse_twins(names: Sequence[str], url: str, fix: str = "rename one of them") -> None:
    """Raise BadData where one name occurs twice, or is too long."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        fix = f"{SAY_ENCODING}: this one is not that of the names" if NO_LETTER in twice[0] else fix
        raise BadData(f"two columns are called {twice[0]!r}", where=url, fix=fix)
    long = next((name for name in names if len(name) > MOST_NAME), None)
    if long is not None:
        what = f"a column whose name has {len(long)} letters: {long[:40]!r}..."
        raise BadData(what, where=url, fix="give columns shorter names")


def csv_header(file: Openable, form: CsvForm) -> list[str]:
    """The names of the columns. Raises BadData where there are none, or one twice."""
    if form.columns is not None:
        return list(form.columns)
    data, names = b"", list[str]()
    with Scope() as scope:
        stream = unpacked(file, scope)
        while len(data) < HEAD and (more := bytes(stream.read(1 << 16))):  # not all of it: the file may break off later
            data += more
            lines = io.StringIO(data.decode(form.encoding, "replace").removeprefix(BOM), newline="")
            try:
                names = next(csv.reader(lines, delimiter=delimiter_of(form, file.url)), [])
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
    with damage(file.url), Scope() as scope:
        data = bytes(unpacked(file, scope).read(1 << 16))
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not data.startswith(codecs.BOM_UTF32_LE):
        return "utf-16"
    line = data.partition(b"\n")[0]
    for encoding in () if b"\0" in line else ("utf-8", "cp1252", "latin-1"):
        with suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder(encoding)().decode(line, final=len(line) < len(data))
            return encoding
    return ""


def plain_csv(file: Openable, path: str, form: CsvForm, *, mend_line_ends: bool = False) -> BadData | None:
    """Make `path` lead to the content as plain UTF-8: a link to the file itself, or a copy, which stops at what is returned.

    `mend_line_ends`: of a file whose lines end in several ways, which DuckDB does not read.
    """
    local: Any = getattr(file, "path", None)
    is_utf8 = codecs.lookup(form.encoding).name == "utf-8"
    with damage(file.url), file.open() as stored:
        is_plain = is_utf8 and not packing_of(bytes(stored.read(4))) and not mend_line_ends
    if is_plain and file.is_local and isinstance(local, str) and Path(local).is_file():
        with suppress(OSError, NotImplementedError):
            os.symlink(os.path.abspath(local), path)
            return None
    Path(path).unlink(missing_ok=True)
    decoder, rest = codecs.getincrementaldecoder(form.encoding)(), b""
    with open(path, "wb") as out:
        try:
            with damage(file.url), Scope() as scope:
                for piece in pieces_of(unpacked(file, scope), 1 << 16):
                    data = rest + (piece if is_utf8 else decoder.decode(piece).encode())
                    cut = data.rfind(b"\n") + 1
                    out.write(_with_plain_ends(data[:cut]) if mend_line_ends else data[:cut])
                    rest = data[cut:]
        except BadData as error:
            return error
        except UnicodeError as error:
            return BadData(f"text that is not {form.encoding}: {error}", where=file.url, fix=SAY_ENCODING)
        out.write(_with_plain_ends(rest) if mend_line_ends else rest)
    return None


def _with_plain_ends(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


# ---- JSON ----


def json_tables(file: Openable, memory_limit: int) -> Iterator[tuple[pa.Table | None, list[tuple[int, BadData, bytes]]]]:
    """Rows of JSON lines, or of an array of objects, block by block, and the lines that hold none: row, error, text.

    Raises BadData where the file breaks off, after the rows before that.
    """
    row = 0
    with damage(file.url), Scope() as scope:
        for lines in _blocks(unpacked(file, scope), file.url, room_for_data(memory_limit) // 8):
            rows: list[dict[str, Any]] = []
            bad: list[tuple[int, BadData, bytes]] = []
            for line in lines:
                if isinstance(line, bytes) and not line.strip():
                    continue
                try:
                    rows.append(_object(line, f"{file.url} row {row}"))
                except BadData as error:
                    bad.append((row, error, line if isinstance(line, bytes) else b""))
                row += 1
            yield (_table(rows) if rows else None), bad


def _blocks(stream: Any, url: str, most: int) -> Iterator[list[Any]]:
    """Lines by blocks, or all items of an array; the last line may lack its end."""
    rest, is_first = b"", True
    for piece in pieces_of(stream, JSON_BLOCK):
        data = piece
        if is_first:
            data, is_first = piece.removeprefix(BOM.encode()), False
            if data.lstrip()[:1] == b"[":
                yield _array(data, stream, url, most)
                return
        *lines, rest = (rest + data).split(b"\n")
        yield lines
        if len(rest) > max(JSON_BLOCK, most):
            what = f"a line of {len(rest) >> 20} MiB"
            raise MemoryLimitExceeded(what, where=url, fix="raise --memory-limit, or write shorter lines")
    yield [rest]


def _array(data: bytes, stream: Any, url: str, most: int) -> list[Any]:
    for piece in pieces_of(stream, JSON_BLOCK):
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
    if deeper_than(value, MAX_DEPTH):
        raise BadData(f"a line nested deeper than {MAX_DEPTH}", where=where, fix=JSON_FIX)
    if not isinstance(value, dict):
        raise BadData(f"a line that holds a {type(value).__name__}, not an object", where=where, fix=JSON_FIX)
    return value


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pa.Array:
    """An Arrow column, of texts where the values have no other type in common."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
        return pa.array(texts, pa.large_string())
