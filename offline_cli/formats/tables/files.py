"""Table files as raw chunks of bounded size, each row with its number; a damaged file raises by name.

A raw chunk has flat columns: structs are taken apart (`state.x`), dictionaries made plain. Nothing is converted yet.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.errors import BadData, BadMapping
from offline_cli.formats.memory_limits import MEMORY_LIMIT, give_back
from offline_cli.formats.npz.archive import NpzArchive
from offline_cli.formats.npz.columns import npz_batches, npz_schema
from offline_cli.formats.rllib.json_lines import line_limit_of
from offline_cli.formats.source import Openable
from offline_cli.formats.tables.arrow_messages import (
    ArrowBound,
    arrow_batches,
    arrow_schema,
    parquet_batches,
    parquet_schema,
)
from offline_cli.formats.tables.claims import cells_of_csv, cells_of_json
from offline_cli.formats.tables.csv_files import csv_batches, csv_header, delimiter_of, likely_encoding
from offline_cli.formats.tables.json_files import json_batches, json_schemas
from offline_cli.formats.tables.mapping import CsvForm
from offline_cli.formats.tables.packing import damage, seekable, unpacked
from offline_cli.scopes import Scope, part_of

__all__ = ["BadRow", "RawChunk", "TableFile", "flat", "flat_types", "is_arrow_stream", "with_types"]

ARROW_STREAM: Final = b"\xff\xff\xff\xff"
TEXT_KINDS: Final = ("csv", "json")
TYPED_KINDS: Final = ("parquet", "arrow-file", "npz")  # each of whose columns can be read by itself
MAX_ROWS: Final = 1 << 16
NULLS_READ: Final = 4 << 20  # bytes that are read at a time to find nulls
MAX_NAME: Final = 1024  # letters of the name of a column, those of the structs around it included
MAX_KEYS: Final = 1 << 17  # of JSON lines, those of objects within objects included


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that its file's own parser could not read."""

    row: int
    error: BadData
    raw: bytes


@dataclass(frozen=True, slots=True)
class RawChunk:
    """Consecutive rows of one file."""

    table: pa.Table
    rows: NDArray[np.int64]  # (N,) number of each row in its file, from 0
    nbytes: int  # of the file, as it is stored, that have been read with it
    bad: Sequence[BadRow]  # between these rows


