"""Files of a table as one relation of DuckDB, rows in the order of the files.

DuckDB never sees a name or a path of the files: columns are called by number (`c0`, `k0`), files by links in a folder.
Each row has `__pos`: the number of its file times 2 ** 40, and its own number in that file, bad rows counted too.

* CSV is parsed by DuckDB, once, into a table of text; rows it rejects come with place and reason.
* JSON is parsed once, into a temporary file of Arrow blocks.
* These blocks, Parquet, Arrow and NumPy archives are read as Arrow batches while a query runs.
"""

# ruff: noqa: S608  names of our own alone become SQL, values are bound

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.errors import BadData, BadMapping, MemoryLimitExceeded
from offline_cli.formats.arrow_leaves import is_text
from offline_cli.formats.memory_limits import room_for_data
from offline_cli.formats.npz.archive import NpzArchive
from offline_cli.formats.npz.columns import npz_batches, npz_schema
from offline_cli.formats.source import Openable
from offline_cli.formats.tables import arrow_types, text_files
from offline_cli.formats.tables.mapping import CsvForm
from offline_cli.parquet.reading import ParquetFile, check_footer, without_objects
from offline_cli.running_processes import began, runs
from offline_cli.scopes import Scope

__all__ = ["POS", "ROW_BITS", "TableFiles"]

POS: Final = "__pos"
ROW_BITS: Final = 40  # of a position: the others are the number of the file
BATCH_ROWS: Final = 1 << 16
BATCH_BYTES: Final = 16 << 20
VECTOR: Final = 2048  # rows that DuckDB works on at a time
LEAST_ROOM: Final = 128 << 20  # bytes that DuckDB works in
ARROW_STREAM: Final = b"\xff\xff\xff\xff"

Positions = NDArray[np.int64]


