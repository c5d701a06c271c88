"""The rows of a table's chunks with the number of their key, and whether they are in order; rows are not moved.

Keys are numbered as they first appear, so the rows of every key are contiguous exactly where the numbers never fall. Rows are
in order where that holds and `order` never falls within a key; equal values of it keep the order of the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.formats.memory_limits import give_back
from offline_cli.parquet.arrow_trees import without_dictionaries

__all__ = ["LARGE", "KeyRuns", "NumberedRows", "joined", "order_codes", "put_together", "tables_of"]

LARGE: Final = 64 << 20  # bytes of a table, above which freed memory is worth returning at once


@dataclass(frozen=True, slots=True)
class NumberedRows:
    """Rows in the order of a source."""

    table: pa.Table
    keys: NDArray[np.int64]  # (N,) number of the key of each row, by first appearance in the source

    def slice(self, first: int, stop: int) -> NumberedRows:
        """Rows `first` to `stop` - 1, as views."""
        return NumberedRows(self.table.slice(first, stop - first), self.keys[first:stop])


class KeyRuns:
    """Numbers the keys of chunk after chunk; `in_order` says whether all rows so far are in order."""

    def __init__(self, by: Sequence[str], order: str | None) -> None:
        """`by`: the columns that make up a key. `order`: a column that sorts as numbers, times or text do; nulls are last."""
        self.in_order = True
        self._by, self._order = list(by), order
        self._index: dict[tuple[Any, ...], int] = {}
        self._last: tuple[int, Any] | None = None  # key and order (pa.Array of one) of the row before

    def numbered(self, chunks: Iterable[pa.Table]) -> Iterator[NumberedRows]:
        """The chunks that have rows, each with the numbers of its keys."""
        for chunk in chunks:
            if chunk.num_rows:
                table = without_dictionaries(chunk)
                rows = NumberedRows(table, self._numbers([_key_column(table, name) for name in self._by]))
                self.in_order = self.in_order and self._go_on_in_order(rows)
                yield rows

    def forget(self) -> None:
        """Drop the keys: all rows have been numbered."""
        self._index = {}

    def key_in_words(self, table: pa.Table) -> str:
        """`ride = 17` of the first row of `table`, for messages."""
        return ", ".join(f"{name} = {table.column(name)[0].as_py()}" for name in self._by)

    def _numbers(self, columns: Sequence[Any]) -> NDArray[np.int64]:
        heads = _heads(columns)
        keys = [column.take(pa.array(heads)) for column in columns]
        codes, firsts = _distinct(keys)
        distinct = zip(*(_values(column.take(pa.array(firsts))) for column in keys), strict=True)
        numbers = np.array([self._index.setdefault(key, len(self._index)) for key in distinct], np.int64)
        return np.repeat(numbers[codes], np.diff(heads, append=len(columns[0])))

    def _go_on_in_order(self, rows: NumberedRows) -> bool:
        keys = rows.keys if self._last is None else np.concatenate([[self._last[0]], rows.keys])
        order = None
        if self._order is not None:
            order = joined(rows.table.column(self._order))
            following = order if self._last is None else pa.concat_arrays([self._last[1], order])
            codes = order_codes(following)
        same = keys[1:] == keys[:-1]
        self._last = int(rows.keys[-1]), None if order is None else order[-1:]
        if (keys[1:] < keys[:-1]).any():
            return False
        return order is None or not (same & (codes[1:] < codes[:-1])).any()


def joined(column: Any) -> Any:
    """A chunked column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def put_together(tables: list[pa.Table]) -> pa.Table:
    """The rows of all tables, each column one array; empties the list, and releases a column's parts once it is joined."""
    table = pa.concat_tables(tables)
    tables.clear()
    schema, columns, is_large = table.schema, table.columns, table.nbytes > LARGE
    del table
    for number in range(len(columns)):
        columns[number] = joined(columns[number])
        if is_large:
            give_back()
    return pa.table(columns, schema=schema)


def tables_of(parts: list[NumberedRows]) -> list[pa.Table]:
    """The table of each part; empties the list."""
    tables = [part.table for part in parts]
    parts.clear()
    return tables


def _key_column(table: pa.Table, name: str) -> Any:
    """One array, in which equal values have equal bytes."""
    column = joined(table.column(name))
    return pc.add(column, 0.0) if pa.types.is_floating(column.type) else column  # -0.0 is 0.0


def _values(column: Any) -> list[Any]:
    """Of a pa.Array, equal where they are one key: NaN, which differs from itself, and what is no number, as text."""
    is_number = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type) or pa.types.is_floating(column.type)
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_binary(column.type)
    values = (column if is_number or is_text else column.cast(pa.string())).to_pylist()
    return ["nan" if value != value else value for value in values] if pa.types.is_floating(column.type) else values


def _heads(columns: Sequence[Any]) -> NDArray[np.int64]:
    """Rows whose key differs from the one before, the first among them; maybe some whose key does not (NaN)."""
    changes = np.ones(len(columns[0]), np.bool_)
    changes[1:] = False
    for column in columns:
        if column.null_count:
            column = column.dictionary_encode("encode").indices
        changes[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(changes)


def _distinct(columns: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(N,) a code for each key, from 0 by first appearance, and (M,) the row where each of them appears first."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        part = column.dictionary_encode("encode")
        both = codes * max(1, len(part.dictionary)) + part.indices.to_numpy()
        codes = pa.array(both).dictionary_encode().indices.to_numpy().astype(np.int64)
    firsts = np.empty(int(codes.max()) + 1, np.int64)
    firsts[codes[::-1]] = np.arange(len(codes))[::-1]  # the last of several writes stays
    return codes, firsts


def order_codes(column: Any) -> NDArray[Any]:
    """(N,) numbers that sort as the values of a pa.Array do, equal for equal ones, null last; comparable within the array."""
    kind = column.type
    numbers = None
    if column.null_count == 0:
        if pa.types.is_floating(kind):
            return np.asarray(column.to_numpy(), np.float64)
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            numbers = column.cast(pa.uint64() if pa.types.is_uint64(kind) else pa.int64())
        elif pa.types.is_temporal(kind) and kind.bit_width in (32, 64):
            numbers = column.view(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
    if numbers is None:
        numbers = pc.rank(column, tiebreaker="dense").cast(pa.int64())
    return np.asarray(numbers.to_numpy(zero_copy_only=False))
