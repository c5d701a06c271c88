"""The files of a table as one DuckDB relation, with rows in the order of the files.

All files are read as numbered Arrow tables; text (CSV, JSON) is parsed once, into a temporary Arrow file. DuckDB never sees
names from the files: columns are numbered (`c0`, `c1`, ...). Each row has `__pos`: the number of its file times 2 ** 40, plus
its row number in that file, counting bad rows.

Types that DuckDB lacks are converted: structs become columns with dotted names, dictionaries their values, 256-bit decimals and
half floats become floats, durations and times of day nanoseconds, tensors lists, and UUIDs text.
"""

# ruff: noqa: S608  only our own names become SQL; values are bound

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.errors import BadData, BadMapping, MemoryLimitExceeded
from offline_cli.formats.arrow_leaves import is_text, tree_of
from offline_cli.formats.memory_limits import room_for_data
from offline_cli.formats.npz.archive import NpzArchive, npz_batches, npz_schema
from offline_cli.formats.source import Openable, place_of_row
from offline_cli.formats.tables import text_files
from offline_cli.formats.tables.mapping import CsvForm
from offline_cli.parquet.reading import ParquetFile, without_objects
from offline_cli.scopes import Scope
from offline_cli.stop_signals import check

POS: Final = "__pos"
ROW_BITS: Final = 40  # low bits of a position, for the row; the high bits are the file's number
BATCH_ROWS: Final = 1 << 16
BATCH_BYTES: Final = 16 << 20
LEAST_ROOM: Final = 128 << 20  # least memory given to DuckDB, in bytes
ARROW_STREAM: Final = b"\xff\xff\xff\xff"

# ---- Arrow types ----


def is_list(kind: pa.DataType) -> bool:
    """Whether the type is a list."""
    types = pa.types
    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    return any(test(kind) for test in tests)


def is_bytes(kind: pa.DataType) -> bool:
    """Whether the type is bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def dtype_of(kind: pa.DataType) -> np.dtype[Any] | None:
    """The dtype of a column's numbers; int64 for times; None if it holds no numbers."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return dtype_of(kind.storage_type)
    if is_list(kind):
        return dtype_of(kind.value_type)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return np.dtype(str(np.dtype(kind.to_pandas_dtype())))
    if types.is_decimal(kind):
        return np.dtype(np.float64)
    return np.dtype(np.int64) if types.is_temporal(kind) and not types.is_interval(kind) else None


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type passed to DuckDB for `kind`."""
    types = pa.types
    if isinstance(kind, pa.FixedShapeTensorType):
        return pa.list_(kind.value_type)
    if isinstance(kind, pa.UuidType) or is_text(kind):
        return pa.large_string()
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if is_list(kind):
        inner = plain_type(kind.value_type)
        return pa.list_(inner, kind.list_size) if types.is_fixed_size_list(kind) and not is_list(inner) else pa.list_(inner)
    if types.is_fixed_size_binary(kind):
        return pa.large_binary()
    if types.is_decimal256(kind):
        return pa.float64()
    if types.is_float16(kind):
        return pa.float32()
    if types.is_timestamp(kind):
        return pa.timestamp(kind.unit)  # in UTC
    if types.is_date(kind):
        return pa.date32()
    return pa.int64() if types.is_temporal(kind) and not types.is_interval(kind) else kind


def unified(kinds: Iterable[pa.DataType]) -> pa.DataType:
    """The common type of a column whose type differs between files; text if there is no other."""
    known = [kind for kind in dict.fromkeys(kinds) if not pa.types.is_null(kind)]
    if len(known) <= 1:
        return known[0] if known else pa.null()
    if all(pa.types.is_timestamp(kind) or pa.types.is_date(kind) for kind in known):
        return pa.timestamp("ns" if any(pa.types.is_timestamp(kind) and kind.unit == "ns" for kind in known) else "us")
    for is_span, kind in ((pa.types.is_duration, pa.duration("ns")), (pa.types.is_time, pa.time64("ns"))):
        if all(map(is_span, known)):
            return kind
    with suppress(pa.ArrowException):
        fields = [pa.schema([pa.field("c", plain_type(kind))]) for kind in known]
        return pa.unify_schemas(fields, promote_options="permissive").field(0).type
    return pa.string()


def plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a column to `kind`, a result of `plain_type`. Raises ArrowException."""
    if isinstance(array.type, pa.UuidType):
        return pa.array([None if value is None else str(value) for value in array.to_pylist()], kind)
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        return plain(array.dictionary, kind).take(array.indices)
    if kind == pa.int64() and pa.types.is_temporal(array.type):
        return array.cast(pa.duration("ns") if pa.types.is_duration(array.type) else pa.time64("ns")).cast(kind)
    if is_text(kind) and not is_text(array.type) and not pa.types.is_null(array.type):  # the type differs between files
        return json_texts(array.to_pylist())
    return array if array.type == kind else array.cast(kind, safe=not pa.types.is_floating(kind))


