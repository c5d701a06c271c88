"""What the columns of all files hold, found before a row is converted; `layout` decides what is good enough.

Columns of a typed format state what they hold. Where numbers are text (CSV, JSON lines, text columns of Parquet) every cell is
read, because the last row may have the first decimal: one more pass over these files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from offline_cli.errors import BadData
from offline_cli.formats.arrow_leaves import is_text
from offline_cli.formats.tables.cells import CellCounts
from offline_cli.formats.tables.files import RawChunk, TableFile, with_types
from offline_cli.formats.tables.mapping import CsvForm
from offline_cli.formats.tables.numeric import dtype_of, is_one_number, is_temporal
from offline_cli.scopes import Scope

__all__ = ["ColumnFacts", "columns_of", "gather"]


@dataclass(slots=True)
class ColumnFacts:
    """Of one column, in all files."""

    dtypes: set[np.dtype[Any]] = field(default_factory=set)  # of typed numbers
    odd: set[str] = field(default_factory=set)  # types that hold neither numbers nor text
    has_text: bool = False
    has_times: bool = False  # typed dates and times
    has_lists: bool = False  # typed lists or tensors of numbers
    has_numbers_as_text: bool = False  # in a file that has no types: JSON's numbers
    has_nulls: bool = False  # some row may have no value
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

    Damaged files are left out: reading reports their damage. Raises BadData where all are, StorageError.
    """
    found: dict[str, dict[str, pa.DataType]] = {}
    damaged: BadData | None = None
    for file in files:
        try:
            found[file.url] = file.types(form, temp_dir)
        except BadData as error:
            damaged = damaged or error
    if damaged is not None and not found:
        raise damaged
    keys: dict[str, pa.DataType] = {}
    for file in files:
        if file.kind == "json" and file.url in found:
            keys = with_types(keys, found[file.url])
    return dict.fromkeys(found, keys) if keys else found


def gather(
    files: Sequence[TableFile],
    types: Mapping[str, Mapping[str, pa.DataType]],
    wanted: Collection[str],
    times: Collection[str],
    form: CsvForm,
    *,
    chunk_bytes: int,
    temp_dir: str | None,
) -> dict[str, ColumnFacts]:
    """Facts of the flat columns `wanted`; of those in `times` dates and times as text are recognised too."""
    facts = {name: ColumnFacts() for name in wanted}
    for file in files:
        if file.url not in types:
            continue
        here = {name: kind for name, kind in types[file.url].items() if name in facts}
        texts = [name for name, kind in here.items() if is_text(kind) or file.kind == "json"]
        for name, kind in here.items():
            facts[name].see_type(kind)
            facts[name].has_numbers_as_text |= file.is_text
        for name in file.nullable(here, temp_dir):
            facts[name].has_nulls = True
        if texts:
            _look_at_cells(file, texts, facts, times, form, chunk_bytes, temp_dir)
    return facts


def _look_at_cells(
    file: TableFile,
    names: Collection[str],
    facts: Mapping[str, ColumnFacts],
    times: Collection[str],
    form: CsvForm,
    chunk_bytes: int,
    temp_dir: str | None,
) -> None:
    try:
        with Scope() as scope:
            for chunk in file.chunks(names, form, chunk_bytes=chunk_bytes, temp_dir=temp_dir, scope=scope):
                _look_at_chunk(chunk, names, facts, times, form)
    except BadData:  # reading itself reports what is wrong with the file
        return


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
