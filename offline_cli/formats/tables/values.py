"""Batches of a query as arrays: one for each leaf of an episode; rows without a value are filled, marked, or bad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import BadEpisode
from offline_cli.formats.tables.arrow_types import is_list
from offline_cli.formats.tables.columns import hint_for
from offline_cli.formats.tables.files import POS, TableFiles
from offline_cli.formats.tables.images import image_counts, images_in, why_no_image
from offline_cli.formats.tables.layout import FLAG_ROLES, SCALARS, ColumnPlan, Layout, Leaf
from offline_cli.formats.tables.mapping import EXTRA, FILLED_ROLES, MEAN, PREVIOUS
from offline_cli.formats.tables.rows import Rows
from offline_cli.tally import Tally

__all__ = ["BAD", "GAP", "ValueReader", "mark_of"]

BAD, GAP, MISSING = "__bad", "__gap", "__missing"
SHOWN: Final = 60  # letters of an offending value

Shape = tuple[int, ...]


def mark_of(leaf: Leaf, i: int) -> str:
    """The name of the array that marks missing cells, to be filled, of one of the leaf's columns."""
    return f"{MISSING} {i} {leaf.name}"


@dataclass(slots=True)
class ValueReader:
    """Batches with columns `v0`, `v1`, ... (values) and `r0`, ... (text where there is no value) as arrays."""

    files: TableFiles
    layout: Layout
    split_at_gaps: bool
    tally: Tally
    means: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)  # of one value, by leaf and column
    reasons: dict[int, tuple[str, bool]] = field(default_factory=dict)  # of bad rows by position; whether a cell is missing

    def rows(self, batch: pa.RecordBatch) -> Rows:
        """(N, ...) arrays of all leaves, positions, and the rows that are bad, or end an episode for want of a cell."""
        pos = np.asarray(batch.column(POS).to_numpy(), np.int64)
        rows: Rows = {POS: pos, BAD: np.zeros(len(pos), np.bool_)}
        if self.split_at_gaps:
            rows[GAP] = np.zeros(len(pos), np.bool_)
        number = 0
        for leaf in self.layout.leaves:
            parts = [self._part(leaf, i, batch, number + i, rows) for i in range(len(leaf.columns))]
            number += len(parts)
            rows[leaf.name] = _joined(leaf, parts)
        if self.layout.infos is not None:
            rows[Columns.INFOS] = np.array(batch.column(Columns.INFOS).to_pylist(), object)
        return rows

    def shape(self, leaf: Leaf, i: int) -> Shape:
        """Of one value of a column, once a row was read."""
        return self.shapes.get(f"{leaf.name} {leaf.columns[i].column}", ())

    def _part(self, leaf: Leaf, i: int, batch: pa.RecordBatch, number: int, rows: Rows) -> NDArray[Any]:
        plan, column = leaf.columns[i], batch.column(f"v{number}")
        raw = batch.column(f"r{number}") if f"r{number}" in batch.schema.names else None
        key, is_flag = f"{leaf.name} {plan.column}", leaf.role in FLAG_ROLES
        shape, is_scalar = self.shapes.get(key), leaf.role in (*SCALARS, Columns.T)
        if plan.image:
            values, bad = images_in(column, plan.image, shape)
            for kind, count in image_counts(column, plan.column).items():
                self.tally.assume(kind, count)
        else:
            values, bad = array_of(column, shape)
        if plan.column in self.files.shapes and values.ndim == 2:
            values = values.reshape(len(values), *self.files.shapes[plan.column])
        if raw is not None and plan.cells not in ("category", "time", "microseconds") and self.files.kind != "csv":
            self.tally.assume(f"numbers-as-text:{plan.column}", len(column) - column.null_count)
        has_text = np.False_ if raw is None else np.asarray(raw.is_valid().to_numpy(zero_copy_only=False))
        is_filled = plan.fill is not None or (self.split_at_gaps and leaf.role in FILLED_ROLES)
        missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False)) & ~has_text
        if is_filled and values.ndim == 1 and values.dtype.kind == "f" and (plan.fill is not None or leaf.role != EXTRA):
            missing |= np.isnan(values) & ~has_text
        bad = missing if bad is None else missing | bad
        if shape is None and (is_filled or not plan.vectors or not bad.all()):
            if not bad.all() or not plan.vectors:
                self._check_shape(leaf, plan, values.shape[1:], is_scalar=is_scalar, row=int(rows[POS][0]))
            self.shapes[key] = values.shape[1:]
        if is_scalar and values.ndim > 1:
            values = values.reshape(len(values))  # lists of one
        if leaf.role == Columns.T and values.dtype.kind == "f":
            bad = bad | np.isnan(values)
        if is_flag and values.dtype.kind == "f":
            nan = np.isnan(values)
            self.tally.assume("null-as-false", int((nan & ~missing).sum()))
            values = np.where(nan, 0, values)
        if is_flag and values.dtype.kind != "b":
            bad = bad | ((values != 0) & (values != 1))  # 2 may be a code, -1 missing
        if bad.any():
            values = self._without(leaf, i, (values, bad, missing), (column, raw), rows)
        for row in () if is_flag else lost_in(values, leaf.dtype):
            said = "" if leaf.role == Columns.T else " of [dtypes]"
            why = f"column {plan.column} holds {values[row]}, which {leaf.dtype}{said} cannot hold"
            self._reject(rows, row, why)
        return values

    def _without(
        self,
        leaf: Leaf,
        i: int,
        found: tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.bool_]],
        cells: tuple[pa.Array, pa.Array | None],
        rows: Rows,
    ) -> NDArray[Any]:
        """Rows without a value: of flags false, of extra outputs NaN, all others as the mapping says, each counted; or bad."""
        (values, bad, missing), (column, raw), plan = found, cells, leaf.columns[i]
        gone = bad & missing
        if plan.fill == PREVIOUS:
            rows[mark_of(leaf, i)] = gone
        elif plan.fill is not None:
            how = plan.fill if isinstance(plan.fill, str) else "number"
            self.tally.assume(f"filled-{how}:{plan.column}", int(gone.sum()))
            value: Any = self.means[plan.column] if how == MEAN else 0 if how == plan.fill else plan.fill
            values = values.astype(np.float64) if values.dtype.kind != "f" and how != "zero" else values.copy()
            values[gone] = value
        elif leaf.role in FLAG_ROLES:
            self.tally.assume("null-as-false", int(gone.sum()))
        elif leaf.role == EXTRA and values.ndim == 1 and not plan.vectors and leaf.dtype.kind == "f":
            self.tally.assume("null-as-nan", int(gone.sum()))
            values = values.astype(leaf.dtype)
            values[gone] = np.nan
        elif self.split_at_gaps and leaf.role in FILLED_ROLES:
            rows[GAP][gone] = True
        else:
            gone = np.zeros_like(gone)
        for row in np.flatnonzero(bad & ~gone).tolist():
            text = None if raw is None else raw[row].as_py()
            why = _why(column[row].as_py() if text is None else text, plan, values.shape[1:])
            self._reject(rows, row, why, is_missing=bool(missing[row]) and leaf.role in FILLED_ROLES)
        return values

    def _reject(self, rows: Rows, row: int, why: str, *, is_missing: bool = False) -> None:
        rows[BAD][row] = True
        self.reasons.setdefault(int(rows[POS][row]), (why, is_missing))

    def _check_shape(self, leaf: Leaf, plan: ColumnPlan, shape: Shape, *, is_scalar: bool, row: int) -> None:
        what = ""
        if is_scalar and shape not in ((), (1,)):
            what = f"column {plan.column} holds {list(shape)} values per row, and {leaf.name} is one number"
        elif leaf.stacked and len(shape) > 1:
            what = f"column {plan.column} holds arrays of shape {list(shape)}, and only numbers and vectors are stacked"
        elif 0 in shape:
            what = f"column {plan.column} holds empty lists"
        if what:
            raise BadEpisode(what, where=self.files.place(row), fix="name another column in the mapping")


