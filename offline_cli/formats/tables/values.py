"""One column of a raw chunk as numbers, whatever they are written as, why a value is none, and what a missing one becomes.

A cell is missing that has no value; where the mapping says what becomes of those, NaN in a column of single floats is one too.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.arrow_leaves import is_text
from offline_cli.formats.tables.cells import (
    booleans_in,
    categories_in,
    hint_for_cells,
    hint_for_nothing,
    lists_in,
    numbers_in,
    times_in,
)
from offline_cli.formats.tables.column_layout import ColumnPlan, Layout, Leaf
from offline_cli.formats.tables.images import images_in, why_no_image
from offline_cli.formats.tables.mapping import MEAN
from offline_cli.formats.tables.numeric import Shape, array_of, is_temporal, nanoseconds

__all__ = [
    "GAP",
    "TIMES",
    "Means",
    "check_shape",
    "filled",
    "lost_in",
    "mark_of",
    "marks_of",
    "missing_in",
    "shape_in",
    "values_of",
    "why_bad",
]

TIMES = ("time", "microseconds")
GAP = "__gap"  # the column that marks rows at which episodes are split
BLOCK = 1 << 16  # rows that are summed together
MAX_SHOWN = 60  # letters of an offending value


def values_of(
    column: pa.ChunkedArray, plan: ColumnPlan, shape: Shape | None, *, decimal: str, flags: bool
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """(N, *shape) values, and (N,) rows that have none, or one of another shape; None where all have."""
    if plan.image:
        return images_in(column, plan.image, shape)
    if plan.cells == "category" and pa.types.is_integer(column.type):
        column = column.cast(pa.string())
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
    elif plan.cells in TIMES:
        values, bad = times_in(cells, "ns" if plan.cells == "time" else "us")
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


def mark_of(leaf: Leaf, number: int) -> str:
    """The column that marks missing cells of one of the leaf's columns."""
    return f"__missing {number} {leaf.name}"


def marks_of(layout: Layout, rows: int) -> dict[str, NDArray[np.bool_]]:
    """(rows,) by name of the column, with none marked."""
    names = [mark_of(leaf, number) for leaf, number in layout.missing] + [GAP] * layout.split_at_gaps
    return {name: np.zeros(rows, np.bool_) for name in names}


def missing_in(column: pa.ChunkedArray, values: NDArray[Any]) -> NDArray[np.bool_]:
    """(N,) the cells without a value; of single floats NaN too."""
    missing = np.array(column.is_null().to_numpy(), np.bool_)
    return missing | np.isnan(values) if values.ndim == 1 and values.dtype.kind == "f" else missing


def filled(values: NDArray[Any], rows: NDArray[np.int64], fill: str | float | None, mean: NDArray[Any] | None) -> NDArray[Any]:
    """A copy of `values` (N, *shape) with what `fill` says in `rows`; 0 for what is filled later.

    `mean`: (*shape) of the column, where that is said.
    """
    value: Any = mean if fill == MEAN else 0 if isinstance(fill, str) else fill
    dtype = np.result_type(values.dtype, np.float64) if isinstance(value, float | np.ndarray) else values.dtype
    made = values.astype(dtype if values.dtype.kind != "f" else values.dtype)
    made[rows] = value
    return made


class Means:
    """Means of columns over all their values that are numbers, finite ones, the same however the rows are cut into chunks."""

    def __init__(self, plans: Iterable[ColumnPlan], decimal: str) -> None:
        self._plans = {plan.column: plan for plan in plans}
        self._decimal = decimal
        self._waiting: dict[str, NDArray[Any]] = {}  # fewer than BLOCK rows
        self._sums: dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]] = {}  # (*shape) sum and count

    def see(self, table: pa.Table) -> None:
        """Add the rows of one raw chunk."""
        for name, plan in self._plans.items():
            if name in table.column_names:
                known = self._waiting.get(name)
                shape = None if known is None else known.shape[1:]
                values, bad = values_of(table.column(name), plan, shape, decimal=self._decimal, flags=False)
                good = values if bad is None else values[~bad]
                if len(good):
                    self._waiting[name] = self._added(name, good if known is None else np.concatenate([known, good]))

    def _added(self, name: str, values: NDArray[Any], size: int = BLOCK) -> NDArray[Any]:
        """What is left of `values` (N, *shape) after whole blocks were added."""
        for first in range(0, len(values) - size + 1, size):
            block = values[first : first + size].astype(np.float64)
            finite = np.isfinite(block)
            total, count = self._sums.get(name, (np.zeros(block.shape[1:]), np.zeros(block.shape[1:], np.int64)))
            self._sums[name] = total + np.where(finite, block, 0).sum(axis=0), count + finite.sum(axis=0)
        return values[len(values) - len(values) % size :]

    def found(self) -> dict[str, NDArray[np.float64]]:
        """(*shape) by column; those without a finite value are not there."""
        for name, values in self._waiting.items():
            self._added(name, values, max(1, len(values)))
        return {name: total / count for name, (total, count) in self._sums.items() if count.all()}