@dataclass(slots=True)
class TableFile:
    """One file; its content shows its packing, and which form of Arrow it has.

    A small file is opened once (`Location.open`). A larger one is opened for each pass over it: `types` has to know the columns
    of all files, the last of which may have another, before the first row of any file is read.
    """

    file: Openable
    kind: str  # parquet | csv | json | npz | arrow, and once that has been opened, arrow-file | arrow-stream
    memory_limit: int = MEMORY_LIMIT  # bytes of a record batch of Arrow
    packing: str = field(default="", init=False)  # gzip | zstd | nothing, once it has been opened
    _schema: Any = field(default=None, init=False)  # pa.Schema; of CSV the names of its columns
    _types: dict[str, pa.DataType] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """For messages."""
        return self.file.url

    @property
    def is_text(self) -> bool:
        """Whether numbers are written as text, which has no dtype."""
        return self.kind in TEXT_KINDS

    @property
    def rereads_cheaply(self) -> bool:
        """Whether a few columns are read in less time than all."""
        return self.kind in TYPED_KINDS and not self.packing

    @property
    def _line_limit(self) -> int:
        return line_limit_of(self.file.size(), packed=bool(self.packing))

    def types(self, form: CsvForm, temp_dir: str | None, like: TableFile | None = None) -> dict[str, pa.DataType]:
        """The flat columns by name, in their order; of JSON lines, the keys of any of them. Raises BadData, BadMapping.

        `like`: another file, whose dict is given where this one has the same schema: there may be 100,000 files.
        """
        if self._types is None:
            found = self._keys(temp_dir) if self.kind == "json" else self._columns(form, temp_dir, like)
            long = next((name for name in found if len(name) > MAX_NAME), None)
            if long is not None:
                what = f"a column whose name has {len(long)} letters: {long[:40]!r}..."
                fix = "give columns shorter names; write what differs from row to row as values"
                raise BadData(what, where=self.url, fix=fix)
            self._types = found
        return self._types

    def _columns(self, form: CsvForm, temp_dir: str | None, like: TableFile | None) -> dict[str, pa.DataType]:
        with damage(self.url), Scope() as held:
            stream = self._open(temp_dir, held)
            if self.kind == "csv":
                self._schema = names = csv_header(stream, form, self.url)
            elif self.kind == "parquet":
                self._schema = parquet_schema(stream)
            elif self.kind == "npz":
                self._schema = npz_schema(stream)
            else:
                self._schema = arrow_schema(stream, is_stream=self.kind == "arrow-stream")
        if like is not None and like._types is not None and like._schema == self._schema:
            self._schema = like._schema
            return like._types
        return dict.fromkeys(names, pa.string()) if self.kind == "csv" else self._known_once(self._schema)

    def _keys(self, temp_dir: str | None) -> dict[str, pa.DataType]:
        """Of all lines, or of those before the file breaks off: reading reports the damage."""
        found: dict[str, pa.DataType] = {}
        try:
            with damage(self.url), Scope() as held:
                stream = self._open(temp_dir, held)
                for schema in json_schemas(stream, self.url, self._line_limit):
                    found = with_types(found, flat_types(schema))
                    if len(found) > MAX_KEYS:
                        fix = "write what differs from row to row as a list of pairs, or as JSON text"
                        raise BadMapping(f"JSON lines of more than {MAX_KEYS} different keys", where=self.url, fix=fix)
        except BadData:
            if not found:
                raise
        return found

    def _known_once(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """The flat columns. Raises BadData where one name occurs twice, as in CSV headers."""
        self._refuse_twins([name for column in schema for name, _ in _flat_fields(column.name, column.type)])
        return flat_types(schema)

    def _refuse_twins(self, names: Sequence[str]) -> None:
        if len(set(names)) < len(names):
            twice = next(name for name, times in Counter(names).items() if times > 1)
            raise BadData(f"two columns are called {twice!r}", where=self.url, fix="rename one of them")

    def nullable(self, columns: Collection[str], temp_dir: str | None) -> set[str]:
        """Those of `columns` that have rows without a value, of Parquet; of text none, of Arrow all: it does not say."""
        if self.is_text or self.kind == "npz":
            return set()
        if self.kind != "parquet":
            return set(columns)
        with damage(self.url), Scope() as held:
            stream = held.enter(seekable(self.file, temp_dir))
            how: dict[str, Any] = {"size": self.file.size(), "url": self.url, "scope": held}
            tables = (
                flat(pa.Table.from_batches([one]), None)
                for one, _ in parquet_batches(stream, columns, NULLS_READ, MAX_ROWS, **how)
            )
            return {name for table in tables for name in columns if table.column(name).null_count}

    def chunks(
        self,
        columns: Collection[str] | None,
        form: CsvForm,
        *,
        chunk_bytes: int,
        temp_dir: str | None,
        whole: str | None = None,
        scope: Scope | None = None,
    ) -> Iterator[RawChunk]:
        """The rows in order; `columns`: of these flat columns only, where that saves work.

        `whole`: a struct to keep, as JSON text. `scope` owns what is open meanwhile. Raises BadData for a file
        that breaks off, after the rows before.
        """
        if self.kind == "csv" or not (self.is_text or self.packing):  # of packed files the schema costs as much as the rows
            self.types(form, temp_dir)  # refuses columns of one name in a file that `columns_of` left out
        read = 0
        size = self.file.size()
        with damage(self.url), part_of(scope) as held:
            stream = self._open(temp_dir, held)
            for batch, rows, share, bad in self._batches(stream, columns, form, chunk_bytes, held):
                upto = int(size * share)
                table = flat(pa.Table.from_batches([batch]), whole)
                self._refuse_twins(table.column_names)
                yield RawChunk(table, rows, upto - read, bad)
                read = upto
                if self.is_text:  # many small arrays, between which memory would be left over
                    give_back()

    def cells_finder(self, columns: Collection[str], form: CsvForm) -> Callable[[bytes], dict[str, str] | None]:
        """Of the text of a row that could not be read: what is left of these columns; None where that is not all of them."""
        if self.kind == "json":
            return partial(cells_of_json, wanted=columns)
        names = list(self.types(form, None))
        return partial(cells_of_csv, delimiter=delimiter_of(form, self.url), names=names, wanted=columns)

    def likely_encoding(self, temp_dir: str | None) -> str:
        """Of a CSV file; see `csv_files.likely_encoding`."""
        with damage(self.url), Scope() as held:
            return likely_encoding(self._open(temp_dir, held))

    def _open(self, temp_dir: str | None, scope: Scope) -> Any:
        if self.kind == "npz":
            return NpzArchive(self.file, scope, memory_limit=self.memory_limit)
        if self.kind == "arrow":
            with unpacked(self.file) as stream:
                self.kind = "arrow-stream" if is_arrow_stream(bytes(stream.read(4))) else "arrow-file"
        opened = seekable(self.file, temp_dir) if self.kind in TYPED_KINDS else unpacked(self.file)
        stream = scope.enter(opened)
        self.packing = opened.packing
        return stream

    def _batches(
        self, stream: Any, columns: Collection[str] | None, form: CsvForm, chunk_bytes: int, scope: Scope
    ) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64], float, Sequence[BadRow]]]:
        """(batch, numbers of its rows, share of the file read with it, rows that could not be read)."""
        if self.kind == "csv":
            names = list(self.types(form, None))
            yield from self._with_shares(csv_batches(stream, self.url, form, names, columns, chunk_bytes, scope), stream)
            return
        if self.kind == "json":
            yield from self._with_shares(json_batches(stream, self.url, chunk_bytes, columns, self._line_limit), stream)
            return
        batches = (
            npz_batches(stream, columns, chunk_bytes, MAX_ROWS, scope)
            if self.kind == "npz"
            else parquet_batches(stream, columns, chunk_bytes, MAX_ROWS, size=self.file.size(), url=self.url, scope=scope)
            if self.kind == "parquet"
            else arrow_batches(
                stream,
                columns,
                chunk_bytes,
                MAX_ROWS,
                is_stream=self.kind == "arrow-stream",
                bound=ArrowBound(self.url, self.file.size(), self.memory_limit),
            )
        )
        first = 0
        for batch, share in batches:
            yield batch, np.arange(first, first + batch.num_rows), share, ()
            first += batch.num_rows

    def _with_shares(
        self, batches: Iterator[Any], stream: Any
    ) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64], float, Sequence[BadRow]]]:
        """The position in a packed file does not show how far it has been read."""
        size = max(1, self.file.size())
        for batch, rows, broken in batches:
            share = 0.0 if self.packing else min(1.0, stream.tell() / size)
            yield batch, rows, share, [BadRow(row, error, raw) for row, error, raw in broken]