def _joined(leaf: Leaf, parts: list[NDArray[Any]]) -> NDArray[Any]:
    if leaf.role in FLAG_ROLES:
        return parts[0].astype(np.bool_, copy=False)
    if not leaf.stacked:
        values = parts[0].astype(leaf.dtype, copy=False)
        return -values if leaf.is_cost else values
    widths = [part.shape[1] if part.ndim > 1 else 1 for part in parts]
    stacked = np.empty((len(parts[0]), sum(widths)), leaf.dtype)
    for part, width, stop in zip(parts, widths, np.cumsum(widths).tolist(), strict=True):
        stacked[:, stop - width : stop] = part.reshape(len(part), width)
    return stacked


def _why(value: Any, plan: ColumnPlan, shape: Shape) -> str:
    """What is wrong with a value."""
    name, text = f"column {plan.column}", repr(value)
    text = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
    if value is None:
        return f"{name} has no value"
    if plan.image:
        why = why_no_image(value, plan.image, shape) if isinstance(value, bytes) else "no bytes"
        return f"{name} holds {why or 'an image that is damaged'}"
    if plan.cells == "category":
        return f"{name} holds {text}, which is none of its [categories]"
    if isinstance(value, str) and plan.cells == "list":
        if not value.strip().startswith("["):
            return f"{name} holds {text}, not a JSON list"
        if len(value.split()) > 1 and "," not in value:
            return f"{name} holds {text}, as numpy prints it: write JSON (json.dumps(x.tolist())), or lists in Parquet"
    elif plan.dtype.kind == "b" and plan.cells != "bool":
        return f"{name} holds {text}, not a flag: 0 or 1, true or false, yes or no"
    elif isinstance(value, str):
        wanted = {"bool": "true or false", "time": "a time of 1678 to 2261", "microseconds": "a time"}.get(
            plan.cells, "a number"
        )
        hint = hint_for([value])
        return f"{name} holds {text}, not {wanted}{hint and '; '}{hint}"
    words = "a number" if not shape else f"{shape[0]} numbers" if len(shape) == 1 else f"numbers of shape {list(shape)}"
    return f"{name} holds {text}, not {words} as in other rows"


