"""CSV files: names, encoding, plain copies, and the rows, which DuckDB parses; rows that it rejects have place and reason.

DuckDB is given UTF-8 and one kind of line ends, by links in a folder of our own: it never sees the names of files.
"""

# ruff: noqa: S608  names of our own alone become SQL, values are bound

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import duckdb
import numpy as np

from offline_cli.errors import BadData
from offline_cli.formats.memory_limits import room_for_data
from offline_cli.formats.source import Openable
from offline_cli.formats.tables.mapping import CsvForm
from offline_cli.formats.tables.packing import damage, packing_of, pieces_of, unpacked
from offline_cli.scopes import Scope

__all__ = ["NO_LETTER", "SAY_ENCODING", "BadRow", "CsvParser", "csv_header", "likely_encoding", "partitions_of", "refuse_twins"]

FILE: Final = "__file"
HEAD: Final = 1 << 20
ROOMY: Final = 512 << 20  # bytes for data, with which CSV is parsed in larger parts
MOST_NAME: Final = 1024  # letters of a column's name
BOM: Final = "\ufeff"
NO_LETTER: Final = "\N{REPLACEMENT CHARACTER}"
SAY_ENCODING: Final = 'set [csv] encoding = "cp1252", "latin-1" or "utf-16", as the file has it, in the mapping'
TABS: Final = (".tsv", ".tsv.gz", ".tsv.zst", ".tsv.zstd")
PARTITION: Final = re.compile(r"^([^=/]+)=([^/]*)$")
ROW_FIX: Final = "--on-error skip to leave out its episode; converting with quarantine keeps the row"
REASONS: Final = {
    "MISSING COLUMNS": "fill in the cells that are missing",
    "TOO MANY COLUMNS": "quote cells that hold the delimiter",
}


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that has no columns, because its file's parser could not read it; or the rest of a file."""

    file: int
    row: int  # number in the file, those of bad rows included
    error: BadData
    raw: bytes = b""


def partitions_of(file: Openable) -> dict[str, str]:
    """Columns of a folder with `key=value` in its path."""
    parts = (PARTITION.match(part) for part in file.url.split("/")[:-1])
    return {part[1]: unquote(part[2]) for part in parts if part is not None and part[2] != "__HIVE_DEFAULT_PARTITION__"}


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


