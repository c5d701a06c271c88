"""What the columns of all files hold, found before a row is converted; `layout` decides what is good enough.

Columns of a typed format state what they hold. Where numbers are text (CSV, JSON lines, text columns of Parquet) every cell is
read, because the last row may have the first decimal: one more pass over these files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offline_cli.errors import BadData
from offline_cli.formats.arrow_leaves import is_text
from offline_cli.formats.source import ReadOptions
from offline_cli.formats.tables.cells import CellCounts
from offline_cli.formats.tables.column_looks import MOST_IMAGES, Seen
from offline_cli.formats.tables.csv_files import NO_LETTER
from offline_cli.formats.tables.files import RawChunk, TableFile, with_types
from offline_cli.formats.tables.images import is_bytes
from offline_cli.formats.tables.joined_files import raw_chunks
from offline_cli.formats.tables.mapping import AS_USUAL, CsvForm
from offline_cli.formats.tables.numeric import dtype_of, is_one_number, is_temporal
from offline_cli.scopes import Scope

__all__ = ["MOST_TEXTS", "ColumnFacts", "LookedAt", "columns_of", "gather", "seen_rows"]

MOST_TEXTS: Final = 256  # of a column of categories that are proposed
MOST_SEEN: Final = 1_000_000  # rows whose texts a proposal of a whole mapping names
KEPT_SEEN: Final = 1 << 16  # rows that it looks at otherwise


@dataclass(frozen=True, slots=True)
class LookedAt:
    """Flat columns of which facts are needed."""

    columns: Collection[str]
    times: Collection[str]  # those among them in which dates and times as text are recognised too
    extras: Collection[str]  # those among them that may become extra outputs: integers with nulls become floats there


@dataclass(slots=True)
class ColumnFacts:
    """Of one column, in all files."""

    dtypes: set[np.dtype[Any]] = field(default_factory=set)  # of typed numbers
    odd: set[str] = field(default_factory=set)  # types that hold neither numbers nor text
    has_text: bool = False
    has_times: bool = False  # typed dates and times
    has_lists: bool = False  # typed lists or tensors of numbers
    has_numbers_as_text: bool = False  # in a file that has no types: JSON's numbers
    has_nulls: bool = False  # some row may have no value; of typed columns found for integers that may be extra outputs alone
    cells: CellCounts = field(default_factory=CellCounts)

    def see_type(self, kind: pa.DataType) -> None:
        """Add the type that the column has in one more file."""
        if is_text(kind):
            self.has_text = True
        elif not pa.types.is_null(kind):
            dtype = dtype_of(kind)
            if dtype is None:
                self.odd.add(str(kind))
            else:
                self.dtypes.add(dtype)
                self.has_times = self.has_times or is_temporal(kind)
                self.has_lists = self.has_lists or not is_one_number(kind)

    @property
    def is_empty(self) -> bool:
        """Whether no row has a value."""
        return not (self.dtypes or self.odd or self.cells.kind)


def columns_of(files: Sequence[TableFile], form: CsvForm, temp_dir: str | None) -> dict[str, dict[str, pa.DataType]]:
    """By URL: the flat columns of each file by name; of JSON lines, the keys of all files: one that a row lacks is null there.

    Files of the same columns share one dict. Damaged files are left out: reading reports their damage. Raises BadData where
    all are, StorageError.
    """
    found: dict[str, dict[str, pa.DataType]] = {}
    damaged: BadData | None = None
    last: TableFile | None = None
    for file in files:
        try:
            found[file.url] = file.types(form, temp_dir, last)
            last = file
        except BadData as error:
            damaged = damaged or error
    if damaged is not None and not found:
        raise damaged
    keys: dict[str, pa.DataType] = {}
    for types in _different(found.values()) if files[0].kind == "json" else ():
        keys = with_types(keys, types)
    return dict.fromkeys(found, keys) if keys else found


def in_likely_form(
    files: Sequence[TableFile], types: dict[str, dict[str, pa.DataType]], temp_dir: str | None
) -> tuple[dict[str, dict[str, pa.DataType]], CsvForm]:
    """`types`, or those in the encoding that all of the CSV files seem to have, where names are not UTF-8; and that form."""
    if files[0].kind == "csv" and any(NO_LETTER in name for columns in types.values() for name in columns):
        encodings = {file.likely_encoding(temp_dir) for file in files}
        if len(encodings) == 1 and all(encodings):
            form = CsvForm(encoding=encodings.pop())
            return columns_of([replace(file) for file in files], form, temp_dir), form  # which know no columns yet
    return types, AS_USUAL


def _different(types: Iterable[dict[str, pa.DataType]]) -> Iterable[dict[str, pa.DataType]]:
    """Each dict once."""
    return {id(columns): columns for columns in types}.values()


def gather(
    files: Sequence[TableFile],
    types: Mapping[str, dict[str, pa.DataType]],
    looked_at: LookedAt,
    form: CsvForm,
    *,
    chunk_bytes: int,
    temp_dir: str | None,
    options: ReadOptions,
) -> dict[str, ColumnFacts]:
    """Facts of the flat columns `looked_at`. Raises StorageError."""
    facts = {name: ColumnFacts() for name in looked_at.columns}
    known = [file for file in files if file.url in types]
    for columns in _different(types.values()):
        for name in facts.keys() & columns.keys():
            facts[name].see_type(columns[name])
            facts[name].has_numbers_as_text |= files[0].is_text
    for _, group in groupby(known, key=lambda file: id(types[file.url])):
        together = list(group)
        columns = types[together[0].url]
        texts = [name for name, kind in columns.items() if name in facts and (is_text(kind) or files[0].kind == "json")]
        with Scope() as scope:
            limits: dict[str, Any] = {"chunk_bytes": chunk_bytes, "temp_dir": temp_dir, "options": options, "scope": scope}
            for _, chunk in raw_chunks(together, texts, form, **limits) if texts else ():
                if isinstance(chunk, RawChunk):  # reading itself reports what is wrong with a file
                    _look_at_chunk(chunk, texts, facts, looked_at.times, form)
    integers = {name for name in looked_at.extras if all(dtype.kind in "iu" for dtype in facts[name].dtypes)}
    for file in known if integers else ():  # which take the footers of all files apart: nothing else depends on nulls
        for name in file.nullable(integers & types[file.url].keys(), temp_dir):
            facts[name].has_nulls = True
    return facts


def seen_rows(
    files: Sequence[TableFile],
    columns: Sequence[str],
    form: CsvForm,
    *,
    chunk_bytes: int,
    temp_dir: str | None,
    most_rows: int | None = MOST_SEEN,
) -> Seen:
    """The first rows of these flat columns, and all texts of `most_rows` rows, None: of all; as far as files can be read."""
    first, held, rows, whole = list[pa.Table](), 0, 0, True
    texts: dict[str, dict[str, None] | None] = {}
    limits: dict[str, Any] = {"chunk_bytes": chunk_bytes, "temp_dir": temp_dir}
    with suppress(BadData), Scope() as scope, closing(raw_chunks(files, columns, form, **limits, scope=scope)) as chunks:
        for _, chunk in chunks:
            if isinstance(chunk, BadData):
                continue
            table = chunk.table.select([name for name in columns if name in chunk.table.column_names])
            if held < KEPT_SEEN and table.num_columns:  # without columns Arrow does not cut it to its rows
                first.append(_with_few_bytes(table.slice(0, KEPT_SEEN - held)))
                held += first[-1].num_rows
            _collect(table, texts)
            rows += table.num_rows
            if any(is_bytes(kind) for kind in table.schema.types):  # a million images are not read for the texts beside them
                most_rows = min(KEPT_SEEN, KEPT_SEEN if most_rows is None else most_rows)
            if most_rows is not None and rows >= most_rows:
                whole = False
                break
    kept = pa.concat_tables(first, promote_options="permissive") if first and _are_alike(first) else None
    return Seen(kept, rows, whole, {name: None if known is None else sorted(known) for name, known in texts.items()})


def _with_few_bytes(table: pa.Table) -> pa.Table:
    """`table` with the first cells of columns of bytes alone, copied: the others' images are not held in memory."""
    for place, column in enumerate(table.columns):
        if is_bytes(column.type):
            cells = column.drop_null().slice(0, MOST_IMAGES).to_pylist()
            few = [pa.array(cells, column.type), pa.nulls(table.num_rows - len(cells), column.type)]
            table = table.set_column(place, table.schema.names[place], pa.chunked_array(few))
    return table