def array_of(array: pa.Array, shape: Shape | None) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """(N, *shape) values with 0 in rows that are bad, and (N,) the mask of these; `shape`: None: that of most rows."""
    bad = None
    if is_list(array.type):
        values, bad = _lists(array, shape)
    elif pa.types.is_null(array.type):
        values, bad = np.zeros(len(array)), np.ones(len(array), np.bool_)
    else:
        if array.null_count:
            bad = np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)
            array = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
        values = np.asarray(array.to_numpy(zero_copy_only=False))
    if shape is not None and values.shape[1:] != shape:
        return np.zeros((len(array), *shape), values.dtype), np.ones(len(array), np.bool_)
    return values, bad


def _lists(array: pa.Array, shape: Shape | None) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    lengths = pc.fill_null(pc.list_value_length(array), -1).to_numpy(zero_copy_only=False)
    known = lengths[lengths >= 0]
    size = shape[0] if shape else int(np.bincount(known).argmax()) if len(known) else 0
    bad = np.asarray(lengths != size)
    kept = array.filter(pa.array(~bad)) if bad.any() else array
    inner, inner_bad = array_of(kept.flatten(), None if shape is None else shape[1:])
    values = inner.reshape(len(kept), size, *inner.shape[1:])
    of_kept = None if inner_bad is None else np.asarray(inner_bad.reshape(len(kept), size).any(axis=1))
    if not bad.any():
        return values, of_kept
    whole = np.zeros((len(array), *values.shape[1:]), values.dtype)
    whole[~bad] = values
    if of_kept is not None:
        bad[np.flatnonzero(~bad)[of_kept]] = True
    return whole, bad


def lost_in(values: NDArray[Any], dtype: np.dtype[Any]) -> list[int]:
    """Rows of `values` (N, ...) that `dtype` cannot hold; floats are rounded."""
    if dtype.kind == "f" or np.can_cast(values.dtype, dtype):
        return []
    with np.errstate(invalid="ignore"):
        lost = values.astype(dtype) != values
    return np.flatnonzero(lost.reshape(len(lost), -1).any(axis=1)).tolist()
