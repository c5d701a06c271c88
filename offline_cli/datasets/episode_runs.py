"""Where one episode ends and the next begins in tables with a row for each step: by its id, which stands in each of its rows.

Ids are texts, or numbers and a dictionary, which each row group has of its own; a table may have either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import OfflineCliError
from offline_cli.parquet.arrow_trees import without_dictionaries

__all__ = ["as_text", "run_starts", "whole_episodes"]


def whole_episodes(
    tables: Iterable[Any], target_steps: int, *, look_ahead: bool = False
) -> Iterator[tuple[Any, NDArray[np.int64]]]:
    """The rows of pa.Tables again, cut where an episode ends, each table of `target_steps` rows or more but for the last.

    With each (E+1,): its rows of episode e are starts[e]:starts[e+1]. `look_ahead`: a table that ends with an episode is not
    cut, so that nothing has to be copied; the next one tells.
    """
    pending: list[Any] = []
    starts, rows, last_id = np.zeros(0, np.int64), 0, None  # of what is pending

    def cut(end: int) -> tuple[Any, NDArray[np.int64]]:
        nonlocal pending, starts, rows
        joined = _joined(pending)
        before = np.append(starts[starts < end], end)
        pending, starts, rows = [joined.slice(end)] if end < rows else [], starts[starts >= end] - end, rows - end
        return joined.slice(0, end), before

    try:
        for table in tables:
            if not table.num_rows:
                continue
            ids = table.column(Columns.EPS_ID).combine_chunks()
            ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
            begins = last_id is None or not last_id.equals(_text_at(ids, 0))
            if look_ahead and rows >= target_steps and (begins or starts[-1]):
                yield cut(rows if begins else int(starts[-1]))
            found = run_starts(ids)
            starts, last_id = np.append(starts, rows + found[0 if begins else 1 :]), _text_at(ids, len(ids) - 1)
            pending.append(table)
            rows += table.num_rows
            if rows >= target_steps and starts[-1] and not look_ahead:
                yield cut(int(starts[-1]))
    except OfflineCliError:  # comes after what is whole before it
        if look_ahead and rows >= target_steps and starts[-1]:
            yield cut(int(starts[-1]))
        raise
    if pending:
        yield cut(rows)


def _joined(tables: Sequence[Any]) -> Any:
    """The rows of pa.Tables, one after the other; columns of numbers have texts where another table has these."""
    types = tables[0].schema.types
    differ = {field.name for table in tables[1:] for field, kind in zip(table.schema, types, strict=True) if field.type != kind}
    return pa.concat_tables([without_dictionaries(table, differ) for table in tables] if differ else tables)


def run_starts(ids: Any) -> NDArray[np.int64]:
    """Rows at which another id begins; `ids`: texts, or numbers and a dictionary."""
    if not len(ids):
        return np.zeros(0, np.int64)
    if pa.types.is_dictionary(ids.type) and not ids.null_count:  # a dictionary may hold a text twice
        numbers = ids.indices.to_numpy()
        candidates = np.append(0, np.flatnonzero(numbers[1:] != numbers[:-1]) + 1)
        return candidates[run_starts(as_text(ids.take(pa.array(candidates))))]
    ids = as_text(ids)
    changes = pc.not_equal(ids[1:], ids[:-1]).fill_null(True).to_numpy(zero_copy_only=False)
    return np.append(0, np.flatnonzero(changes) + 1).astype(np.int64)


def as_text(column: Any) -> Any:
    """An array of texts, of one or of numbers and a dictionary."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _text_at(column: Any, row: int) -> Any:
    """The pa.Scalar of one text."""
    return as_text(column.slice(row, 1))[0]
