"""Files of a table as one relation of DuckDB, rows in the order of the files.

Whatever the files are, their rows come as numbered Arrow tables; text (CSV, JSON) is parsed once, into a temporary file of such
blocks. DuckDB never sees a name of the files: columns are called by number (`c0`, `c1`, ...). Each row has `__pos`: the number
of its file times 2 ** 40, and its own number in that file, bad rows counted too.

What DuckDB has no type for is changed before: structs become columns with dotted names, dictionaries their values, decimals of
256 bits and half floats floats, durations and times of day nanoseconds, tensors lists, UUIDs text.
"""

# ruff: noqa: S608  names of our own alone become SQL, values are bound

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.datasets.lock import began, runs
from offline_cli.errors import BadData, BadMapping, MemoryLimitExceeded
from offline_cli.formats.arrow_leaves import is_text, tree_of
from offline_cli.formats.memory_limits import room_for_data
from offline_cli.formats.npz.archive import NpzArchive, npz_batches, npz_schema
from offline_cli.formats.source import Openable
from offline_cli.formats.tables import text_files
from offline_cli.formats.tables.mapping import CsvForm
from offline_cli.parquet.reading import ParquetFile, without_objects
from offline_cli.scopes import Scope

POS: Final = "__pos"
ROW_BITS: Final = 40  # of a position: the others are the number of the file
BATCH_ROWS: Final = 1 << 16
BATCH_BYTES: Final = 16 << 20
LEAST_ROOM: Final = 128 << 20  # bytes that DuckDB works in
ARROW_STREAM: Final = b"\xff\xff\xff\xff"

# ---- types of Arrow ----


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists."""
    types = pa.types
    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    return any(test(kind) for test in tests)


def is_bytes(kind: pa.DataType) -> bool:
    """Whether cells hold bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def dtype_of(kind: pa.DataType) -> np.dtype[Any] | None:
    """Of the numbers in a column of that type, times are int64; None where it holds none."""
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
    """The type that DuckDB is given for `kind`."""
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
    """The one type of a column that files hold as several: text where they have no other in common."""
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
    """A column as `kind`, which a `plain_type` is. Raises as Arrow does."""
    if isinstance(array.type, pa.UuidType):
        return pa.array([None if value is None else str(value) for value in array.to_pylist()], kind)
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        return plain(array.dictionary, kind).take(array.indices)
    if kind == pa.int64() and pa.types.is_temporal(array.type):
        return array.cast(pa.duration("ns") if pa.types.is_duration(array.type) else pa.time64("ns")).cast(kind)
    if is_text(kind) and not is_text(array.type) and not pa.types.is_null(array.type):  # files differ in its type
        return json_texts(array.to_pylist())
    return array if array.type == kind else array.cast(kind, safe=not pa.types.is_floating(kind))


def json_texts(values: Iterable[Any]) -> pa.Array:
    """JSON texts of values, null for None."""
    return pa.array([None if value is None else json.dumps(value, default=str) for value in values], pa.large_string())