@dataclass(slots=True)
class CsvParser:
    """Parses files into the table `steps` of DuckDB, `c0`, `c1`, ... of the columns of all files, as text."""

    files: Sequence[Openable]
    form: CsvForm
    names: Sequence[str]  # of all files
    columns: Mapping[str, Sequence[str]]  # by URL, of the files that are not damaged before their first row
    con: Any
    folder: str
    memory_limit: int
    bad: list[BadRow] = field(default_factory=list)

    def parse(self) -> tuple[int, list[int], list[BadRow]]:
        """How many good rows there are, the number of the first of each file, and the bad rows."""
        columns = ", ".join(f"c{i} VARCHAR" for i in range(len(self.names)))
        self.con.execute(f"CREATE TABLE steps ({columns}, {FILE} INTEGER)").fetchall()
        ends: dict[int, BadData] = {}  # of files that break off
        for _, alike in groupby(range(len(self.files)), self._alike):
            group = list(alike)
            for number in group:
                failed = self._linked(number)
                if failed is not None:
                    ends[number] = failed
            if self.files[group[0]].url in self.columns:
                ends |= self._insert(group)
        counts = dict(self.con.execute(f"SELECT {FILE}, count(*) FROM steps GROUP BY 1").fetchall())
        starts = [0, *np.cumsum([counts.get(number, 0) for number in range(len(self.files))]).tolist()][:-1]
        for number, error in ends.items():
            row = counts.get(number, 0) + sum(one.file == number for one in self.bad)
            self.bad.append(BadRow(number, row, error))
        return sum(counts.values()), starts, self.bad

    def _alike(self, number: int) -> tuple[Any, ...]:
        """What files have in common that are parsed together."""
        file = self.files[number]
        return tuple(self.columns.get(file.url, ())), tuple(partitions_of(file).items()), delimiter_of(self.form, file.url)

    def _path(self, number: int) -> str:
        return f"{self.folder}/f{number}.csv"

    def _linked(self, number: int, *, mend_line_ends: bool = False) -> BadData | None:
        file = self.files[number]
        try:
            if file.url not in self.columns:  # damaged before its first row: raises the reason
                csv_header(file, self.form)
            return plain_csv(file, self._path(number), self.form, mend_line_ends=mend_line_ends)
        except BadData as error:
            return error

    def _insert(self, group: Sequence[int], *, mended: bool = False) -> dict[int, BadData]:
        """Add the rows of files with the same columns, put aside those that are rejected; files that cannot be read at all."""
        first = self.files[group[0]]
        partitions = partitions_of(first)
        of_file = list(self.columns[first.url])
        said = ", ".join(f"'h{i}': 'VARCHAR'" for i in range(len(of_file)))
        chosen = dict.fromkeys(partitions, "?") | {name: f"h{i}" for i, name in enumerate(of_file)}
        select = ", ".join(f"{chosen.get(name, 'NULL')} AS c{i}" for i, name in enumerate(self.names))
        values: list[Any] = [partitions[name] for name in self.names if chosen.get(name) == "?"]
        skip, buffer = int(self.form.columns is None), 32_000_000 if room_for_data(self.memory_limit) >= ROOMY else 8_000_000
        read = (
            f"read_csv(?, columns = {{{said}}}, header = false, skip = ?, delim = ?, quote = '\"', escape = '\"', nullstr = ?,"
            " auto_detect = false, allow_quoted_nulls = false, store_rejects = true, filename = true, compression = 'none',"
            f" strict_mode = {str(not mended).lower()}, max_line_size = 2000000, buffer_size = {buffer})"
        )
        values += [[self._path(number) for number in group], skip, delimiter_of(self.form, first.url), ["", *self.form.nulls]]
        number_of = "CAST(regexp_extract(filename, 'f([0-9]+)\\.csv$', 1) AS INTEGER)" if len(group) > 1 else str(group[0])
        failed: dict[int, BadData] = {}
        try:
            self.con.execute(f"INSERT INTO steps SELECT {select}, {number_of} FROM {read}", values).fetchall()
        except duckdb.Error as error:
            if not mended:  # perhaps lines end in several ways
                self._drop_rejects()
                for number in group:
                    self._linked(number, mend_line_ends=True)
                    failed |= self._insert([number], mended=True)
                return failed
            what = f"the file cannot be read: {str(error).strip().splitlines()[0][:300]}"
            failed[group[0]] = BadData(what, where=first.url, fix="write the file again")
        self._take_rejects(len(of_file), skip)
        return failed

    def _take_rejects(self, cells: int, skip: int) -> None:
        with suppress(duckdb.CatalogException):  # no table of rejects: none was
            found = self.con.execute(
                "SELECT CAST(regexp_extract(s.file_path, 'f([0-9]+)\\.csv$', 1) AS INTEGER) AS file, e.line,"
                " any_value(CAST(e.error_type AS VARCHAR)), any_value(e.csv_line), any_value(e.error_message)"
                " FROM reject_errors e JOIN reject_scans s USING (scan_id, file_id) GROUP BY 1, 2 ORDER BY 1, 2"
            ).fetchall()
            for number, line, reason, text, message in found:
                row, count = int(line) - 1 - skip, re.search(r"Found: ([0-9]+)", message or "")
                if reason in REASONS and count:
                    what, mend = f"a row of {count[1]} cells under {cells} columns", REASONS[reason]
                elif reason == "INVALID ENCODING":
                    what, mend = "text that is not UTF-8", SAY_ENCODING
                else:
                    what, mend = f"a row that cannot be read: {(message or reason).splitlines()[0][:200]}", "correct the row"
                error = BadData(what, where=f"{self.files[number].url} row {row}", fix=f"{mend}, or {ROW_FIX}")
                raw = (text or "").encode("utf-8", "surrogatepass").rstrip(b"\r\n")
                self.bad.append(BadRow(number, row, error, raw))
            self._drop_rejects()

    def _drop_rejects(self) -> None:
        self.con.execute("DROP TABLE IF EXISTS reject_errors; DROP TABLE IF EXISTS reject_scans").fetchall()
