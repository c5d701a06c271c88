"""Rows sorted by key and order, ties as they stood, given out piece by piece; refuses to copy a whole table to do so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.formats.tables.key_runs import NumberedRows, joined, order_codes, put_together, tables_of

__all__ = ["piece_ends", "sorted_pieces", "sorted_positions"]

BITS = 63


def sorted_pieces(rows: list[NumberedRows], order: str | None, *, piece_bytes: int) -> Iterator[pa.Table]:
    """The rows of all tables, sorted, as tables of about `piece_bytes` that hold whole keys; empties the list."""
    keys = np.concatenate([part.keys for part in rows])
    tables = [put_together(tables_of(rows))]  # taking rows of many chunks is several times slower
    positions = _positions(tables[0], keys, order)
    key_ends = np.append(np.flatnonzero(np.diff(keys[positions])) + 1, len(keys))
    pieces = list(_pieces(key_ends, piece_bytes * len(keys) / max(1, tables[0].nbytes)))
    del keys, key_ends
    in_order = bool((positions[1:] > positions[:-1]).all())
    if len(pieces) == 1:
        yield tables.pop() if in_order else _taken(tables, positions)
        return
    for first, stop in pieces:
        yield tables[0].slice(first, stop - first) if in_order else tables[0].take(pa.array(positions[first:stop]))


def _positions(table: pa.Table, keys: NDArray[np.int64], order: str | None) -> NDArray[np.int64]:
    return sorted_positions(keys, None if order is None else order_codes(joined(table.column(order))))


def _taken(tables: list[pa.Table], positions: NDArray[np.int64]) -> pa.Table:
    """All rows of the only table, moved to their place column by column; empties the list, so that no two copies are held."""
    schema, columns = tables[0].schema, tables.pop().columns
    indices = pa.array(positions)
    for number in range(len(columns)):
        columns[number] = columns[number].take(indices)
    return pa.table(columns, schema=schema)


def _pieces(key_ends: NDArray[np.int64], rows: float) -> Iterator[tuple[int, int]]:
    """First row and end of pieces of whole keys, given the end of each key."""
    first = 0
    for end in piece_ends(key_ends, rows):
        stop = int(key_ends[end - 1])
        yield first, stop
        first = stop


def sorted_positions(keys: NDArray[np.int64], codes: NDArray[Any] | None) -> NDArray[np.int64]:
    """(N,) rows in order of key, then code, then as they stand.

    Where the three fit into 63 bits, as they nearly always do, they are sorted as one number: ten times faster than `lexsort`.
    """
    parts = [keys] if codes is None else [keys, codes]
    if all(part.dtype.kind in "iu" for part in parts):
        lows = [int(part.min()) for part in parts]
        bits = [(int(part.max()) - low).bit_length() for part, low in zip(parts, lows, strict=True)]
        row_bits = len(keys).bit_length()
        if sum(bits) + row_bits <= BITS:
            packed = np.zeros(len(keys), np.int64)
            for part, low, width in zip(parts, lows, bits, strict=True):
                packed = (packed << width) | (part - np.array(low, part.dtype)).astype(np.int64)
            packed = (packed << row_bits) | np.arange(len(keys))
            packed.sort()
            return packed & ((1 << row_bits) - 1)
    return np.lexsort(parts[::-1])


def piece_ends(sums: NDArray[Any], size: float) -> list[int]:
    """Where to cut a sequence into pieces of at most `size`, the end included; an entry that is larger is a piece by itself.

    `sums`: (N,) running sums of the sizes of its entries.
    """
    ends: list[int] = []
    while not ends or ends[-1] < len(sums):
        at = ends[-1] if ends else 0
        before = sums[at - 1] if at else 0
        ends.append(max(at + 1, int(np.searchsorted(sums, before + size, side="right"))))
    return ends