def json_texts(values: Iterable[Any]) -> pa.Array:
    """JSON texts of values, null for None."""
    return pa.array([None if value is None else json.dumps(value, default=str) for value in values], pa.large_string())


def _flat_fields(name: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Flatten structs to columns with dotted names; dictionaries have the type of their values."""
    if pa.types.is_struct(kind) and kind.num_fields:
        for part in kind:
            yield from _flat_fields(f"{name}.{part.name}", part.type)
    else:
        yield name, kind.value_type if pa.types.is_dictionary(kind) else kind


def _tensor_of(array: pa.Array, named: pa.Field) -> tuple[pa.Array, tuple[int, ...]] | None:
    """Tensors as flat lists, and their shape; None if neither type nor metadata marks the column as tensors."""
    name = getattr(named.type, "extension_name", "") or (named.metadata or {}).get(b"ARROW:extension:name", b"").decode()
    if not (isinstance(named.type, pa.FixedShapeTensorType) or str(name).lower().startswith("ray.data.arrow")):
        return None
    values = tree_of(array.drop_null(), named, where=lambda row: "a row")
    shape = values.shape[1:]
    found = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), int(np.prod(shape)))
    if array.null_count:
        places = np.cumsum(array.is_valid().to_numpy(zero_copy_only=False)) - 1
        found = found.take(pa.array(places, mask=array.is_null().to_numpy(zero_copy_only=False)))
    return found, shape


# ---- files ----


@dataclass(slots=True)
class TableFiles:
    """The files of one table. `open` finds their columns; `relation` makes their rows available to a query, repeatedly."""

    files: Sequence[Openable]
    kind: str  # parquet | arrow | csv | json | npz
    form: CsvForm
    memory_limit: int
    temp_dir: str | None = None
    whole: str | None = None  # a struct that is not flattened, but becomes JSON text
    columns: dict[str, list[str]] = field(default_factory=dict)  # flat columns by URL, including partitions of the path
    kinds: dict[str, pa.DataType] = field(default_factory=dict)  # common types of columns over all files
    bad: list[text_files.BadRow] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # rows read of each file, including bad ones
    lines: list[int] = field(default_factory=list)  # line of the first row of each file, counted from 1; 0: unknown
    read: int = 0  # bytes of files read
    first: int | None = None  # limit of rows in `relation`, for previews
    steps_in: list[str] = field(default_factory=list)  # columns with lists of steps, if a row is an episode
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # shapes of tensors, by column
    _numbers: dict[str, int] = field(default_factory=dict)  # numbers of columns
    _schemas: dict[str, list[pa.Schema]] = field(default_factory=dict)  # by URL
    _row_bytes: float | None = None  # approximate size of a row in memory; None: unknown
    _con: Any = None
    _scope: Scope = field(default_factory=Scope)  # owns the temporary folder
    _folder: str = ""
    _blocks: list[tuple[int, int]] | None = None  # blocks of parsed text: file number and offset
    _failed: BaseException | None = None  # an error raised by reading while DuckDB ran
    _readers: dict[str, pa.RecordBatchReader] = field(default_factory=dict)  # readers not yet registered with DuckDB
    _made: int = 0

    # ---- columns ----

    @property
    def is_text(self) -> bool:
        """Whether the files are text, in which numbers have no dtype."""
        return self.kind in ("csv", "json")

    def open(self) -> None:
        """Find the columns of each file. Raises BadData if all are damaged, or text does not decode."""
        self.counts, self.lines, errors = [0] * len(self.files), [0] * len(self.files), list[BadData]()
        if self.kind == "json":
            self._stage()
            errors += [one.error for one in self.bad if not self._blocks][:1]
        for file in () if self.kind == "json" else self.files:
            try:
                with text_files.damage(file.url), Scope() as held:
                    self._schemas[file.url] = [self._schema_of(file, held)]
            except BadData as error:
                if self.kind == "csv" and text_files.is_undecoded(error):
                    raise
                errors.append(error)
        if errors and not self._schemas:
            raise errors[0]
        types: dict[str, dict[pa.DataType, None]] = {}
        for file in self.files:
            names = dict[str, None]()
            for schema in self._schemas.get(file.url, ()):
                fields = [one for column in schema for one in self._fields(column)]
                text_files.refuse_twins([name for name, _ in fields], file.url)
                fields += [(name, pa.string()) for name in text_files.partitions_of(file) if name not in schema.names]
                for name, kind in fields:
                    names[name] = types.setdefault(name, {})[kind] = None
            if file.url in self._schemas:
                self.columns[file.url] = list(names)
        if self.kind == "json":  # any key in any line is a column
            self.columns = {file.url: list(types) for file in self.files}
        self.kinds = {name: unified(kinds) for name, kinds in types.items()}
        self._numbers = {name: number for number, name in enumerate(self.kinds)}

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

    def _fields(self, column: pa.Field) -> list[tuple[str, pa.DataType]]:
        if column.name == self.whole and pa.types.is_struct(column.type):
            return [(column.name, pa.large_string())]
        return list(_flat_fields(column.name, column.type))

    def kind_of(self, name: str) -> pa.DataType:
        """The common type of a column over all files; for lists of steps, the type of a step."""
        return self.kinds[name].value_type if name in self.steps_in else self.kinds[name]

    def holds_text(self, name: str) -> bool:
        """Whether a column is text, to be parsed as numbers."""
        kind = self.kind_of(name)
        return is_text(kind) or isinstance(kind, pa.UuidType)

    def column(self, name: str) -> str:
        """The name of a column in `relation`."""
        return f"c{self._numbers[name]}"

    # ---- places ----

    def place(self, pos: int) -> str:
        """File, and row or line, of a position."""
        number = pos >> ROW_BITS
        return place_of_row(self.files[number].url, pos & ((1 << ROW_BITS) - 1), self.lines[number])

    def numbers(self, pos: Any) -> NDArray[np.int64]:
        """(N,) Row numbers over all files, counting bad rows, for positions read so far."""
        before = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])
        pos = np.asarray(pos, np.int64)
        return np.asarray(before[pos >> ROW_BITS] + (pos & ((1 << ROW_BITS) - 1)))

    # ---- queries ----

    @property
    def _own_folder(self) -> str:
        if not self._folder:
            self._folder = self._scope.enter(tempfile.TemporaryDirectory(dir=self.temp_dir, prefix="offline-cli-rows-"))
        return self._folder

    @property
    def con(self) -> Any:
        """A private in-memory database that spills to `--temp-dir`, without extensions or network access."""
        if self._con is None:
            config: dict[str, Any] = {
                "memory_limit": f"{max(LEAST_ROOM, 3 * room_for_data(self.memory_limit) // 4) >> 20}MiB",
                "temp_directory": f"{self._own_folder}/spill",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "threads": str(max(1, min(4, os.cpu_count() or 1, self.memory_limit >> 29))),  # each thread pins memory
            }
            self._con = duckdb.connect(":memory:", config=config)
            self._con.execute("SET GLOBAL TimeZone = 'UTC'").fetchall()
        return self._con

    def close(self) -> None:
        """Close the database and delete the temporary folder; the files can still be read again."""
        if self._con is not None:
            self._con.close()
        self._con, self._folder, self._blocks = None, "", None
        self._scope.close()

    def query(self, sql: str, values: Sequence[Any] = ()) -> Iterator[pa.RecordBatch]:
        """Run a query over `relation`. Raises errors of reading; BadData for errors of DuckDB."""
        cursor = self.con.cursor()
        for name, reader in self._readers.items():
            cursor.register(name, reader)
        self._readers = {}
        try:
            found = cursor.sql(sql, params=list(values) or None)
            yield from () if found is None else found.to_arrow_reader(self._rows_at_once)
        except (duckdb.Error, pa.ArrowException) as error:
            self._raise(error)

    def one(self, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Run a query that returns one row."""
        rows = [row for batch in self.query(sql, values) for row in zip(*map(pa.Array.to_pylist, batch.columns), strict=True)]
        return rows[0]

    @property
    def _rows_at_once(self) -> int:
        if self._row_bytes is not None:
            return int(max(1, min(BATCH_ROWS, BATCH_BYTES // max(1.0, self._row_bytes))))
        is_wide = any(is_list(kind) or is_bytes(kind) for kind in map(plain_type, self.kinds.values()))
        return min(BATCH_ROWS, 2048) if is_wide else BATCH_ROWS

    def _raise(self, error: BaseException) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        text, where = str(error).strip().splitlines()[0][:300], self.files[0].url
        if isinstance(error, duckdb.OutOfMemoryException):
            what, fix = f"the table needs more memory: {text}", "raise --memory-limit"
            raise MemoryLimitExceeded(what, where=where, fix=fix) from error
        raise BadData(f"the table cannot be read: {text}", where=where, fix="write the file again from its source") from error

    def relation(self, columns: Collection[str], *, as_steps: bool = True) -> str:
        """The relation for a query: the given columns, named by `column`, and `__pos`.

        Lists of steps are unnested to rows, unless `as_steps` is false.
        """
        self._made += 1
        self.read = 0
        found, wanted = f"reader{self._made}", [one for one in self.kinds if one in columns or one in self.steps_in]
        schema = pa.schema([*((self.column(one), plain_type(self.kinds[one])) for one in wanted), (POS, pa.int64())])
        self._readers[found] = pa.RecordBatchReader.from_batches(schema, self._batches(wanted, schema))
        if self.first is not None:
            found = f"(SELECT * FROM {found} LIMIT {int(self.first)})"
        if self.steps_in and as_steps:
            cells = [
                self.column(one) if one not in self.steps_in else f"unnest({self.column(one)}) AS {self.column(one)}"
                for one in wanted
            ]
            found = f"(SELECT {', '.join([POS, *cells])} FROM {found})"
        return found

    # ---- rows ----

    def _batches(self, wanted: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Batches for DuckDB, joined over small files. It would turn our errors into text, so they are kept, and raised by
        `query`.
        """
        held, count, size = list[pa.RecordBatch](), 0, 0
        enough = min(self.first or BATCH_ROWS, self._rows_at_once) // 4  # larger ones are not copied
        try:
            for number, rows, table in self._rows(wanted):
                check()
                held.append(self._plain(table, (number << ROW_BITS) + rows, wanted, schema, self.files[number]))
                count, size = count + len(rows), size + table.nbytes
                if count >= enough or size >= BATCH_BYTES // 4:
                    yield pa.concat_batches(held) if len(held) > 1 else held[0]
                    held, count, size = [], 0, 0
            if held:
                yield pa.concat_batches(held)
        except BaseException as error:
            self._failed = error
            raise

    def _rows(self, wanted: Sequence[str]) -> Iterator[tuple[int, NDArray[np.int64], pa.Table]]:
        """File number, row numbers and rows of each batch."""
        if self.is_text:
            self._stage()
            with pa.OSFile(f"{self._own_folder}/blocks") as stored:
                for number, offset in self._blocks or ():
                    stored.seek(offset)
                    table = pa.ipc.open_stream(stored).read_all()
                    yield number, table.column(POS).to_numpy(), table
            self.read = sum(file.size() for file in self.files)
            return
        for number, file in enumerate(self.files):
            row = 0
            try:
                with text_files.damage(file.url), Scope() as held:
                    for batch in self._of_file(file, wanted, held):
                        rows = np.arange(row, row + batch.num_rows)
                        row += batch.num_rows
                        self.counts[number] = max(self.counts[number], row)
                        yield number, rows, pa.Table.from_batches([batch])
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
            parquet = ParquetFile(stream, pre_buffer=False)
            batches = parquet.iter_batches(self._rows_at_once, columns=_holding(parquet.schema_arrow.names, wanted))
        else:
            batches = self._arrow_batches(stream, wanted, file.url)
        for batch in batches:
            batch.validate(full=True)
            yield without_objects(batch)

    def _arrow_batches(self, stream: Any, wanted: Sequence[str], url: str) -> Iterator[pa.RecordBatch]:
        """Record batches, split into smaller ones. Raises MemoryLimitExceeded."""
        reader, is_stream = _open_arrow(stream)
        names = _holding(reader.schema.names, wanted)
        for batch in iter(reader) if is_stream else map(reader.get_batch, range(reader.num_record_batches)):
            if batch.nbytes > self.memory_limit:
                what = f"a record batch takes {batch.nbytes >> 20} MiB, more than the memory limit"
                raise MemoryLimitExceeded(what, where=url, fix="raise --memory-limit, or write smaller record batches")
            rows = max(1, min(BATCH_ROWS, batch.num_rows * BATCH_BYTES // max(1, batch.nbytes)))
            yield from (batch.select(names).slice(first, rows) for first in range(0, batch.num_rows, rows))

    def _plain(
        self, table: pa.Table, pos: NDArray[np.int64], wanted: Sequence[str], schema: pa.Schema, file: Openable
    ) -> pa.RecordBatch:
        """Convert a batch for DuckDB. Missing columns are filled from the path's partitions, or null."""
        partitions, arrays = text_files.partitions_of(file), list[pa.Array]()
        if self.whole in table.column_names and pa.types.is_struct(table.schema.field(self.whole).type):
            rows = table.column(self.whole).to_pylist()
            texts = json_texts(row and {key: item for key, item in row.items() if item is not None} for row in rows)
            table = table.set_column(table.column_names.index(self.whole), self.whole, texts)
        while any(pa.types.is_struct(kind) and kind.num_fields for kind in table.schema.types):
            table = table.flatten()
        for name, kind in zip(wanted, schema.types, strict=False):
            if name not in table.column_names:
                text = pa.scalar(partitions[name]).cast(kind) if name in partitions else pa.scalar(None, kind)
                arrays.append(pa.repeat(text, len(pos)))
                continue
            column, named = table.column(name), table.schema.field(name)
            array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            try:
                tensor = _tensor_of(array, named)
                arrays.append(plain(array, kind) if tensor is None else tensor[0].cast(kind))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                what = f"column {name} holds {named.type}, which is not supported: {str(error)[:200]}"
                fix = "remove the column from the mapping, or write it as numbers"
                raise BadMapping(what, where=file.url, fix=fix) from error
            if tensor is not None:
                self.shapes[name] = tensor[1]
        return pa.RecordBatch.from_arrays([*arrays, pa.array(pos)], schema=schema)

    def _stage(self) -> None:
        """Parse text files into a temporary Arrow file, once."""
        if self._blocks is not None:
            return
        self.bad, self._blocks = [], []
        with open(f"{self._own_folder}/blocks", "wb") as out:
            for number, file in enumerate(self.files):
                schemas, rows, count = dict[pa.Schema, None](), 0, text_files.LineCount()
                for numbers, table in self._parsed(number, file, count):
                    check()
                    self._blocks.append((number, out.tell()))
                    schemas[table.schema] = None
                    rows += len(numbers)
                    names = [*table.column_names, POS]
                    table = pa.table([*table.columns, pa.array(numbers)], names)
                    with pa.ipc.new_stream(out, table.schema) as writer:
                        writer.write_table(table)
                if self.kind == "json":
                    self._schemas[file.url] = list(schemas)
                bad = [one for one in self.bad if one.file == number]
                self.counts[number] = rows + len(bad)
                self.lines[number] = count.first(self.counts[number])
                for one in bad:
                    if one.error.where == place_of_row(file.url, one.row):
                        one.error.where = self.place((number << ROW_BITS) + one.row)
        self.bad.sort(key=lambda one: (one.file, one.row))

    def _parsed(self, number: int, file: Openable, count: text_files.LineCount) -> Iterator[text_files.NumberedRows]:
        if self.kind == "json":
            return text_files.json_rows(file, number, room_for_data(self.memory_limit) // 8, self.bad, count)
        if file.url not in self._schemas:  # damaged before its first row
            what, fix = "the file is damaged before its first row", "write the file again"
            self.bad.append(text_files.BadRow(number, 0, BadData(what, where=file.url, fix=fix)))
            return iter(())
        return text_files.csv_rows(file, number, self.form, self._schemas[file.url][0].names, self.bad, count)


def _holding(names: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The top-level columns in `names` that contain any of the wanted flat columns."""
    wholes = {name[:end] for name in wanted for end in (*(i for i, letter in enumerate(name) if letter == "."), None)}
    return [name for name in names if name in wholes]


def _open_arrow(stream: Any) -> tuple[Any, bool]:
    """Open an Arrow IPC file or stream. Returns the reader, and whether it is a stream."""
    is_stream = bytes(stream.read(4)) == ARROW_STREAM
    stream.seek(0)
    options = pa.ipc.IpcReadOptions(use_threads=False)
    return (pa.ipc.open_stream if is_stream else pa.ipc.open_file)(stream, options=options), is_stream
