"""Files of a table as one relation of DuckDB, rows in the order of the files.

DuckDB never sees a name or a path of the files: columns are called by number (`c0`, `k0`), files by links in a folder.
Each row has `__pos`, its number among all good rows, and `__file`, the number of its file.

* CSV is parsed by DuckDB, once, into a table of text; rows it rejects come with place and reason. Compressed, remote and
  otherwise encoded files are first copied to `--temp-dir` as UTF-8.
* JSON lines are parsed by orjson, so that a bad line has a place and a reason, and kept as tables of DuckDB.
* Parquet, Arrow and NumPy archives are read as Arrow batches while a query runs; types that DuckDB lacks are cast before.
"""

# ruff: noqa: S608  names of our own alone become SQL, values are bound

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import duckdb
import numpy as np
import orjson
import pyarrow as pa

from offline_cli.errors import BadData, BadMapping, MemoryLimitExceeded
from offline_cli.formats.arrow_leaves import is_text, tree_of
from offline_cli.formats.memory_limits import room_for_data
from offline_cli.formats.npz.archive import NpzArchive
from offline_cli.formats.npz.columns import npz_batches, npz_schema
from offline_cli.formats.source import Openable
from offline_cli.formats.tables.arrow_messages import (
    ArrowBound,
    arrow_batches,
    arrow_schema,
    is_arrow_stream,
    parquet_batches,
    parquet_row_bytes,
    parquet_schema,
)
from offline_cli.formats.tables.images import is_bytes
from offline_cli.formats.tables.mapping import CsvForm
from offline_cli.formats.tables.packing import damage, packing_of, seekable, unpacked
from offline_cli.json_documents import deeper_than, from_json
from offline_cli.scopes import Scope

__all__ = ["FILE", "NO_LETTER", "POS", "BadRow", "TableFiles", "is_arrow_stream", "is_list", "likely_encoding"]

POS, FILE = "__pos", "__file"
TEXT_KINDS: Final = ("csv", "json")
BATCH_ROWS: Final = 1 << 16
BATCH_BYTES: Final = 16 << 20
JSON_BLOCK: Final = 16 << 20
VECTOR: Final = 2048  # rows that DuckDB works on at a time
PART: Final = 1 << 20
ROOMY: Final = 512 << 20  # bytes for data, with which CSV is parsed in larger parts
LEAST_ROOM: Final = 128 << 20  # bytes that DuckDB works in
MOST_NAME: Final = 1024  # letters of a column's name
MAX_DEPTH: Final = 60  # Arrow takes structs and lists nested up to 64 deep
BOM: Final = "\ufeff"
NO_LETTER: Final = "\N{REPLACEMENT CHARACTER}"
SAY_ENCODING: Final = 'set [csv] encoding = "cp1252", "latin-1" or "utf-16", as the file has it, in the mapping'
TEXT_KIND_FIX: Final = "--on-error skip to leave out its episode; converting with quarantine keeps the row"
JSON_FIX: Final = "write one JSON object a line, or --on-error skip to leave out the line"
ENDINGS: Final = ("", ".gz", ".zst", ".zstd")
PARTITION: Final = re.compile(r"^([^=/]+)=([^/]*)$")
LONG_INTEGER: Final = re.compile(rb"[0-9]{19}")  # may be beyond 64 bits, where orjson makes floats
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