def _flat_fields(name: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Columns by dotted path, dictionaries as their values."""
    if pa.types.is_struct(kind) and kind.num_fields:
        for part in kind:
            yield from _flat_fields(f"{name}.{part.name}", part.type)
    else:
        yield name, kind.value_type if pa.types.is_dictionary(kind) else kind


def _tensor_of(array: pa.Array, named: pa.Field) -> tuple[pa.Array, tuple[int, ...]] | None:
    """Arrays of one shape as flat lists, and the shape; None where neither type nor metadata says that these are any."""
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
    """The files of one table. `open` finds their columns; `relation` gives the rows to a query, again and again."""

    files: Sequence[Openable]
    kind: str  # parquet | arrow | csv | json | npz
    form: CsvForm
    memory_limit: int
    temp_dir: str | None = None
    whole: str | None = None  # a struct that stays whole, as JSON text
    columns: dict[str, list[str]] = field(default_factory=dict)  # by URL: flat columns, partitions of the path too
    kinds: dict[str, pa.DataType] = field(default_factory=dict)  # of the columns of all files together
    bad: list[text_files.BadRow] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # rows of each file that were read so far, bad ones too
    read: int = 0  # bytes of files that were read
    first: int | None = None  # rows that `relation` has at most, for a look at a table
    steps_in: list[str] = field(default_factory=list)  # columns of lists whose values are rows, where a row is an episode
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of tensors, by column
    _numbers: dict[str, int] = field(default_factory=dict)  # of columns
    _schemas: dict[str, list[pa.Schema]] = field(default_factory=dict)  # by URL
    _row_bytes: float | None = None  # of a row in memory, about; None: not known
    _con: Any = None
    _scope: Scope = field(default_factory=Scope)  # of the folder
    _folder: str = ""
    _blocks: list[tuple[int, int]] | None = None  # of text that was parsed: a file, and where rows of it begin
    _failed: BaseException | None = None  # what reading raised while DuckDB ran
    _readers: dict[str, pa.RecordBatchReader] = field(default_factory=dict)  # that no statement has used yet
    _made: int = 0

    # ---- columns ----

    @property
    def is_text(self) -> bool:
        """Whether numbers are written as text, which has no dtype."""
        return self.kind in ("csv", "json")

    def open(self) -> None:
        """Find the columns of each file. Raises BadData where all are damaged: damage of some is told when they are read."""
        self.counts, errors = [0] * len(self.files), list[BadData]()
        if self.kind == "json":
            self._stage()
            errors += [one.error for one in self.bad if not self._blocks][:1]
        for file in () if self.kind == "json" else self.files:
            try:
                with text_files.damage(file.url), Scope() as held:
                    self._schemas[file.url] = [self._schema_of(file, held)]
            except BadData as error:
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
        if self.kind == "json":  # a key in any line of any file is a column
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
        """The type of a column in all files together; of lists of steps, that of a step."""
        return self.kinds[name].value_type if name in self.steps_in else self.kinds[name]

    def holds_text(self, name: str) -> bool:
        """Whether values of a column are texts, of which numbers are made."""
        kind = self.kind_of(name)
        return is_text(kind) or isinstance(kind, pa.UuidType)

    def column(self, name: str) -> str:
        """The name of a column in `relation`."""
        return f"c{self._numbers[name]}"

    # ---- places ----

    def place(self, pos: int) -> str:
        """File and row of a position."""
        return f"{self.files[pos >> ROW_BITS].url} row {pos & ((1 << ROW_BITS) - 1)}"

    def numbers(self, pos: Any) -> NDArray[np.int64]:
        """(N,) positions as numbers of rows, good and bad, of all files together, as far as they were read."""
        before = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])
        pos = np.asarray(pos, np.int64)
        return np.asarray(before[pos >> ROW_BITS] + (pos & ((1 << ROW_BITS) - 1)))

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
                "memory_limit": f"{max(LEAST_ROOM, 3 * room_for_data(self.memory_limit) // 4) >> 20}MiB",
                "temp_directory": f"{self._own_folder}/spill",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "threads": str(max(1, min(4, os.cpu_count() or 1, self.memory_limit >> 29))),  # each pins memory of its own
            }
            self._con = duckdb.connect(":memory:", config=config)
            self._con.execute("SET GLOBAL TimeZone = 'UTC'").fetchall()
        return self._con

    def close(self) -> None:
        """Drop what was kept, and the folder with it; the files can be read again."""
        if self._con is not None:
            self._con.close()
        self._con, self._folder, self._blocks = None, "", None
        self._scope.close()

    def query(self, sql: str, values: Sequence[Any] = ()) -> Iterator[pa.RecordBatch]:
        """Batches of a query over `relation`. Raises what reading raised, BadData for what DuckDB cannot do."""
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
        """The only row of a query."""
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
        """What a query reads from: the columns of these names, called as `column` says, and `__pos`.

        Lists of steps are rows, unless `as_steps` is false.
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
        """An error of ours would come out of DuckDB as text: it is kept, and raised by `query`."""
        try:
            for number, rows, table in self._rows(wanted):
                yield self._plain(table, (number << ROW_BITS) + rows, wanted, schema, self.files[number])
        except Exception as error:
            self._failed = error
            raise

    def _rows(self, wanted: Sequence[str]) -> Iterator[tuple[int, NDArray[np.int64], pa.Table]]:
        """Number of the file, numbers of rows, rows."""
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
        """Record batches, cut where they are large. Raises MemoryLimitExceeded for one that is too large."""
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
        """A batch as DuckDB is given it; a column that the file lacks is its partition's, or null."""
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
                fix = "leave the column out of the mapping, or write it as numbers"
                raise BadMapping(what, where=file.url, fix=fix) from error
            if tensor is not None:
                self.shapes[name] = tensor[1]
        return pa.RecordBatch.from_arrays([*arrays, pa.array(pos)], schema=schema)

    def _stage(self) -> None:
        """Parse files of text into blocks of Arrow in a temporary file, once."""
        if self._blocks is not None:
            return
        self.bad, self._blocks = [], []
        with open(f"{self._own_folder}/blocks", "wb") as out:
            for number, file in enumerate(self.files):
                schemas, rows = dict[pa.Schema, None](), 0
                for numbers, table in self._parsed(number, file):
                    self._blocks.append((number, out.tell()))
                    schemas[table.schema] = None
                    rows += len(numbers)
                    names = [*table.column_names, POS]
                    table = pa.table([*table.columns, pa.array(numbers)], names)
                    with pa.ipc.new_stream(out, table.schema) as writer:
                        writer.write_table(table)
                if self.kind == "json":
                    self._schemas[file.url] = list(schemas)
                self.counts[number] = rows + sum(one.file == number for one in self.bad)
        self.bad.sort(key=lambda one: (one.file, one.row))

    def _parsed(self, number: int, file: Openable) -> Iterator[text_files.NumberedRows]:
        if self.kind == "json":
            return text_files.json_rows(file, number, room_for_data(self.memory_limit) // 8, self.bad)
        if file.url not in self._schemas:  # damaged before its first row
            what, fix = "the file is damaged before its first row", "write the file again"
            self.bad.append(text_files.BadRow(number, 0, BadData(what, where=file.url, fix=fix)))
            return iter(())
        return text_files.csv_rows(file, number, self.form, self._schemas[file.url][0].names, self.bad)


def _holding(names: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Those of `names` that hold any of the flat columns: themselves, or as structs."""
    wholes = {name[:end] for name in wanted for end in (*(i for i, letter in enumerate(name) if letter == "."), None)}
    return [name for name in names if name in wholes]


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