def is_arrow_stream(head: bytes) -> bool:
    """Whether Arrow IPC that begins so is a stream, and no file."""
    return head[:4] == ARROW_STREAM


def with_types(known: dict[str, pa.DataType], more: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Flat columns of other rows taken into `known`: what is null in some has the type that it has in others."""
    new = [name for name in more if name not in known or _holds_nothing(known[name])]
    if not new:
        return known
    found = {**known, **{name: more[name] for name in new}}
    structs = {name[:end] for name in found for end, letter in enumerate(name) if letter == "."}
    return {name: kind for name, kind in found.items() if not (name in structs and _holds_nothing(kind))}


def _holds_nothing(kind: pa.DataType) -> bool:
    return bool(pa.types.is_null(kind) or (pa.types.is_struct(kind) and not kind.num_fields))


def flat_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Columns by name, those of structs by dotted path, dictionaries as their values."""
    return {name: kind for column in schema for name, kind in _flat_fields(column.name, column.type)}


def _flat_fields(name: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    if pa.types.is_struct(kind) and kind.num_fields:
        for i in range(kind.num_fields):
            yield from _flat_fields(f"{name}.{kind.field(i).name}", kind.field(i).type)
    else:
        yield name, kind.value_type if pa.types.is_dictionary(kind) else kind


def flat(table: pa.Table, whole: str | None) -> pa.Table:
    """`table` without structs and dictionaries; the struct `whole` becomes JSON text."""
    if whole in table.column_names and pa.types.is_struct(table.schema.field(whole).type):
        index = table.column_names.index(whole)
        table = table.set_column(index, whole, _json_texts(table.column(index)))
    while any(pa.types.is_struct(kind) and kind.num_fields for kind in table.schema.types):
        table = table.flatten()
    for index, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(index, column.name, table.column(index).cast(column.type.value_type))
    return table


def _json_texts(column: pa.ChunkedArray) -> pa.Array:
    rows = column.to_pylist()
    texts = [None if row is None else json.dumps(_present(row), default=str) for row in rows]
    return pa.array(texts, pa.large_string())


def _present(value: Mapping[str, Any]) -> dict[str, Any]:
    """Without the keys that this row lacks: in a table every row has every key."""
    return {key: item for key, item in value.items() if item is not None}