@dataclass(slots=True)
class TableFiles:
    """The files of one table. `open` finds their columns; `relation` gives the rows to a query, again and again."""

    files: Sequence[Openable]
    kind: str  # parquet | arrow | csv | json | npz
    form: CsvForm
    memory_limit: int
    temp_dir: str | None = None
    types: dict[str, dict[str, pa.DataType]] = field(default_factory=dict)  # by URL: flat columns; partitions of the path too
    bad: list[BadRow] = field(default_factory=list)
    rows: int = 0  # good rows that were read so far, of all files
    starts: list[int] = field(default_factory=list)  # number of the first good row of each file that was begun
    read: int = 0  # bytes of files that were read
    whole: str | None = None  # a struct that stays whole, as JSON text
    first: int | None = None  # rows that `relation` has at most, for a look at a table
    steps_in: list[str] = field(default_factory=list)  # columns of lists whose values are rows, where a row is an episode
    row_bytes: float | None = None  # of a row in memory, about; None: not known
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of tensors, by column
    _con: Any = None
    _stack: ExitStack = field(default_factory=ExitStack)
    _folder: str = ""
    _staged: bool = False
    _blocks: list[tuple[dict[str, pa.DataType], dict[str, int]]] = field(
        default_factory=list
    )  # of JSON: types, places of columns
    _failed: BaseException | None = None  # what reading raised while DuckDB ran
    _readers: dict[str, pa.RecordBatchReader] = field(default_factory=dict)  # that no statement has used yet
    _made: int = 0

    # ---- the connection ----

    @property
    def con(self) -> Any:
        """A database of our own, in memory, which spills to `--temp-dir`; it loads no extension and reaches no network."""
        if self._con is None:
            self._folder = self._stack.enter_context(tempfile.TemporaryDirectory(dir=self.temp_dir, prefix="offline-cli-"))
            config: dict[str, Any] = {
                "memory_limit": f"{max(LEAST_ROOM, room_for_data(self.memory_limit) // 2) >> 20}MiB",
                "temp_directory": f"{self._folder}/spill",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "threads": str(min(4, os.cpu_count() or 1)),
            }
            self._con = duckdb.connect(":memory:", config=config)
            self._con.execute("SET GLOBAL TimeZone = 'UTC'").fetchall()
        return self._con

    def close(self) -> None:
        """Drop what was kept, and the folder with it; the files can be read again."""
        if self._con is not None:
            self._con.close()
        self._con, self._staged, self._blocks = None, False, []
        self.bad = [] if self.kind == "csv" else self.bad
        self._stack.close()

    def _cursor(self) -> Any:
        """A connection for one statement, which knows the relations made since the last one."""
        cursor = self.con.cursor()
        for name, reader in self._readers.items():
            cursor.register(name, reader)
        self._readers = {}
        return cursor

    def query(self, sql: str, values: Sequence[Any] = ()) -> Iterator[pa.RecordBatch]:
        """Batches of a query over `relation`. Raises what reading raised, BadData for what DuckDB cannot do."""
        try:
            found = self._cursor().sql(sql, params=list(values) or None)
            if found is not None:
                yield from found.to_arrow_reader(self._rows_at_once)
        except (duckdb.Error, pa.ArrowException) as error:
            self._raise(error)

    @property
    def _rows_at_once(self) -> int:
        if self.row_bytes is None:
            kinds = [kind for types in self.types.values() for kind in types.values()]
            return (
                min(BATCH_ROWS, VECTOR)
                if any(is_list(kind) or is_bytes(kind) or is_tensor(pa.field("c", kind)) for kind in kinds)
                else BATCH_ROWS
            )
        return int(max(1, min(BATCH_ROWS, BATCH_BYTES // max(1.0, self.row_bytes))))

    def one(self, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The only row of a query."""
        try:
            found: list[tuple[Any, ...]] = self._cursor().execute(sql, list(values)).fetchall()
        except duckdb.Error as error:
            self._raise(error)
        return found[0]

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Run a statement."""
        try:
            self._cursor().execute(sql, list(values)).fetchall()
        except duckdb.Error as error:
            self._raise(error)

    def _raise(self, error: BaseException) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        text = str(error).strip().splitlines()[0][:300]
        if isinstance(error, duckdb.OutOfMemoryException):
            raise MemoryLimitExceeded(
                f"the table needs more memory: {text}", where=self.files[0].url, fix="raise --memory-limit"
            ) from error
        raise BadData(
            f"the table cannot be read: {text}", where=self.files[0].url, fix="write the file again from its source"
        ) from error

    # ---- columns ----

    def open(self) -> None:
        """Find the columns of each file. Raises BadData where all are damaged: damage of some is told when they are read."""
        first: BadData | None = None
        known: dict[Any, dict[str, pa.DataType]] = {}
        if self.kind == "json":
            self._stage_json()
            return
        for file in self.files:
            try:
                found = self._columns(file)
            except BadData as error:
                first = first or error
                continue
            partitions = self._partitions(file)
            found = found | {name: pa.string() for name in partitions if name not in found}
            self.types[file.url] = known.setdefault(tuple(found.items()), found)
        if first is not None and not self.types:
            raise first

    def _columns(self, file: Openable) -> dict[str, pa.DataType]:
        with damage(file.url), Scope() as held:
            if self.kind == "csv":
                return dict.fromkeys(csv_header(held.enter(unpacked(file)), self.form, file.url), pa.string())
            if self.kind == "npz":
                schema = npz_schema(NpzArchive(file, held, memory_limit=self.memory_limit))
            else:
                stream = held.enter(seekable(file, self.temp_dir))
                is_stream = is_arrow_stream(bytes(stream.read(4)))
                stream.seek(0)
                schema = parquet_schema(stream) if self.kind == "parquet" else arrow_schema(stream, is_stream=is_stream)
                if self.kind == "parquet" and self.row_bytes is None:
                    stream.seek(0)
                    self.row_bytes = parquet_row_bytes(stream)
        fields = [one for column in schema for one in self._fields(column)]
        refuse_twins([name for name, _ in fields], file.url)
        return dict(fields)

    def _fields(self, column: pa.Field) -> list[tuple[str, pa.DataType]]:
        """The columns that a column is read as: see `flat`."""
        if column.name == self.whole and pa.types.is_struct(column.type):
            return [(column.name, pa.large_string())]
        return list(flat_fields(column.name, column.type))

    def _partitions(self, file: Openable) -> dict[str, str]:
        """Of a folder with `key=value` in its path."""
        parts = (PARTITION.match(part) for part in file.url.split("/")[:-1])
        return {part[1]: unquote(part[2]) for part in parts if part is not None and part[2] != "__HIVE_DEFAULT_PARTITION__"}

    @property
    def names(self) -> list[str]:
        """Columns of any file."""
        return list(dict.fromkeys(name for types in self.types.values() for name in types))

    @property
    def is_text(self) -> bool:
        """Whether numbers are written as text, which has no dtype."""
        return self.kind in TEXT_KINDS

    def place(self, pos: int) -> str:
        """File and row of a good row."""
        file, row = self.at(np.array([pos]))
        return f"{self.files[int(file[0])].url} row {int(row[0])}"

    def at(self, pos: Any) -> tuple[Any, Any]:
        """(N,) file, and number in it, of good rows: those of bad rows count there too."""
        starts = np.array(self.starts, np.int64)
        file = np.searchsorted(starts, pos, side="right") - 1
        row = pos - starts[file]
        if self.bad:
            key = np.sort(np.array([(one.file << 40) + one.row for one in self.bad], np.int64))
            first = np.searchsorted(key, np.arange(len(starts), dtype=np.int64) << 40)
            good = key - (np.arange(len(key)) - first[key >> 40])  # good rows of its file before each bad one
            row = row + np.searchsorted(good, (file.astype(np.int64) << 40) + row, side="right") - first[file]
        return file, row

    def beside(self) -> list[tuple[BadRow, int]]:
        """Each bad row with the number of the good row after it, among those of all files."""
        found, seen = [], Counter[int]()
        for one in sorted(self.bad, key=lambda one: (one.file, one.row)):
            start = self.starts[one.file] if one.file < len(self.starts) else self.rows
            found.append((one, start + one.row - seen[one.file]))
            seen[one.file] += 1
        return found

    # ---- rows ----

    def relation(self, columns: Collection[str], ids: Collection[str] = ()) -> str:
        """What a query reads from: `c<i>` of the columns of these names, `k<i>` of ids as they were written; see `column`."""
        if self.first is not None:
            most, self.first = self.first, None
            inner = f"(SELECT * FROM {self.relation(columns, ids)} LIMIT {int(most)})"
            self.first = most
            return inner
        if self.steps_in:
            lists, self.steps_in = self.steps_in, []
            inner = self.relation({*columns, *lists}, ids)
            self.steps_in = lists
            sizes = [f"len({self.column(name)})" for name in lists]
            steps = ", ".join(f"unnest({self.column(name)}) AS {self.column(name)}" for name in lists)
            kept = " AND ".join(f"{size} = {sizes[0]}" for size in sizes)
            others = [self.column(name, as_id=True) for name in ids] + [
                self.column(name) for name in columns if name not in lists
            ]
            return f"(SELECT {', '.join([POS, FILE, *dict.fromkeys(others), steps])} FROM {inner} WHERE {kept})"
        if self.kind == "csv":
            self._stage_csv()
            return f"(SELECT *, rowid AS {POS} FROM steps)"
        if self.kind == "json":
            if self._con is None:  # closed since the columns were looked at
                self._stage_json()
            return self._union(columns, ids)
        self._made += 1
        name, self.rows, self.starts, self.read = f"reader{self._made}", 0, [], 0
        wanted = [one for one in self.names if one in set(columns) | set(ids)]
        schema = self._schema(wanted, columns, ids)
        self._readers[name] = pa.RecordBatchReader.from_batches(schema, self._guarded(self._batches(wanted, schema)))
        return name

    def column(self, name: str, *, as_id: bool = False) -> str:
        """The name of a column in `relation`."""
        return f"{'k' if as_id and not self.is_text else 'c'}{self.names.index(name)}"

    def kind_of(self, name: str) -> pa.DataType:
        """The type of a column in all files together; of lists of steps, that of a step."""
        kinds = list(dict.fromkeys(types[name] for types in self.types.values() if name in types))
        if name in self.steps_in:
            kinds = [kind.value_type for kind in kinds]
        known = [kind for kind in kinds if not pa.types.is_null(kind)]
        if len(known) <= 1:
            return known[0] if known else pa.null()
        if all(pa.types.is_temporal(kind) for kind in known):
            return pa.timestamp(self.unit(name))
        with suppress(pa.ArrowException):
            fields = [pa.schema([pa.field("c", carried(kind))]) for kind in known]
            return pa.unify_schemas(fields, promote_options="permissive").field(0).type
        return pa.string()

    def unit(self, name: str) -> str:
        """Of dates, times and durations, as `relation` has them: ns where all files have that, else us."""
        kinds = [types[name] for types in self.types.values() if name in types]
        return "ns" if all(getattr(kind, "unit", "") == "ns" for kind in kinds) else "us"

    def holds_text(self, name: str) -> bool:
        """Whether values of a column are texts, of which numbers are made."""
        kind = self.kind_of(name)
        return is_text(kind) or isinstance(kind, pa.UuidType)

    def raw_row(self, pos: int) -> dict[str, Any] | None:
        """A row as its file has it; None where it would have to be read again."""
        if not self.is_text:
            return None
        row = self.one(
            f"SELECT {', '.join(map(self.column, self.names))} FROM {self.relation(self.names)} WHERE {POS} = ?", [pos]
        )
        return dict(zip(self.names, row, strict=True))

    def unequal_rows(self) -> list[tuple[int, tuple[Any, ...]]]:
        """Rows whose lists of steps have different lengths, with these."""
        names, self.steps_in = self.steps_in, []
        sizes = [f"len({self.column(name)})" for name in names]
        other = " OR ".join(f"{size} IS DISTINCT FROM {sizes[0]}" for size in sizes)
        other = f"{other} OR {sizes[0]} IS NULL OR {sizes[0]} = 0"
        sql = f"SELECT {', '.join([POS, *sizes])} FROM {self.relation(names)} WHERE {other}"
        found = [tuple(row.values()) for batch in self.query(sql) for row in batch.to_pylist()]
        self.steps_in = names
        return [(row[0], row[1:]) for row in found]

    # ---- typed files ----

    def _guarded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """An error of ours would come out of DuckDB as text: it is kept, and raised by `query`."""
        try:
            yield from batches
        except Exception as error:
            self._failed = error
            raise

    def _schema(self, wanted: Sequence[str], columns: Collection[str], ids: Collection[str]) -> pa.Schema:
        fields = [pa.field(f"c{self.names.index(name)}", carried(self.kind_of(name))) for name in wanted if name in columns]
        fields += [pa.field(f"k{self.names.index(name)}", pa.large_string()) for name in wanted if name in ids]
        return pa.schema([*fields, pa.field(FILE, pa.int32()), pa.field(POS, pa.int64())])

    def _batches(self, wanted: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for number, file in enumerate(self.files):
            self.starts.append(self.rows)
            partitions = self._partitions(file)
            try:
                with damage(file.url), Scope() as held:
                    for batch in self._of_file(file, wanted, held):
                        table = flat(pa.Table.from_batches([batch]), self.whole)
                        refuse_twins(table.column_names, file.url)
                        yield self._carried(table, schema, partitions, number)
                        self.rows += batch.num_rows
            except BadData as error:
                if not any(one.file == number for one in self.bad):
                    self.bad.append(BadRow(number, self.rows - self.starts[-1], error))
            self.read += file.size()

    def _of_file(self, file: Openable, wanted: Sequence[str], held: Scope) -> Iterator[pa.RecordBatch]:
        if self.kind == "npz":
            archive = NpzArchive(file, held, memory_limit=self.memory_limit)
            yield from (batch for batch, _ in npz_batches(archive, wanted, BATCH_BYTES, BATCH_ROWS, held))
        else:
            stream, limits = held.enter(seekable(file, self.temp_dir)), (wanted, BATCH_BYTES, BATCH_ROWS)
            if self.kind == "parquet":
                batches = parquet_batches(stream, *limits, size=file.size(), url=file.url, scope=held)
            else:
                is_stream = is_arrow_stream(bytes(stream.read(4)))
                stream.seek(0)
                bound = ArrowBound(file.url, file.size(), self.memory_limit)
                batches = arrow_batches(stream, *limits, is_stream=is_stream, bound=bound)
            yield from (batch for batch, _ in batches)

    def _carried(self, table: pa.Table, schema: pa.Schema, partitions: Mapping[str, str], number: int) -> pa.RecordBatch:
        rows, arrays = table.num_rows, []
        for one in schema:
            if one.name in (FILE, POS):
                arrays.append(
                    pa.array(np.full(rows, number, np.int32) if one.name == FILE else np.arange(self.rows, self.rows + rows))
                )
                continue
            name = self.names[int(one.name[1:])]
            if name in table.column_names:
                column = table.column(name)
                array = as_id(column) if one.name[0] == "k" else self._value(column, table.schema.field(name), one.type)
            elif name in partitions:
                array = pa.array([partitions[name]] * rows, one.type)
            else:
                array = pa.nulls(rows, one.type)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _value(self, column: pa.ChunkedArray, column_field: pa.Field, kind: pa.DataType) -> pa.Array:
        try:
            if is_tensor(column_field):
                values = tree_of(column.drop_null(), column_field, where=lambda row: self.files[-1].url)
                self.shapes[column_field.name] = values.shape[1:]
                flat_values: Any = pa.FixedSizeListArray.from_arrays(
                    pa.array(values.reshape(-1)), int(np.prod(values.shape[1:]))
                )
                if column.null_count:
                    places = np.cumsum(column.is_valid().to_numpy()) - 1
                    flat_values = flat_values.take(pa.array(places, mask=column.is_null().to_numpy(zero_copy_only=False)))
                return flat_values.cast(kind)
            array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
            return cast(array, kind, self.unit(column_field.name))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            what = f"column {column_field.name} holds {column_field.type}, which is not supported: {str(error)[:200]}"
            raise BadMapping(
                what, where=self.files[-1].url, fix="leave the column out of the mapping, or write it as numbers"
            ) from error

    # ---- CSV ----

    def _stage_csv(self) -> None:
        if self._staged:
            return
        self._staged = True
        con, names = self.con, self.names
        columns = ", ".join(f"c{i} VARCHAR" for i in range(len(names)))
        con.execute(f"CREATE TABLE steps ({columns}, {FILE} INTEGER)").fetchall()
        group: list[int] = []
        for number, file in enumerate(self.files):
            like = [self._alike(number), *(self._alike(one) for one in group[-1:])]
            if group and (like[0] != like[1] or len(group) == 1000):
                self._insert(group)
                group = []
            group.append(number)
            self._link(number, file)
        if group:
            self._insert(group)
        counts = dict(con.execute(f"SELECT {FILE}, count(*) FROM steps GROUP BY 1").fetchall())
        self.starts = [0, *np.cumsum([counts.get(number, 0) for number in range(len(self.files))]).tolist()][:-1]
        self.rows, self.read = sum(counts.values()), sum(file.size() for file in self.files)
        for one in [one for one in self.bad if one.row < 0]:  # the rest of a file: after its rows
            row = counts.get(one.file, 0) + sum(other.file == one.file and other.row >= 0 for other in self.bad)
            self.bad[self.bad.index(one)] = BadRow(one.file, row, one.error)

    def _alike(self, number: int) -> tuple[Any, ...]:
        file = self.files[number]
        return id(self.types.get(file.url)), tuple(self._partitions(file).items()), delimiter_of(self.form, file.url)

    def _path(self, number: int) -> str:
        return f"{self._folder}/f{number}.csv"

    def _link(self, number: int, file: Openable) -> None:
        """A path to the content as plain UTF-8: to the file itself, or to a copy, which ends where it cannot be read."""
        path: Any = getattr(file, "path", None)
        with damage(file.url):
            with file.open() as stored:
                head = bytes(stored.read(4))
            is_plain = codecs.lookup(self.form.encoding).name == "utf-8" and not packing_of(head)
            if is_plain and file.is_local and isinstance(path, str) and Path(path).is_file():
                with suppress(OSError, NotImplementedError):
                    os.symlink(os.path.abspath(path), self._path(number))
                    return
            self._copy(number, file)

    def _copy(self, number: int, file: Openable) -> None:
        decoder = codecs.getincrementaldecoder(self.form.encoding)()
        is_utf8 = codecs.lookup(self.form.encoding).name == "utf-8"
        error: BadData | None = None
        with open(self._path(number), "wb") as out:
            try:
                with damage(file.url), unpacked(file) as stream:
                    while data := bytes(stream.read(1 << 16)):
                        out.write(data if is_utf8 else decoder.decode(data).encode())
            except BadData as failed:
                error = failed
            except UnicodeError as failed:
                error = BadData(f"text that is not {self.form.encoding}: {failed}", where=file.url, fix=SAY_ENCODING)
            if error is not None:
                _cut_last_line(out.name, out)
                self.bad.append(BadRow(number, -1, error))

    def _insert(self, group: Sequence[int], *, again: bool = False) -> None:
        """Add the rows of files with the same columns, and put aside those that are rejected."""
        first = self.files[group[0]]
        types = self.types.get(first.url)
        header, partitions = list(types or ()), self._partitions(first)
        of_file = [name for name in header if name not in partitions] if types is not None else []
        if types is None:  # damaged before its first row
            self.bad += [
                BadRow(number, -1, self._why_damaged(number))
                for number in group
                if not any(one.file == number for one in self.bad)
            ]
            return
        said = ", ".join(f"'h{i}': 'VARCHAR'" for i in range(len(of_file)))
        chosen = {name: f"h{of_file.index(name)}" for name in of_file} | dict.fromkeys(partitions, "?")
        select = ", ".join(f"{chosen.get(name, 'NULL')} AS c{i}" for i, name in enumerate(self.names))
        values = [partitions[name] for name in self.names if name in partitions and name not in of_file]
        paths = [self._path(number) for number in group]
        buffer = 32_000_000 if room_for_data(self.memory_limit) >= ROOMY else 8_000_000
        read = (
            f"read_csv(?, columns = {{{said}}}, header = false, skip = ?, delim = ?, quote = '\"', escape = '\"', nullstr = ?,"
            " auto_detect = false, allow_quoted_nulls = false, store_rejects = true, filename = true, compression = 'none',"
            f" strict_mode = {str(not again).lower()}, max_line_size = 2000000, buffer_size = {buffer})"
        )
        skip = 1 if self.form.columns is None else 0
        form = [paths, skip, delimiter_of(self.form, first.url), ["", *self.form.nulls]]
        number_of = "CAST(regexp_extract(filename, 'f([0-9]+)\\.csv$', 1) AS INTEGER)" if len(group) > 1 else str(group[0])
        try:
            self.con.execute(f"INSERT INTO steps SELECT {select}, {number_of} FROM {read}", [*values, *form]).fetchall()
        except duckdb.Error as error:
            if not again:  # lines that end in two ways, which DuckDB's strict mode does not read
                self._drop_rejects()
                for number in group:
                    with_plain_ends(self._path(number))
                    self._insert([number], again=True)
                return
            what = f"the file cannot be read: {str(error).strip().splitlines()[0][:300]}"
            self.bad.append(BadRow(group[0], -1, BadData(what, where=first.url, fix="write the file again")))
        self._take_rejects(group, len(of_file), skip)

    def _why_damaged(self, number: int) -> BadData:
        try:
            self._columns(self.files[number])
        except BadData as error:
            return error
        return BadData("the file cannot be read", where=self.files[number].url, fix="copy or write the file again")

    def _take_rejects(self, group: Sequence[int], cells: int, skip: int) -> None:
        with suppress(duckdb.CatalogException):  # no table of rejects: none was
            found = self.con.execute(
                "SELECT regexp_extract(s.file_path, 'f([0-9]+)\\.csv$', 1), e.line, any_value(CAST(e.error_type AS VARCHAR)),"
                " any_value(e.csv_line), any_value(e.error_message) FROM reject_errors e JOIN reject_scans s"
                " USING (scan_id, file_id)"
                " GROUP BY 1, 2 ORDER BY CAST(regexp_extract(s.file_path, 'f([0-9]+)\\.csv$', 1) AS INTEGER), 2"
            ).fetchall()
            for name, line, reason, text, message in found:
                number, row = int(name), int(line) - 1 - skip
                url, raw = self.files[number].url, (text or "").encode("utf-8", "surrogatepass")
                count = re.search(r"Found: ([0-9]+)", message or "")
                if reason in REASONS and count:
                    what, mend = f"a row of {count[1]} cells under {cells} columns", REASONS[reason]
                elif reason == "INVALID ENCODING":
                    what, mend = "text that is not UTF-8", SAY_ENCODING
                else:
                    what, mend = f"a row that cannot be read: {(message or reason).splitlines()[0][:200]}", "correct the row"
                error = BadData(what, where=f"{url} row {row}", fix=f"{mend}, or {TEXT_KIND_FIX}")
                self.bad.append(BadRow(number, row, error, raw.rstrip(b"\r\n")))
            self._drop_rejects()

    def _drop_rejects(self) -> None:
        self.con.execute("DROP TABLE IF EXISTS reject_errors; DROP TABLE IF EXISTS reject_scans").fetchall()

    # ---- JSON ----

    def _stage_json(self) -> None:
        keys: dict[str, None] = {}
        self.rows, self.starts, self.bad = 0, [], []
        for number, file in enumerate(self.files):
            self.starts.append(self.rows)
            partitions, row = self._partitions(file), 0
            try:
                with damage(file.url), unpacked(file) as stream:
                    for table, bad in json_tables(stream, file.url, number, row, self.memory_limit):
                        self.bad += bad
                        row += len(bad) + (0 if table is None else table.num_rows)
                        if table is not None:
                            table = flat(table, self.whole)
                            refuse_twins(table.column_names, file.url)
                            for name, text in partitions.items():
                                if name not in table.column_names:
                                    table = table.append_column(name, pa.array([text] * table.num_rows))
                            keys |= dict.fromkeys(table.column_names)
                            self._keep_block(table, number)
            except BadData as error:
                self.bad.append(BadRow(number, row, error))
        self.read = sum(file.size() for file in self.files)
        if not self.rows and self.bad:
            raise self.bad[0].error
        types = {name: _unified(name, self._blocks) for name in keys}
        self.types = {file.url: types for file in self.files}

    def _keep_block(self, table: pa.Table, number: int) -> None:
        rows = table.num_rows
        arrays = [cast(column.combine_chunks(), carried(column.type)) for column in table.columns]
        arrays += [pa.array(np.full(rows, number, np.int32)), pa.array(np.arange(self.rows, self.rows + rows))]
        names = [*(f"j{i}" for i in range(table.num_columns)), FILE, POS]
        self.con.register("block", pa.Table.from_arrays(arrays, names))
        self.con.execute(f"CREATE TABLE block{len(self._blocks)} AS SELECT * FROM block").fetchall()
        self.con.unregister("block")
        self._blocks.append(
            (dict(zip(table.column_names, table.schema.types, strict=True)), {n: i for i, n in enumerate(table.column_names)})
        )
        self.rows += rows

    def _union(self, columns: Collection[str], ids: Collection[str]) -> str:
        parts = []
        wanted = [name for name in self.names if name in {*columns, *ids}]
        for number, (_, places) in enumerate(self._blocks):
            chosen = [FILE, POS]
            for name in wanted:
                kind = self.kind_of(name)
                value = f"j{places[name]}" if name in places else "NULL"
                as_type = "VARCHAR" if is_text(kind) else _duck(carried(kind))
                chosen.append(
                    f"CAST({value} AS {as_type}) AS {self.column(name)}" if as_type else f"{value} AS {self.column(name)}"
                )
            parts.append(f"SELECT {', '.join(chosen)} FROM block{number}")
        return f"({' UNION ALL '.join(parts)})"


# ---- Arrow types ----


def flat_fields(name: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Columns by dotted path, dictionaries as their values."""
    if pa.types.is_struct(kind) and kind.num_fields:
        for i in range(kind.num_fields):
            yield from flat_fields(f"{name}.{kind.field(i).name}", kind.field(i).type)
    else:
        yield name, kind.value_type if pa.types.is_dictionary(kind) else kind


def flat(table: pa.Table, whole: str | None) -> pa.Table:
    """`table` without structs; the struct `whole` becomes JSON text."""
    if whole in table.column_names and pa.types.is_struct(table.schema.field(whole).type):
        rows = table.column(whole).to_pylist()
        present = [None if row is None else {key: item for key, item in row.items() if item is not None} for row in rows]
        texts = [None if row is None else json.dumps(row, default=str) for row in present]
        table = table.set_column(table.column_names.index(whole), whole, pa.array(texts, pa.large_string()))
    while any(pa.types.is_struct(kind) and kind.num_fields for kind in table.schema.types):
        table = table.flatten()
    return table


def is_tensor(column: pa.Field) -> bool:
    """Whether a column holds arrays of one shape by its extension type, or a tensor of Ray's by its metadata."""
    name = (column.metadata or {}).get(b"ARROW:extension:name", b"").decode("utf-8", "replace").lower()
    named = getattr(column.type, "extension_name", "") or name
    return isinstance(column.type, pa.FixedShapeTensorType) or str(named).lower().startswith("ray.data.arrow")


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists."""
    types = pa.types
    return any(
        test(kind)
        for test in (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    )


def carried(kind: pa.DataType) -> pa.DataType:
    """The type that DuckDB is given for `kind`: times are integers, decimals and half floats are floats."""
    types = pa.types
    if isinstance(kind, pa.FixedShapeTensorType):
        return pa.list_(kind.value_type)
    if isinstance(kind, pa.UuidType):
        return pa.large_string()
    if isinstance(kind, pa.BaseExtensionType):
        return carried(kind.storage_type)
    if types.is_dictionary(kind):
        return carried(kind.value_type)
    if is_list(kind):
        inner = carried(kind.value_type)
        return pa.list_(inner, kind.list_size) if types.is_fixed_size_list(kind) and not is_list(inner) else pa.list_(inner)
    if types.is_float16(kind):
        return pa.float32()
    if types.is_decimal(kind):
        return pa.float64()
    if types.is_temporal(kind) and not types.is_interval(kind):
        return pa.int64()
    return pa.large_string() if is_text(kind) else kind


def cast(array: pa.Array, kind: pa.DataType, unit: str = "us") -> pa.Array:
    """`array` as what DuckDB is given; `unit`: of times."""
    if isinstance(array.type, pa.UuidType):
        return as_id(pa.chunked_array([array]))
    if isinstance(array.type, pa.BaseExtensionType):
        return cast(array.storage, kind, unit)
    if pa.types.is_dictionary(array.type):
        return cast(cast(array.dictionary, carried(array.type.value_type), unit).take(array.indices), kind, unit)
    if kind == pa.int64() and pa.types.is_temporal(array.type):
        return in_unit(array, unit)
    return array if array.type == kind else array.cast(kind, safe=not pa.types.is_floating(kind))


def in_unit(array: pa.Array, unit: str) -> pa.Array:
    """Dates, times and durations as int64 of `unit`, since 1970 or midnight."""
    kind, types = array.type, pa.types
    if types.is_timestamp(kind) or types.is_date(kind):
        to = pa.timestamp(unit, kind.tz if types.is_timestamp(kind) else None)
    else:
        to = pa.duration(unit) if types.is_duration(kind) else pa.time64(unit)
    return array.cast(to, safe=False).cast(pa.int64())


def as_id(column: pa.ChunkedArray) -> pa.Array:
    """Ids as text: whole floats without a point, bytes as hex where they are no text, UUIDs as people write them."""
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    kind = array.type
    if pa.types.is_dictionary(kind):
        return as_id(pa.chunked_array([array.dictionary])).take(array.indices)
    if isinstance(kind, pa.BaseExtensionType):
        texts = [None if one is None else str(one) for one in array.to_pylist()]
        return pa.array(texts, pa.large_string())
    if pa.types.is_floating(kind):
        values = array.cast(pa.float64())
        known = values.dictionary_encode()
        texts = [
            None if one != one else str(int(one)) if float(one).is_integer() else str(one)
            for one in known.dictionary.to_pylist()
        ]
        return pa.array(texts, pa.large_string()).take(known.indices)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.array([None if one is None else _text_or_hex(one) for one in array.to_pylist()], pa.large_string())
    return array.cast(pa.large_string())


def _text_or_hex(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return value.hex()
    return text if text.isprintable() else value.hex()


def _unified(name: str, every: Sequence[tuple[dict[str, pa.DataType], Any]]) -> pa.DataType:
    """The type of a key of JSON in all blocks: text where they have no other in common."""
    kinds = list(dict.fromkeys(types[name] for types, _ in every if name in types))
    known = [kind for kind in kinds if not pa.types.is_null(kind) and not (pa.types.is_struct(kind) and not kind.num_fields)]
    if len(known) <= 1:
        return known[0] if known else pa.null()
    with suppress(pa.ArrowException):
        return (
            pa.unify_schemas([pa.schema([pa.field("c", kind)]) for kind in known], promote_options="permissive").field(0).type
        )
    return pa.string()


def _duck(kind: pa.DataType) -> str:
    """DuckDB's name of a type; empty: it stays as it is."""
    if is_list(kind):
        inner = _duck(kind.value_type)
        return f"{inner}[]" if inner else ""
    if pa.types.is_floating(kind):
        return "DOUBLE"
    return "BIGINT" if pa.types.is_integer(kind) else "BOOLEAN" if pa.types.is_boolean(kind) else ""


# ---- bytes ----


def refuse_twins(names: Sequence[str], url: str) -> None:
    """Raise BadData where one name occurs twice, or is too long."""
    if len(set(names)) < len(names):
        twice = next(name for name, times in Counter(names).items() if times > 1)
        raise BadData(f"two columns are called {twice!r}", where=url, fix="rename one of them")
    long = next((name for name in names if len(name) > MOST_NAME), None)
    if long is not None:
        raise BadData(
            f"a column whose name has {len(long)} letters: {long[:40]!r}...", where=url, fix="give columns shorter names"
        )


def delimiter_of(form: CsvForm, url: str) -> str:
    """The delimiter between cells: a comma, a tab in .tsv, or what the mapping says."""
    if form.delimiter is not None:
        return form.delimiter
    return "\t" if url.lower().endswith(tuple(f".tsv{ending}" for ending in ENDINGS)) else ","


def csv_header(stream: Any, form: CsvForm, url: str) -> list[str]:
    """The names of the columns. Raises BadData where there are none, or one twice."""
    if form.columns is not None:
        return list(form.columns)
    data, names = b"", list[str]()
    while len(data) < PART and (more := bytes(stream.read(1 << 16))):  # not all of it: the file may break off later
        data += more
        lines = io.StringIO(data.decode(form.encoding, "replace").removeprefix(BOM), newline="")
        try:
            names = next(csv.reader(lines, delimiter=delimiter_of(form, url)), [])
        except csv.Error as error:
            raise BadData(f"no header can be read: {error}", where=url, fix="write the names of the columns first") from error
        if lines.read(1):  # the row is whole
            break
    if not names:
        raise BadData("an empty file", where=url, fix="leave the file out")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        fix = "rename one of them, or name all columns in the mapping under [csv] columns, where the file has no header"
        fix = f"{SAY_ENCODING}: this one is not that of the names" if NO_LETTER in twice[0] else fix
        raise BadData(f"two columns are called {twice[0]!r}", where=url, fix=fix)
    refuse_twins(names, url)
    return names


def likely_encoding(file: Openable) -> str:
    """How the names in the first line seem to be written, as [csv] `encoding` has it; empty: in no way that it could be."""
    with damage(file.url), unpacked(file) as stream:
        data = bytes(stream.read(1 << 16))
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not data.startswith(codecs.BOM_UTF32_LE):
        return "utf-16"
    line = data.partition(b"\n")[0]
    for encoding in () if b"\0" in line else ("utf-8", "cp1252", "latin-1"):
        with suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder(encoding)().decode(line, final=len(line) < len(data))
            return encoding
    return ""


def with_plain_ends(path: str) -> None:
    """Rewrite a file whose lines end in several ways."""
    with open(path, "rb") as stored, open(f"{path}.new", "wb") as out:
        rest = b""
        while data := stored.read(PART):
            data = rest + data
            rest = data[-1:] if data.endswith(b"\r") else b""
            out.write(data[: len(data) - len(rest)].replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        out.write(b"\n" * len(rest))
    os.replace(f"{path}.new", path)


def _cut_last_line(path: str, out: Any) -> None:
    """Take a line off that the file breaks off within."""
    out.flush()
    size = os.path.getsize(path)
    with open(path, "rb") as written:
        written.seek(max(0, size - PART))
        tail = written.read()
    cut = tail.rfind(b"\n") + 1
    out.truncate(size - len(tail) + cut)


def json_tables(
    stream: Any, url: str, number: int, first: int, memory_limit: int
) -> Iterator[tuple[pa.Table | None, list[BadRow]]]:
    """Rows of JSON lines, or of an array of objects, block by block, and the lines that hold none. Raises as reading does."""
    row = first
    for lines, failed in _line_blocks(stream, url, memory_limit):
        rows: list[dict[str, Any]] = []
        bad: list[BadRow] = []
        for line in lines:
            try:
                rows.append(_object(line, f"{url} row {row}"))
            except BadData as error:
                bad.append(BadRow(number, row, error, line if isinstance(line, bytes) else b""))
            row += 1
        yield _table(rows) if rows else None, bad
        if failed is not None:
            raise failed


def _line_blocks(stream: Any, url: str, memory_limit: int) -> Iterator[tuple[Iterable[Any], BaseException | None]]:
    rest, begun, failed = b"", False, None
    while failed is None:
        try:
            data = bytes(stream.read(JSON_BLOCK))
        except Exception as error:  # noqa: BLE001  raised after the lines before it
            data, failed = b"", error
        if not begun:
            data = data.removeprefix(BOM.encode())
            begun = True
            if data.lstrip()[:1] == b"[":
                yield _array(data, stream, url, memory_limit), None
                return
        if not data and failed is None:
            break
        cut = data.rfind(b"\n") + 1
        if cut or failed is not None:
            yield (
                (line for line in (rest + data[:cut]).split(b"\n") if line.strip())
                if failed is None
                else (line for line in (rest + data[:cut]).split(b"\n")[:-1] if line.strip()),
                failed,
            )
            rest = data[cut:]
        else:
            rest += data
        if len(rest) > max(JSON_BLOCK, room_for_data(memory_limit) // 8):
            raise MemoryLimitExceeded(
                f"a line of {len(rest) >> 20} MiB", where=url, fix="raise --memory-limit, or write shorter lines"
            )
    if rest.strip() and failed is None:
        yield [rest], None


def _array(data: bytes, stream: Any, url: str, memory_limit: int) -> list[Any]:
    most = room_for_data(memory_limit) // 8
    while more := bytes(stream.read(JSON_BLOCK)):
        data += more
        if len(data) > most:
            what = f"a JSON array of more than {most >> 20} MiB, which is read at once"
            raise MemoryLimitExceeded(what, where=url, fix="raise --memory-limit, or make lines of it: jq -c '.[]'")
    try:
        found = from_json(data) if LONG_INTEGER.search(data) else orjson.loads(data)
    except ValueError as error:
        try:
            found = from_json(data)  # NaN and Infinity, as Python writes them
        except ValueError:
            raise BadData(f"no whole JSON: {error}", where=url, fix="write the file again from its source") from error
    return list(found) if isinstance(found, list) else [found]


def _object(line: Any, where: str) -> dict[str, Any]:
    value = line
    if isinstance(line, bytes):
        try:
            value = from_json(line) if LONG_INTEGER.search(line) else orjson.loads(line)
        except ValueError as error:
            try:
                value = from_json(line)
            except ValueError:
                raise BadData(f"a line that is not whole JSON: {error}", where=where, fix=JSON_FIX) from error
    if deeper_than(value, MAX_DEPTH):
        raise BadData(f"a line nested deeper than {MAX_DEPTH}", where=where, fix=JSON_FIX)
    if not isinstance(value, dict):
        raise BadData(f"a line that holds a {type(value).__name__}, not an object", where=where, fix=JSON_FIX)
    return value


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    return pa.table({name: _json_column([row.get(name) for row in rows]) for name in names})


def _json_column(values: list[Any]) -> pa.Array:
    """An Arrow column, of texts where the values have no other type in common."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
        return pa.array(texts, pa.large_string())
