"""One column of a raw chunk as numbers, whatever they are written as, and why a value is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.formats.arrow_leaves import is_text
from offline_cli.formats.tables.cells import booleans_in, categories_in, lists_in, numbers_in, times_in
from offline_cli.formats.tables.column_layout import ColumnPlan
from offline_cli.formats.tables.numeric import Shape, array_of, is_temporal, nanoseconds

__all__ = ["values_of", "why_bad"]

MAX_SHOWN = 60  # letters of an offending value


def values_of(
    column: pa.ChunkedArray, plan: ColumnPlan, shape: Shape | None, *, decimal: str, flags: bool
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """(N, *shape) values, and (N,) rows that have none, or one of another shape; None where all have."""
    if not is_text(column.type):
        if plan.cells == "time" and is_temporal(column.type):
            column = nanoseconds(column)
        dtype = plan.dtype if not flags or is_temporal(column.type) else None
        return array_of(column, dtype, shape)
    cells = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    values: NDArray[Any]
    if plan.cells == "category":
        values, bad = categories_in(cells, plan.categories)
    elif plan.cells == "list":
        lists, broken = lists_in(cells, plan.dtype)
        values, missing = array_of(lists, plan.dtype, shape)
        return values, broken if missing is None else broken | missing
    elif plan.cells == "time":
        values, bad = times_in(cells)
    elif flags or plan.cells == "bool":
        values, bad = booleans_in(cells, flags=flags)
    else:
        values, bad = numbers_in(cells, plan.dtype, decimal)
    if cells.null_count:
        bad = bad | np.asarray(cells.is_null().to_numpy(zero_copy_only=False))
    return (values, bad if bad.any() else None) if not shape else _none_of(shape, len(values), plan.dtype)


def _none_of(shape: Shape, count: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Single numbers where other rows have vectors."""
    return np.zeros((count, *shape), dtype), np.ones(count, np.bool_)


def why_bad(column: pa.ChunkedArray, row: int, plan: ColumnPlan, shape: Shape) -> str:
    """What is wrong with the value of one row, as text."""
    value = column[row].as_py()
    name = f"column {plan.column}"
    if value is None:
        return f"{name} has no value"
    text = repr(value) if len(repr(value)) <= MAX_SHOWN else f"{repr(value)[:MAX_SHOWN]}..."
    if isinstance(value, str):
        if plan.cells == "category":
            return f"{name} holds {text}, which is none of its [categories]"
        if plan.cells != "list":
            return f"{name} holds {text}, not {_wanted(plan)}"
        if _is_numpys(value):
            return f"{name} holds {text}, as numpy prints it: write JSON (json.dumps(x.tolist())), or lists in Parquet"
        if not value.strip().startswith("["):
            return f"{name} holds {text}, not a JSON list"
    elif plan.dtype.kind == "b" and not shape:
        return f"{name} holds {text}, not {_wanted(plan)}"
    return f"{name} holds {text}, not {_in_words(shape)} as in other rows"


def _wanted(plan: ColumnPlan) -> str:
    """The expected form of a single value."""
    if plan.cells == "bool":
        return "true or false"
    return "a time" if plan.cells == "time" else "a flag: 0, 1, true or false" if plan.dtype.kind == "b" else "a number"


def _is_numpys(text: str) -> bool:
    """`[0.1 0.2]`: brackets with blanks where commas should be."""
    return text.strip().startswith("[") and len(text.replace(",", " ").split()) > 1 and "," not in text


def _in_words(shape: Shape) -> str:
    return "a number" if not shape else f"{shape[0]} numbers" if len(shape) == 1 else f"numbers of shape {list(shape)}"
