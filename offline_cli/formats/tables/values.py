"""Batches of a query as arrays, one for each leaf of an episode; PNG and JPEG as pixels; rows without a value filled, or bad.

`[images]` of a mapping says which columns of bytes are images, and of what. OpenCV decodes them, PNG and JPEG alone, and not
more than `MOST_PIXELS` each. A cell that is none, is damaged, or has another size than the others is a bad row.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import BadEpisode, MissingPackage
from offline_cli.formats.tables.columns import FLAG_ROLES, SCALARS, Column, Layout, Leaf
from offline_cli.formats.tables.files import POS, TableFiles, is_list
from offline_cli.formats.tables.mapping import EXTRA, FILLED_ROLES, MEAN, PREVIOUS
from offline_cli.safe_json import from_json
from offline_cli.tally import Tally

BAD, GAP = "__bad", "__gap"
MISSING: Final = "__missing"  # and the name of an array: cells that are to be filled from the row before
SHOWN: Final = 60  # letters of an offending value
FIX: Final = "correct the value, leave the column out of the mapping, or --on-error skip to leave out the episode"
MISSING_FIX: Final = "[fill] or split_at_gaps in the mapping (docs/tables.md), or --on-error skip to leave out the episode"
MOST_PIXELS: Final = 16 << 20  # of one image
PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
WITH_ALPHA: Final = (b"\x04", b"\x06")  # colour types of PNG

Rows = dict[str, NDArray[Any]]  # arrays (N, ...) by `Leaf.array_of`, and by names that begin with two underscores
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
        """(N, ...) arrays of all columns, positions, and the rows that are bad, or end an episode for want of a cell."""
        pos = np.asarray(batch.column(POS).to_numpy(), np.int64)
        rows: Rows = {POS: pos, BAD: np.zeros(len(pos), np.bool_)}
        if self.split_at_gaps:
            rows[GAP] = np.zeros(len(pos), np.bool_)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for number, (leaf, column) in enumerate(self.layout.columns):
            values = self._values(leaf, column, number, columns, rows)
            rows[leaf.array_of(column)] = -values if leaf.part.is_cost else values
        if self.layout.infos is not None:
            rows[Columns.INFOS] = infos = np.empty(len(pos), object)
            for row, text in enumerate(batch.column(Columns.INFOS).to_pylist()):
                infos[row] = {}
                try:
                    infos[row] = from_json(text) if text else {}
                    why = "" if isinstance(infos[row], dict) else f"it holds {type(infos[row]).__name__}, not a dict"
                except ValueError as error:
                    why = str(error)
                if why:
                    why = f"column {self.layout.infos} is not JSON of a dict: {why}"
                    self._reject(rows, row, why, "write infos as JSON objects, or leave the column out")
        return rows

    def _values(self, leaf: Leaf, column: Column, number: int, columns: Mapping[str, pa.Array], rows: Rows) -> NDArray[Any]:
        """(N, *shape) values of one column. Rows that have none are filled, marked as gaps, or rejected."""
        cells, raw, name, shape = columns[f"v{number}"], columns.get(f"r{number}"), column.name, self.shapes.get(number)
        values, bad = self._images(cells, column, shape) if column.image else array_of(cells, shape)
        if name in self.files.shapes and values.ndim == 2:
            values = values.reshape(len(values), *self.files.shapes[name])
        if raw is not None and column.cells not in ("category", "time") and self.files.kind != "csv":
            self.tally.assume(f"numbers-as-text:{name}", len(cells) - cells.null_count)
        missing = np.zeros(len(cells), np.bool_) if not cells.null_count else _mask(cells.is_null())
        if raw is not None:
            missing = missing & _mask(raw.is_null())
        is_flag, splits = leaf.role in FLAG_ROLES, self.split_at_gaps and leaf.role in FILLED_ROLES
        nan = np.isnan(values) if values.dtype.kind == "f" and values.ndim == 1 else np.zeros_like(missing)
        if is_flag or column.fill is not None or (splits and leaf.role != EXTRA):
            missing = missing | nan
        bad = missing if bad is None else missing | bad
        if shape is None and not (column.holds_arrays and bad.all()):
            self._check_shape(leaf, column, values.shape[1:], int(rows[POS][0]))
            self.shapes[number] = values.shape[1:]
        if leaf.role in (*SCALARS, Columns.T) and values.ndim > 1:
            values = values.reshape(len(values))  # lists of one
        if leaf.role == Columns.T:
            bad = bad | nan
        if is_flag and values.dtype.kind != "b":
            bad = bad | ((values != 0) & (values != 1))  # 2 may be a code, -1 missing
        if bad.any():
            values, known = self._without(leaf, column, values, missing, rows)
            for row in np.flatnonzero(bad & ~known).tolist():
                text = None if raw is None else raw[row].as_py()
                why = _why(cells[row].as_py() if text is None else text, leaf, column, values.shape[1:])
                fix = MISSING_FIX if missing[row] and leaf.role in FILLED_ROLES else FIX
                self._reject(rows, row, f"column {name} {why}", fix)
        for row in () if is_flag else lost_in(values, leaf.dtype):
            said = "" if leaf.role == Columns.T else " of [dtypes]"
            self._reject(rows, row, f"column {name} holds {values[row]}, which {leaf.dtype}{said} cannot hold", FIX)
        return values.astype(leaf.dtype, copy=False)

    def _without(
        self, leaf: Leaf, column: Column, values: NDArray[Any], missing: Mask, rows: Rows
    ) -> tuple[NDArray[Any], Mask]:
        """The values, and the rows of `missing` that are known what to do with: of flags false, of extra outputs NaN, all
        others as the mapping says, each counted.
        """
        fill, count = column.fill, int(missing.sum())
        if fill == PREVIOUS:
            rows[f"{MISSING}{leaf.array_of(column)}"] = missing
            return values, missing
        if fill is not None:
            how = fill if isinstance(fill, str) else "number"
            value: Any = self.means[column.name] if how == MEAN else 0 if how == "zero" else fill
        elif leaf.role in FLAG_ROLES:
            how, value = "null-as-false", 0
        elif leaf.role == EXTRA and values.ndim == 1 and not column.holds_arrays and leaf.dtype.kind == "f":
            how, value = "null-as-nan", np.nan
        elif self.split_at_gaps and leaf.role in FILLED_ROLES:
            rows[GAP][missing] = True
            return values, missing
        else:
            return values, np.zeros_like(missing)
        self.tally.assume(how if fill is None else f"filled-{how}:{column.name}", count)
        values = values.astype(np.result_type(values.dtype, np.float64)) if isinstance(value, float) else values.copy()
        values[missing] = value
        return values, missing

    def _images(self, cells: pa.Array, column: Column, shape: Shape | None) -> tuple[NDArray[Any], Mask]:
        """Pixels; what decoding loses is counted: JPEG has lost pixels already, and alpha channels are left out."""
        held = [cell if isinstance(cell, bytes) else b"" for cell in cells.to_pylist()]
        alphas = sum(cell[:8] == PNG and cell[25:26] in WITH_ALPHA for cell in held)
        self.tally.assume(f"lossy-jpeg:{column.name}", sum(cell[:3] == JPEG for cell in held))
        self.tally.assume(f"alpha-left-out:{column.name}", alphas)
        found = [decoded(cell, column.image) for cell in held]
        shape = shape or next((one.shape for one in found if not isinstance(one, str)), (0,) * (3 - (column.image == "gray")))
        bad = np.array([isinstance(one, str) or one.shape != shape for one in found], np.bool_)
        values = np.zeros((len(cells), *shape), np.uint8)
        for row in np.flatnonzero(~bad).tolist():
            values[row] = found[row]
        return values, bad

    def _reject(self, rows: Rows, row: int, why: str, fix: str) -> None:
        rows[BAD][row] = True
        self.reasons.setdefault(int(rows[POS][row]), (why, fix))

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


def _mask(array: pa.Array) -> Mask:
    return np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)


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
        wanted = {"bool": "true or false", "time": "a time of 1678 to 2261", "list": "a JSON list"}
        return f"holds {text}, not {wanted.get(column.cells, 'a number')}"
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
    how = {"gray": cv2.IMREAD_GRAYSCALE, "rgb": cv2.IMREAD_COLOR_RGB}.get(kind, cv2.IMREAD_UNCHANGED)
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
        return "rgb"
    found = [one for one in pixels if not isinstance(one, str)]
    return "" if len(found) < len(pixels) else "gray" if all(one.ndim == 2 for one in found) else "rgb"