def _are_alike(tables: Sequence[pa.Table]) -> bool:
    """Whether tables can be one; what cannot is proposed by names alone."""
    with suppress(pa.ArrowException):
        pa.unify_schemas([table.schema for table in tables], promote_options="permissive")
        return True
    return False


def _collect(table: pa.Table, texts: dict[str, dict[str, None] | None]) -> None:
    """Add the different texts of each column, None for one of more than `MOST_TEXTS`."""
    for name in table.column_names:
        if not is_text(table.schema.field(name).type) or texts.get(name, {}) is None:
            continue
        known = (texts.get(name) or {}) | dict.fromkeys(pc.unique(table.column(name)).drop_null().to_pylist())
        texts[name] = None if len(known) > MOST_TEXTS else known


def _look_at_chunk(
    chunk: RawChunk, names: Collection[str], facts: Mapping[str, ColumnFacts], times: Collection[str], form: CsvForm
) -> None:
    here = set(chunk.table.column_names)
    for name in names:
        if name not in here:  # keys of JSON come and go
            facts[name].has_nulls = True
            continue
        column = chunk.table.column(name)
        facts[name].see_type(column.type)
        facts[name].has_nulls |= column.null_count > 0
        if is_text(column.type):
            facts[name].cells.see(column.combine_chunks(), decimal=form.decimal, with_times=name in times)
