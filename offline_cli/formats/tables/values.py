"""Batches of a query as arrays, one for each leaf of an episode; PNG and JPEG as pixels; rows without a value filled, or bad.

`[images]` of a mapping says which columns of bytes are images, and of what. OpenCV decodes them, PNG and JPEG alone, and not
more than `MOST_PIXELS` each. A cell that is none, is damaged, or has another size than the others is a bad row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import BadEpisode, MissingPackage
from offline_cli.formats.tables.arrow_types import is_list
from offline_cli.formats.tables.columns import FLAG_ROLES, SCALARS, Column, Layout, Leaf
from offline_cli.formats.tables.files import POS, TableFiles
from offline_cli.formats.tables.mapping import EXTRA, FILLED_ROLES, GRAY, MEAN, PREVIOUS, RGB
from offline_cli.tally import Tally

__all__ = ["BAD", "GAP", "MISSING", "Mask", "Rows", "ValueReader", "cut_by_images", "likely_image"]

BAD, GAP = "__bad", "__gap"
MISSING: Final = "__missing"  # and the number of a column of a query: cells that are to be filled from the row before
SHOWN: Final = 60  # letters of an offending value
FIX: Final = "correct the value, leave the column out of the mapping, or --on-error skip to leave out the episode"
MISSING_FIX: Final = "[fill] or split_at_gaps in the mapping (docs/tables.md), or --on-error skip to leave out the episode"
MOST_PIXELS: Final = 16 << 20  # of one image
AT_ONCE: Final = 16 << 20  # bytes of decoded images
PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
WITH_ALPHA: Final = (b"\x04", b"\x06")  # colour types of PNG

Rows = dict[str, NDArray[Any]]  # arrays (N, ...) by leaf, and by names that begin with two underscores
Shape = tuple[int, ...]
Mask = NDArray[np.bool_]


@dataclass(slots=True)
class ValueReader:
    """Batches with columns `v0`, `v1`, ... (values) and `r0`, ... (text where there is no value) as arrays."""

    files: TableFiles
    layout: Layout
    split_at_gaps: bool
    tally: Tally
    means: Mapping[str, float] = field(default_factory=dict)
    shapes: dict[int, Shape] = field(default_factory=dict)  # of one value, by the number of its column
    reasons: dict[int, tuple[str, str]] = field(default_factory=dict)  # what is wrong with bad rows, by position, and the fix

    def rows(self, batch: pa.RecordBatch) -> Rows:
        """(N, ...) arrays of all leaves, positions, and the rows that are bad, or end an episode for want of a cell."""
        pos = np.asarray(batch.column(POS).to_numpy(), np.int64)
        rows: Rows = {POS: pos, BAD: np.zeros(len(pos), np.bool_)}
        if self.split_at_gaps:
            rows[GAP] = np.zeros(len(pos), np.bool_)
        number, columns = 0, dict(zip(batch.schema.names, batch.columns, strict=True))
        for leaf in self.layout.leaves:
            parts = [self._values(leaf, column, number + i, columns, rows) for i, column in enumerate(leaf.columns)]
            number += len(parts)
            rows[leaf.name] = _joined(leaf, parts)
        if self.layout.infos is not None:
            rows[Columns.INFOS] = np.array(batch.column(Columns.INFOS).to_pylist(), object)
        return rows

    def _values(self, leaf: Leaf, column: Column, number: int, columns: Mapping[str, pa.Array], rows: Rows) -> NDArray[Any]:
        cells, raw, name, shape = columns[f"v{number}"], columns.get(f"r{number}"), column.name, self.shapes.get(number)
        is_flag, is_filled = leaf.role in FLAG_ROLES, column.fill is not None or self._splits_at(leaf)
        values, bad = self._images(cells, column, shape) if column.image else array_of(cells, shape)
        if name in self.files.shapes and values.ndim == 2:
            values = values.reshape(len(values), *self.files.shapes[name])
        if raw is not None and column.cells not in ("category", "time") and self.files.kind != "csv":
            self.tally.assume(f"numbers-as-text:{name}", len(cells) - cells.null_count)
        missing = np.asarray(cells.is_null().to_numpy(zero_copy_only=False))
        nan = np.isnan(values) if values.dtype.kind == "f" and values.ndim == 1 else np.zeros_like(missing)
        if raw is not None:
            has_text = np.asarray(raw.is_valid().to_numpy(zero_copy_only=False))
            missing, nan = missing & ~has_text, nan & ~has_text
        if is_filled and (column.fill is not None or leaf.role != EXTRA):
            missing = missing | nan
        bad = missing if bad is None else missing | bad
        if shape is None and (is_filled or not column.holds_arrays or not bad.all()):
            if not (bad.all() and column.holds_arrays):
                self._check_shape(leaf, column, values.shape[1:], int(rows[POS][0]))
            self.shapes[number] = values.shape[1:]
        if leaf.role in (*SCALARS, Columns.T) and values.ndim > 1:
            values = values.reshape(len(values))  # lists of one
        if leaf.role == Columns.T:
            bad = bad | nan
        if is_flag and values.dtype.kind != "b":
            self.tally.assume("null-as-false", int((nan & ~missing).sum()))
            values = np.where(nan, 0, values)
            bad = bad | ((values != 0) & (values != 1))  # 2 may be a code, -1 missing
        if bad.any():
            values = self._without(leaf, column, number, values, bad, missing, (cells, raw), rows)
        for row in () if is_flag else lost_in(values, leaf.dtype):
            said = "" if leaf.role == Columns.T else " of [dtypes]"
            self._reject(rows, row, f"column {name} holds {values[row]}, which {leaf.dtype}{said} cannot hold")
        return values

    def _splits_at(self, leaf: Leaf) -> bool:
        return self.split_at_gaps and leaf.role in FILLED_ROLES

    def _images(self, cells: pa.Array, column: Column, shape: Shape | None) -> tuple[NDArray[Any], Mask]:
        """Pixels; what decoding loses is counted: JPEG has lost pixels already, and alpha channels are left out."""
        held = [cell for cell in cells.to_pylist() if isinstance(cell, bytes)]
        alphas = sum(cell[:8] == PNG and cell[25:26] in WITH_ALPHA for cell in held)
        self.tally.assume(f"lossy-jpeg:{column.name}", sum(cell[:3] == JPEG for cell in held))
        self.tally.assume(f"alpha-left-out:{column.name}", alphas)
        values, bad = None, np.ones(len(cells), np.bool_)
        for row, cell in enumerate(cells.to_pylist()):
            pixels = decoded(cell, column.image)
            if isinstance(pixels, str) or (shape is not None and pixels.shape != shape):
                continue
            if values is None:
                shape = pixels.shape
                values = np.zeros((len(cells), *shape), np.uint8)
            values[row], bad[row] = pixels, False
        none = shape or (0,) * (2 if column.image == GRAY else 3)
        return np.zeros((len(cells), *none), np.uint8) if values is None else values, bad

    def _without(
        self,
        leaf: Leaf,
        column: Column,
        number: int,
        values: NDArray[Any],
        bad: Mask,
        missing: Mask,
        cells: tuple[pa.Array, pa.Array | None],
        rows: Rows,
    ) -> NDArray[Any]:
        """Rows without a value: of flags false, of extra outputs NaN, all others as the mapping says, each counted; or bad."""
        gone, fill, name = bad & missing, column.fill, column.name
        if fill == PREVIOUS:
            rows[f"{MISSING}{number}"] = gone
        elif fill is not None:
            how = fill if isinstance(fill, str) else "number"
            self.tally.assume(f"filled-{how}:{name}", int(gone.sum()))
            value: Any = self.means[name] if how == MEAN else 0 if how == fill else fill
            values = values.astype(np.float64) if values.dtype.kind != "f" and how != "zero" else values.copy()
            values[gone] = value
        elif leaf.role in FLAG_ROLES:
            self.tally.assume("null-as-false", int(gone.sum()))
        elif leaf.role == EXTRA and values.ndim == 1 and not column.holds_arrays and leaf.dtype.kind == "f":
            self.tally.assume("null-as-nan", int(gone.sum()))
            values = values.astype(leaf.dtype)
            values[gone] = np.nan
        elif self._splits_at(leaf):
            rows[GAP][gone] = True
        else:
            gone = np.zeros_like(gone)
        held, raw = cells
        for row in np.flatnonzero(bad & ~gone).tolist():
            text = None if raw is None else raw[row].as_py()
            why = _why(held[row].as_py() if text is None else text, leaf, column, values.shape[1:])
            self._reject(rows, row, f"column {name} {why}", is_missing=bool(missing[row]) and leaf.role in FILLED_ROLES)
        return values

    def _reject(self, rows: Rows, row: int, why: str, *, is_missing: bool = False) -> None:
        rows[BAD][row] = True
        self.reasons.setdefault(int(rows[POS][row]), (why, MISSING_FIX if is_missing else FIX))

    def _check_shape(self, leaf: Leaf, column: Column, shape: Shape, pos: int) -> None:
        what = f"column {column.name} holds arrays of shape {list(shape)} in each row, and {leaf.name} is "
        if leaf.role in (*SCALARS, Columns.T) and shape not in ((), (1,)):
            what += "one number"
        elif leaf.part.stacked and len(shape) > 1:
            what += "stacked of numbers and vectors"
        elif 0 in shape:
            what += "not empty"
        else:
            return
        raise BadEpisode(what, where=self.files.place(pos), fix="name another column in the mapping")


def _joined(leaf: Leaf, parts: list[NDArray[Any]]) -> NDArray[Any]:
    if leaf.role in FLAG_ROLES:
        return parts[0].astype(np.bool_, copy=False)
    if not leaf.part.stacked:
        values = parts[0].astype(leaf.dtype, copy=False)
        return -values if leaf.part.is_cost else values
    return np.concatenate(
        [part if part.ndim > 1 else part[:, None] for part in parts], axis=1, dtype=leaf.dtype, casting="unsafe"
    )


def _why(value: Any, leaf: Leaf, column: Column, shape: Shape) -> str:
    """What is wrong with a value."""
    text = repr(value) if len(repr(value)) <= SHOWN else f"{repr(value)[:SHOWN]}..."
    if value is None:
        return "has no value"
    if column.image:
        pixels = decoded(value, column.image)
        if isinstance(pixels, str):
            return f"holds {pixels}"
        return f"holds an image of {pixels.shape[0]} x {pixels.shape[1]} pixels, and others have {shape[0]} x {shape[1]}"
    if column.cells == "category":
        return f"holds {text}, which is none of its [categories]"
    if leaf.role in FLAG_ROLES:
        return f"holds {text}, not a flag: 0 or 1, true or false, yes or no"
    if isinstance(value, str) and (column.cells != "list" or not value.strip().startswith("[")):
        wanted = {"bool": "true or false", "time": "a time of 1678 to 2261", "list": "a JSON list"}.get(
            column.cells, "a number"
        )
        return f"holds {text}, not {wanted}"
    words = "a number" if not shape else f"{shape[0]} numbers" if len(shape) == 1 else f"numbers of shape {list(shape)}"
    return f"holds {text}, not {words} as in other rows"


def array_of(array: pa.Array, shape: Shape | None) -> tuple[NDArray[Any], Mask | None]:
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


def _lists(array: pa.Array, shape: Shape | None) -> tuple[NDArray[Any], Mask | None]:
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


# ---- images ----


def decoded(cell: object, kind: str) -> NDArray[np.uint8] | str:
    """(height, width), of `rgb` (height, width, 3) pixels; a text: why there are none. An empty `kind`: as they were stored.

    Raises MissingPackage.
    """
    if not isinstance(cell, bytes) or not cell.startswith((PNG, JPEG)):
        return "bytes that are neither PNG nor JPEG"
    if cell[:8] == PNG and len(cell) > 26:  # its header is at one place
        width, height = int.from_bytes(cell[16:20], "big"), int.from_bytes(cell[20:24], "big")
        if width * height > MOST_PIXELS:
            return f"an image that declares {height:,} x {width:,} pixels, more than {MOST_PIXELS:,}"
        if cell[24] > 8:
            return f"an image of {cell[24]} bits a channel, and at most 8 are read"
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MOST_PIXELS))  # of JPEG too
    try:
        import cv2
    except ImportError as err:
        fix = "pip install 'offline-cli[images]'"
        raise MissingPackage(f"decoding images needs a package: {err}", where="[images] of the mapping", fix=fix) from err
    how = {GRAY: cv2.IMREAD_GRAYSCALE, RGB: cv2.IMREAD_COLOR_RGB}.get(kind, cv2.IMREAD_UNCHANGED)
    try:
        found = cv2.imdecode(np.frombuffer(cell, np.uint8), how | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:
        found = None
    return "an image that is damaged" if found is None else np.asarray(found, np.uint8)


def likely_image(cells: Sequence[bytes]) -> str:
    """What images in cells are to be decoded to: gray where none has colours; empty where one of them is no image."""
    if not cells or not all(cell.startswith((PNG, JPEG)) for cell in cells):
        return ""
    try:
        pixels = [decoded(cell, "") for cell in cells]
    except MissingPackage:
        return RGB
    found = [one for one in pixels if not isinstance(one, str)]
    return "" if len(found) < len(pixels) else GRAY if all(one.ndim == 2 for one in found) else RGB


def cut_by_images(batches: Iterable[pa.RecordBatch], layout: Layout) -> Iterator[pa.RecordBatch]:
    """Batches cut so that images like their first one take about `AT_ONCE` bytes, or are one row."""
    columns = [(f"v{number}", column.image) for number, (_, column) in enumerate(layout.columns) if column.image]
    for batch in batches:
        first = [decoded(batch.column(name)[0].as_py(), kind) for name, kind in columns if batch.num_rows]
        size = sum(one.nbytes for one in first if not isinstance(one, str))
        rows = max(1, AT_ONCE // (size or 1 << 20))
        yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))