def shape_in(tables: Generator[pa.Table, None, None], plan: ColumnPlan, decimal: str, *, where: str) -> Shape:
    """Of one value of the column, by its first cell in `tables` that has one. Raises BadData where none has."""
    if not plan.vectors:
        return ()
    with closing(tables):
        for table in tables:
            if table.num_rows and plan.column in table.column_names:
                values, bad = values_of(table.column(plan.column), plan, None, decimal=decimal, flags=False)
                if bad is None or not bad.all():
                    return values.shape[1:]
    raise BadData(f"column {plan.column} has no value in any row", where=where, fix="leave it out of the mapping")


def check_shape(leaf: Leaf, plan: ColumnPlan, shape: Shape, *, scalar: bool, where: str) -> None:
    """Raise BadEpisode where values of `shape` cannot be what the mapping says; `scalar`: one number a row."""
    what = ""
    if scalar and shape not in ((), (1,)):
        what = f"column {plan.column} holds {list(shape)} values per row, and {leaf.name} is one number"
    elif leaf.stacked and len(shape) > 1:
        what = f"column {plan.column} holds arrays of shape {list(shape)}, and only numbers and vectors are stacked"
    elif 0 in shape:
        what = f"column {plan.column} holds empty lists"
    if what:
        raise BadEpisode(what, where=where, fix="name another column in the mapping")


def lost_in(values: NDArray[Any], dtype: np.dtype[Any]) -> list[int]:
    """Rows of `values` (N, ...) that `dtype` cannot hold; floats are rounded."""
    if dtype.kind == "f" or np.can_cast(values.dtype, dtype):
        return []
    with np.errstate(invalid="ignore"):
        lost = values.astype(dtype) != values
    return np.flatnonzero(lost.reshape(len(lost), -1).any(axis=1)).tolist()


def why_bad(column: pa.ChunkedArray, row: int, plan: ColumnPlan, shape: Shape) -> str:
    """What is wrong with the value of one row, as text."""
    value = column[row].as_py()
    name = f"column {plan.column}"
    if value is None:
        return f"{name} has no value"
    if plan.image:
        why = why_no_image(value, plan.image, shape) if isinstance(value, bytes) else "no bytes"
        return f"{name} holds {why or 'an image that is damaged'}"
    text = repr(value) if len(repr(value)) <= MAX_SHOWN else f"{repr(value)[:MAX_SHOWN]}..."
    if plan.cells == "category":
        return f"{name} holds {text}, which is none of its [categories]"
    if isinstance(value, str):
        if plan.cells != "list":
            hint = "" if plan.dtype.kind == "b" else hint_for_cells(plan.column, [value], some=True) or hint_for_nothing(value)
            return f"{name} holds {text}, not {_wanted(plan)}{hint and '; '}{hint}"
        if _is_numpys(value):
            return f"{name} holds {text}, as numpy prints it: write JSON (json.dumps(x.tolist())), or lists in Parquet"
        if not value.strip().startswith("["):
            return f"{name} holds {text}, not a JSON list"
    elif (plan.dtype.kind == "b" or plan.cells in TIMES) and not shape:
        return f"{name} holds {text}, not {_wanted(plan)}"
    return f"{name} holds {text}, not {_in_words(shape)} as in other rows"


def _wanted(plan: ColumnPlan) -> str:
    """The expected form of a single value."""
    if plan.cells == "bool":
        return "true or false"
    if plan.cells in TIMES:
        return "a time of 1678 to 2261" if plan.cells == "time" else "a time"
    return "a flag: 0 or 1, true or false, yes or no" if plan.dtype.kind == "b" else "a number"


def _is_numpys(text: str) -> bool:
    """`[0.1 0.2]`: brackets with blanks where commas should be."""
    return text.strip().startswith("[") and len(text.replace(",", " ").split()) > 1 and "," not in text


def _in_words(shape: Shape) -> str:
    return "a number" if not shape else f"{shape[0]} numbers" if len(shape) == 1 else f"numbers of shape {list(shape)}"