@dataclass(slots=True)
class TableFiles:
    """The files of one table. `open` finds their columns; `relation` gives the rows to a query, again and again."""

    files: Sequence[Openable]
    kind: str  # parquet | arrow | csv | json | npz
    form: CsvForm
    memory_limit: int
    temp_dir: str | None = None
    whole: str | None = None  # a struct that stays whole, as JSON text
    columns: dict[str, list[str]] = field(default_factory=dict)  # by URL: flat columns, partitions of the path too
    kinds: dict[str, pa.DataType] = field(default_factory=dict)  # of the columns of all files together
    units: dict[str, str] = field(default_factory=dict)  # of dates, times and durations, as `relation` has them: ns or us
    types: dict[str, dict[pa.DataType, None]] = field(default_factory=dict)  # all of a column, in whatever file
    bad: list[text_files.BadRow] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # rows of each file that were read so far, bad ones too
    read: int = 0  # bytes of files that were read
    first: int | None = None  # rows that `relation` has at most, for a look at a table
    steps_in: list[str] = field(default_factory=list)  # columns of lists whose values are rows, where a row is an episode
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of tensors, by column
    _schemas: dict[str, list[pa.Schema]] = field(default_factory=dict)  # by URL
    _row_bytes: float | None = None  # of a row in memory, about; None: not known
    _con: Any = None
    _folder: str = ""
    _scope: Scope = field(default_factory=Scope)  # of the folder
    _staged: bool = False  # whether text has been parsed
    _blocks: list[tuple[int, int]] = field(default_factory=list)  # of JSON: file, and where its block of rows begins
    _runs: Positions | None = None  # (2, R) of CSV: first row of the table of a run without bad ones, and what its number lacks
    _failed: BaseException | None = None  # what reading raised while DuckDB ran
    _readers: dict[str, pa.RecordBatchReader] = field(default_factory=dict)  # that no statement has used yet
    _made: int = 0

    # ---- columns ----

    def open(self) -> None:
        """Find the columns of each file. Raises BadData where all are damaged: damage of some is told when they are read."""
        self.counts, errors = [0] * len(self.files), list[BadData]()
        if self.kind == "json":
            self._stage_json()
        for file in () if self.kind == "json" else self.files:
            try:
                with text_files.damage(file.url), Scope() as held:
                    self._schemas[file.url] = [self._schema_of(file, held)]
            except BadData as error:
                errors.append(error)
        if errors and not self._schemas:
            raise errors[0]
        self._find_types()

    def _schema_of(self, file: Openable, held: Scope) -> pa.Schema:
        if self.kind == "csv":
            return pa.schema([(name, pa.string()) for name in text_files.csv_header(file, self.form)])
        if self.kind == "npz":
            return npz_schema(NpzArchive(file, held, memory_limit=self.memory_limit))
        stream = text_files.unpacked(file, held, seekable=True, temp_dir=self.temp_dir)
        if self.kind == "arrow":
            return _open_arrow(stream)[0].schema
        parquet = ParquetFile(stream, pre_buffer=False)
        if self._row_bytes is None:
            groups = [parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups)]
            self._row_bytes = sum(group.total_byte_size for group in groups) / max(1, parquet.metadata.num_rows)
        return parquet.schema_arrow

    def _find_types(self) -> None:
        self.columns, self.types = {}, {}
        for file in self.files:
            if file.url not in self._schemas:
                continue
            names = dict[str, None]()
            for schema in self._schemas[file.url]:
                fields = [one for column in schema for one in self._fields(column)]
                text_files.refuse_twins([name for name, _ in fields], file.url)
                fields += [(name, pa.string()) for name in text_files.partitions_of(file) if name not in schema.names]
                for name, kind in fields:
                    names[name] = self.types.setdefault(name, {})[kind] = None
            self.columns[file.url] = list(names)
        if self.kind == "json":  # a key in any line of any file is a column
            self.columns = {file.url: list(self.types) for file in self.files}
        for name, kinds in self.types.items():
            self.units[name] = "ns" if all(getattr(kind, "unit", "") == "ns" for kind in kinds) else "us"
        self.kinds = {name: arrow_types.unified(kinds, self.units[name]) for name, kinds in self.types.items()}

    def _fields(self, column: pa.Field) -> list[tuple[str, pa.DataType]]:
        if column.name == self.whole and pa.types.is_struct(column.type):
            return [(column.name, pa.large_string())]
        return list(arrow_types.flat_fields(column.name, column.type))

    @property
    def names(self) -> list[str]:
        """Columns of any file."""
        return list(self.kinds)

    @property
    def is_text(self) -> bool:
        """Whether numbers are written as text, which has no dtype."""
        return self.kind in ("csv", "json")

    def kind_of(self, name: str) -> pa.DataType:
        """The type of a column in all files together; of lists of steps, that of a step."""
        return self.kinds[name].value_type if name in self.steps_in else self.kinds[name]

    def holds_text(self, name: str) -> bool:
        """Whether values of a column are texts, of which numbers are made."""
        kind = self.kind_of(name)
        return is_text(kind) or isinstance(kind, pa.UuidType)

    # ---- places ----

    def place(self, pos: int) -> str:
        """File and row of a position."""
        return f"{self.files[pos >> ROW_BITS].url} row {pos & ((1 << ROW_BITS) - 1)}"

    def numbers(self, pos: Any) -> Positions:
        """(N,) positions as numbers of rows, good and bad, of all files together, as far as they were read."""
        before = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])
        pos = np.asarray(pos, np.int64)
        return np.asarray(before[pos >> ROW_BITS] + (pos & ((1 << ROW_BITS) - 1)))

    def counted(self, pos: Any) -> Positions:
        """(N,) positions as queries have them, which count no bad rows of CSV, with these."""
        pos = np.sort(pos) if isinstance(pos, list) else np.asarray(pos)
        if self._runs is not None:
            pos = pos + self._runs[1][np.searchsorted(self._runs[0], pos, side="right") - 1]
        return np.asarray(pos, np.int64)

    # ---- queries ----

    @property
    def _own_folder(self) -> str:
        if not self._folder:
            self._folder = self._scope.enter(_folder_of_this_process(self.temp_dir))
        return self._folder

    @property
    def con(self) -> Any:
        """A database of our own, in memory, which spills to `--temp-dir`; it loads no extension and reaches no network."""
        if self._con is None:
            config: dict[str, Any] = {
                "memory_limit": f"{max(LEAST_ROOM, room_for_data(self.memory_limit) // 2) >> 20}MiB",
                "temp_directory": f"{self._own_folder}/spill",
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
        self._con, self._folder, self._staged = None, "", False
        self._scope.close()

    def query(self, sql: str, values: Sequence[Any] = ()) -> Iterator[pa.RecordBatch]:
        """Batches of a query over `relation`. Raises what reading raised, BadData for what DuckDB cannot do."""
        cursor = self.con.cursor()
        for name, reader in self._readers.items():
            cursor.register(name, reader)
        self._readers = {}
        try:
            for batch in cursor.sql(sql, params=list(values) or None).to_arrow_reader(self._rows_at_once):
                at = batch.schema.get_field_index(POS) if self.kind == "csv" else -1
                yield batch if at < 0 else batch.set_column(at, POS, pa.array(self.counted(batch.column(at))))
        except (duckdb.Error, pa.ArrowException) as error:
            self._raise(error)

    def one(self, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The only row of a query."""
        rows = [row for batch in self.query(sql, values) for row in zip(*map(pa.Array.to_pylist, batch.columns), strict=True)]
        return rows[0]

    @property
    def _rows_at_once(self) -> int:
        if self._row_bytes is not None:
            return int(max(1, min(BATCH_ROWS, BATCH_BYTES // max(1.0, self._row_bytes))))
        kinds = map(arrow_types.plain_type, self.kinds.values())
        is_wide = any(arrow_types.is_list(kind) or arrow_types.is_bytes(kind) for kind in kinds)
        return min(BATCH_ROWS, VECTOR) if is_wide else BATCH_ROWS

    def _raise(self, error: BaseException) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        text, where = str(error).strip().splitlines()[0][:300], self.files[0].url
        if isinstance(error, duckdb.OutOfMemoryException):
            what, fix = f"the table needs more memory: {text}", "raise --memory-limit"
            raise MemoryLimitExceeded(what, where=where, fix=fix) from error
        raise BadData(f"the table cannot be read: {text}", where=where, fix="write the file again from its source") from error

    def relation(self, columns: Collection[str], ids: Collection[str] = ()) -> str:
        """What a query reads from: `c<i>` of the columns of these names, `k<i>` of ids as they were written; see `column`."""
        found = self.every_row({*columns, *self.steps_in}, ids)
        if self.first is not None:
            found = f"(SELECT * FROM {found} LIMIT {int(self.first)})"
        if self.steps_in:
            others = [self.column(name, as_id=True) for name in ids]
            others += [self.column(name) for name in columns if name not in self.steps_in]
            steps = [f"unnest({self.column(name)}) AS {self.column(name)}" for name in self.steps_in]
            chosen = ", ".join([POS, *dict.fromkeys(others), *steps])
            found = f"(SELECT {chosen} FROM {found})"
        return found

    def every_row(self, columns: Collection[str], ids: Collection[str] = ()) -> str:
        """As `relation`, all rows as they are in the files."""
        if self.kind == "csv":
            self._stage_csv()
            return f"(SELECT *, (CAST(file AS BIGINT) << {ROW_BITS}) + rowid AS {POS} FROM steps)"
        if self.kind == "json":
            self._stage_json()
        else:
            self.read = 0
        self._made += 1
        name, wanted = f"reader{self._made}", [one for one in self.names if one in columns or one in ids]
        as_text = [one for one in wanted if one in ids and not self.is_text]
        plain = {self.column(one): self.kinds[one] for one in wanted if one in columns or self.is_text}
        fields = [pa.field(name, arrow_types.plain_type(kind)) for name, kind in plain.items()]
        fields += [pa.field(self.column(one, as_id=True), pa.large_string()) for one in as_text]
        schema = pa.schema([*fields, pa.field(POS, pa.int64())])
        self._readers[name] = pa.RecordBatchReader.from_batches(schema, self._guarded(self._batches(wanted, schema)))
        return name

    def column(self, name: str, *, as_id: bool = False) -> str:
        """The name of a column in `relation`."""
        return f"{'k' if as_id and not self.is_text else 'c'}{self.names.index(name)}"

    def raw_rows(self, positions: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Rows of text as their files have them, by position; others would have to be read again."""
        if not (self.is_text and positions):
            return {}
        wanted = np.array(positions, np.int64)
        if self._runs is not None:  # from numbers in the file to those of the table
            starts = self._runs[0] + self._runs[1]
            wanted -= self._runs[1][np.searchsorted(starts, wanted, side="right") - 1]
        chosen = ", ".join([POS, *map(self.column, self.names)])
        sql = f"SELECT {chosen} FROM {self.every_row(self.names, ())} WHERE {POS} IN (SELECT unnest(?))"
        rows = [tuple(row.values()) for batch in self.query(sql, [wanted.tolist()]) for row in batch.to_pylist()]
        return {row[0]: dict(zip(self.names, row[1:], strict=True)) for row in rows}

    # ---- Arrow batches ----

    def _guarded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """An error of ours would come out of DuckDB as text: it is kept, and raised by `query`."""
        try:
            yield from batches
        except Exception as error:
            self._failed = error
            raise

    def _batches(self, wanted: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self.kind == "json":
            with closing(pa.OSFile(f"{self._own_folder}/blocks")) as stored:
                for number, offset in self._blocks:
                    stored.seek(offset)
                    yield self._plain(pa.ipc.open_stream(stored).read_all(), schema, number)
            return
        for number, file in enumerate(self.files):
            row = 0
            try:
                with text_files.damage(file.url), Scope() as held:
                    for batch in self._of_file(file, wanted, held):
                        pos = (number << ROW_BITS) + np.arange(row, row + batch.num_rows)
                        row += batch.num_rows
                        self.counts[number] = max(self.counts[number], row)
                        table = pa.Table.from_batches([batch]).append_column(POS, pa.array(pos))
                        yield self._plain(table, schema, number)
            except BadData as error:
                if not any(one.file == number for one in self.bad):
                    self.bad.append(text_files.BadRow(number, row, error))
                    self.counts[number] = row + 1
            self.read += file.size()

    def _of_file(self, file: Openable, wanted: Sequence[str], held: Scope) -> Iterator[pa.RecordBatch]:
        if self.kind == "npz":
            archive = NpzArchive(file, held, memory_limit=self.memory_limit)
            yield from (batch for batch, _ in npz_batches(archive, wanted, BATCH_BYTES, BATCH_ROWS, held))
            return
        stream = text_files.unpacked(file, held, seekable=True, temp_dir=self.temp_dir)
        if self.kind == "parquet":
            parquet = ParquetFile(stream, pre_buffer=False, page_checksum_verification=True)
            check_footer(parquet.metadata)
            batches = parquet.iter_batches(self._rows_at_once, columns=arrow_types.holding(parquet.schema_arrow.names, wanted))
        else:
            batches = self._arrow_batches(stream, wanted, file.url)
        for batch in batches:
            batch.validate(full=True)
            yield without_objects(batch)

    def _arrow_batches(self, stream: Any, wanted: Sequence[str], url: str) -> Iterator[pa.RecordBatch]:
        """Record batches, cut where they are large. Raises MemoryLimitExceeded for one that is too large."""
        reader, is_stream = _open_arrow(stream)
        names = arrow_types.holding(reader.schema.names, wanted)
        every = iter(reader) if is_stream else (reader.get_batch(number) for number in range(reader.num_record_batches))
        for batch in every:
            if batch.nbytes > self.memory_limit:
                what = f"a record batch takes {batch.nbytes >> 20} MiB, more than the memory limit"
                raise MemoryLimitExceeded(what, where=url, fix="raise --memory-limit, or write smaller record batches")
            rows = max(1, min(BATCH_ROWS, batch.num_rows * BATCH_BYTES // max(1, batch.nbytes)))
            yield from (batch.select(names).slice(first, rows) for first in range(0, batch.num_rows, rows))

    def _plain(self, table: pa.Table, schema: pa.Schema, number: int) -> pa.RecordBatch:
        """A batch of the file of this number as DuckDB is given it."""
        file, table, names, arrays = self.files[number], arrow_types.flat(table, self.whole), self.names, []
        text_files.refuse_twins(table.column_names, file.url)
        partitions = text_files.partitions_of(file)
        for one in schema.names[:-1]:
            name, kind = names[int(one[1:])], schema.field(one).type
            if name in table.column_names:
                is_id = one[0] == "k"
                arrays.append(arrow_types.as_id(table[name]) if is_id else self._value(table, name, kind, file.url))
            else:
                text = pa.scalar(partitions[name]).cast(kind) if name in partitions else pa.scalar(None, kind)
                arrays.append(pa.repeat(text, table.num_rows))
        arrays.append(table.column(POS).combine_chunks())
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _value(self, table: pa.Table, name: str, kind: pa.DataType, url: str) -> pa.Array:
        try:
            array, shape = arrow_types.plain(table.column(name), table.schema.field(name), kind, self.units[name])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            what = f"column {name} holds {table.schema.field(name).type}, which is not supported: {str(error)[:200]}"
            raise BadMapping(what, where=url, fix="leave the column out of the mapping, or write it as numbers") from error
        if shape:
            self.shapes[name] = shape
        return array

    # ---- text, parsed once ----

    def _stage_json(self) -> None:
        """Parse all files into blocks of Arrow in a temporary file."""
        if self._staged:
            return
        self._staged, self.bad, self._blocks = True, [], []
        with open(f"{self._own_folder}/blocks", "wb") as out:
            for number, file in enumerate(self.files):
                schemas, rows = dict[pa.Schema, None](), 0
                for columns, numbers in text_files.json_columns(file, number, self.memory_limit, self.bad):
                    self._blocks.append((number, out.tell()))
                    schemas[pa.table(columns).schema] = None
                    rows += len(numbers)
                    table = pa.table({**columns, POS: (number << ROW_BITS) + np.array(numbers, np.int64)})
                    with pa.ipc.new_stream(out, table.schema) as writer:
                        writer.write_table(table)
                self._schemas[file.url] = list(schemas)
                self.counts[number] = rows + sum(one.file == number for one in self.bad)
                self.read += file.size()
        if self.bad and not self._blocks:
            raise self.bad[0].error

    def _stage_csv(self) -> None:
        """Parse all files into a table of text."""
        if self._staged:
            return
        self._staged = True
        columns = {url: schemas[0].names for url, schemas in self._schemas.items()}
        parser = text_files.CsvParser(self.files, self.form, self.names, columns, self.con, self._own_folder, self.memory_limit)
        good, self.bad = parser.parse(), parser.bad
        self.bad.sort(key=lambda one: (one.file, one.row))
        runs, first = list[tuple[int, int]](), 0
        for number, count in enumerate(good):
            bad = [one.row for one in self.bad if one.file == number]
            runs += [
                ((number << ROW_BITS) + first + row - i, i - first) for i, row in enumerate([0, *(row + 1 for row in bad)])
            ]
            self.counts[number] = count + len(bad)
            first += count
        self._runs = np.array(runs, np.int64).T
        self.read = sum(file.size() for file in self.files)


def _open_arrow(stream: Any) -> tuple[Any, bool]:
    """A reader of an Arrow IPC file or stream, and whether it is a stream."""
    is_stream = bytes(stream.read(4)) == ARROW_STREAM
    stream.seek(0)
    options = pa.ipc.IpcReadOptions(use_threads=False)
    return (pa.ipc.open_stream if is_stream else pa.ipc.open_file)(stream, options=options), is_stream


def _folder_of_this_process(parent: str | None) -> tempfile.TemporaryDirectory[str]:
    """A folder for rows, gone when it is closed; those of processes of this machine that were killed are removed."""
    own = f"offline-cli-rows-{socket.gethostname()}-"
    folder = Path(parent or tempfile.gettempdir())
    for other in folder.glob(f"{own}*"):
        pid, since = (*other.name.removeprefix(own).split("-"), "", "")[:2]
        if pid.isdigit() and not runs(int(pid), since):
            shutil.rmtree(other, ignore_errors=True)
    return tempfile.TemporaryDirectory(dir=folder, prefix=f"{own}{os.getpid()}-{began(os.getpid())}-")
