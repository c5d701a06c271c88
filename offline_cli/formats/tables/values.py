"""Convert query batches to arrays, one per leaf: decode PNG and JPEG, fill missing values, and mark bad rows.

`[images]` of a mapping lists columns of image bytes, and their modes. OpenCV decodes them: only PNG and JPEG, and at most
`MOST_PIXELS` each. A row whose image is invalid, damaged or of another size is bad.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
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
from offline_cli.formats.tables.mapping import EXTRA, FILLED_ROLES, PREVIOUS
from offline_cli.schema_files import from_json
from offline_cli.tally import Tally

BAD: Final = "__bad"
MISSING: Final = "__missing"  # prefix of an array's name: mask of cells to fill from the previous row
BETWEEN, NOTHING = "\x1f", "\x1e"  # in the column `key` of a query: separator of parts, and a part without a value
SHOWN: Final = 60  # most characters shown of a bad value
FIX: Final = "correct the value, remove the column from the mapping, or skip the episode with --on-error skip"
MISSING_FIX: Final = "set [fill] in the mapping, or skip the episode with --on-error skip"
KEY_FIX: Final = "delete the row if it is empty, or add its id; or skip the adjacent episodes with --on-error skip"
MOST_PIXELS: Final = 16 << 20  # per image
PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
WITH_ALPHA: Final = (b"\x04", b"\x06")  # PNG color types

Rows = dict[str, NDArray[Any]]  # arrays (N, ...) by `Leaf.array_of`; names with two underscores are ours
Shape = tuple[int, ...]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class WrongRow:
    """Why a row is rejected."""

    why: str
    fix: str
    raw: str  # the row's columns as JSON


@dataclass(slots=True)
class ValueReader:
    """Converts batches with columns `key`, `v0`, `v1`, ... (values) and `r0`, ... (text of invalid values) to arrays."""

    files: TableFiles
    layout: Layout
    keys: Sequence[str]  # columns of the parts of `key`
    tally: Tally
    shapes: dict[int, Shape] = field(default_factory=dict)  # shape of a value, by column number
    wrong: dict[int, WrongRow] = field(default_factory=dict)  # by position

    def rows(self, batch: pa.RecordBatch) -> Rows:
        """Arrays (N, ...) of all columns, positions, and a mask of bad rows, which are described in `wrong`."""
        rows: Rows = {POS: batch.column(POS).to_numpy(), BAD: np.zeros(batch.num_rows, np.bool_)}
        for number, (leaf, column) in enumerate(self.layout.columns):
            values = self._values(leaf, column, number, batch, rows)
            rows[leaf.array_of(column)] = -values if leaf.part.is_cost else values
        if self.layout.infos is not None:
            rows[Columns.INFOS] = self._infos(batch, rows)
        return rows

    def reject(self, batch: pa.RecordBatch, row: int, why: str, fix: str) -> int:
        """Record why a row is bad. Returns its position."""
        (cells,) = batch.slice(row, 1).to_pylist()
        raw = dict(zip(self.keys, (cells["key"] or "").split(BETWEEN), strict=False))
        for number, (_, column) in enumerate(self.layout.columns):
            raw[column.name] = cells[f"v{number}"] if cells.get(f"r{number}") is None else cells[f"r{number}"]
        if self.layout.infos is not None:
            raw[self.layout.infos] = cells[Columns.INFOS]
        self.wrong.setdefault(cells[POS], WrongRow(why, fix, json.dumps(raw, default=str)))
        return int(cells[POS])

    def _infos(self, batch: pa.RecordBatch, rows: Rows) -> NDArray[np.object_]:
        infos = np.empty(batch.num_rows, object)
        for row, text in enumerate(batch.column(Columns.INFOS).to_pylist()):
            try:
                infos[row] = from_json(text) if text else {}
                why = "" if isinstance(infos[row], dict) else f"it holds {type(infos[row]).__name__}, not a dict"
            except ValueError as error:
                why = str(error)
            if why:
                why, fix = f"column {self.layout.infos} is not a JSON object: {why}", "write infos as JSON objects"
                self.reject(batch, row, why, fix)
                rows[BAD][row] = True
        return infos

    def _values(self, leaf: Leaf, column: Column, number: int, batch: pa.RecordBatch, rows: Rows) -> NDArray[Any]:
        """Values of one column, (N, *shape). Missing ones are filled or rejected."""
        name, shape, is_flag = column.name, self.shapes.get(number), leaf.role in FLAG_ROLES
        cells, raw = batch.column(f"v{number}"), batch.column(f"r{number}") if f"r{number}" in batch.schema.names else None
        if raw is not None and column.cells not in ("category", "time") and self.files.kind != "csv":
            self.tally.assume(f"numbers-as-text:{name}", len(cells) - cells.null_count)
        values, bad = self._images(cells, column, shape) if column.image else array_of(cells, shape)
        if name in self.files.shapes and values.ndim == 2:
            values = values.reshape(len(values), *self.files.shapes[name])
        if shape is None and not (column.holds_arrays and bad.all()):
            self._check_shape(leaf, column, values.shape[1:], int(rows[POS][0]))
            self.shapes[number] = values.shape[1:]
        if leaf.role in (*SCALARS, Columns.T):
            values = values.reshape(len(values))  # lists of length 1
        nan = np.isnan(values) if values.dtype.kind == "f" and values.ndim == 1 else np.zeros_like(bad)
        missing = _nulls(cells)
        if raw is not None:
            missing &= _nulls(raw)
        if is_flag or column.fill is not None:
            missing |= nan
        if missing.any():
            values, known = self._filled(leaf, column, values, missing, rows)
            bad = (bad | missing) & ~known
        if leaf.role == Columns.T:
            bad = bad | nan
        if is_flag and values.dtype.kind != "b":
            bad = bad | ((values != 0) & (values != 1))  # 2 may be a code, -1 missing
        elif leaf.dtype.kind != "f" and not np.can_cast(values.dtype, leaf.dtype):
            with np.errstate(invalid="ignore"):
                bad = bad | (values.astype(leaf.dtype) != values).reshape(len(values), -1).any(axis=1)
        large = _too_large(values, leaf)
        bad = bad | large
        for row in np.flatnonzero(bad).tolist():
            value = cells[row].as_py() if raw is None or raw[row].as_py() is None else raw[row].as_py()
            wrong = _why(value, leaf, column, values.shape[1:])
            why = f"column {name} {f'holds {_shown(value)}, too large for {leaf.dtype}' if large[row] else wrong}"
            self.reject(batch, row, why, MISSING_FIX if missing[row] and leaf.role in FILLED_ROLES else FIX)
        rows[BAD] |= bad
        with np.errstate(over="ignore"):  # in bad rows
            return values.astype(leaf.dtype, copy=False)

    def _filled(self, leaf: Leaf, column: Column, values: NDArray[Any], missing: Mask, rows: Rows) -> tuple[NDArray[Any], Mask]:
        """Fill missing values: as in the mapping, otherwise flags with false and extra outputs with NaN; all are counted.

        Returns the values, and a mask of the rows filled.
        """
        if column.fill == PREVIOUS:
            rows[f"{MISSING}{leaf.array_of(column)}"] = missing
            return values, missing
        if column.fill is not None:
            how, value = f"filled-number:{column.name}", 0 if column.fill == "zero" else column.fill
        elif leaf.role in FLAG_ROLES:
            how, value = "null-as-false", 0
        elif leaf.role == EXTRA and values.ndim == 1 and not column.holds_arrays and leaf.dtype.kind == "f":
            how, value = "null-as-nan", np.nan
        else:
            return values, np.zeros_like(missing)
        self.tally.assume(how, int(missing.sum()))
        values = values.astype(np.float64) if isinstance(value, float) else values.copy()
        values[missing] = value
        return values, missing

    def _images(self, cells: pa.Array, column: Column, shape: Shape | None) -> tuple[NDArray[Any], Mask]:
        """Decode images. Losses are counted: JPEG is lossy, and alpha channels are dropped."""
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

    def _check_shape(self, leaf: Leaf, column: Column, shape: Shape, pos: int) -> None:
        what = f"column {column.name} holds an array of shape {list(shape)} in each row, but {leaf.name} must be "
        if leaf.role in (*SCALARS, Columns.T) and shape not in ((), (1,)):
            what += "one number"
        elif leaf.part.stacked and len(shape) > 1:
            what += "a stack of numbers and vectors"
        elif 0 in shape:
            what += "nonempty"
        else:
            return
        raise BadEpisode(what, where=self.files.place(pos), fix="name another column in the mapping")


def _nulls(array: pa.Array) -> Mask:
    """(N,) whether a cell has no value."""
    if not array.null_count and not pa.types.is_null(array.type):
        return np.zeros(len(array), np.bool_)
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)


def _too_large(values: NDArray[Any], leaf: Leaf) -> Mask:
    """(N,) whether a row holds a finite value that is infinite in the dtype of its leaf."""
    if leaf.dtype.kind != "f" or np.can_cast(values.dtype, leaf.dtype):
        return np.zeros(len(values), np.bool_)
    with np.errstate(over="ignore"):
        large = np.isinf(values.astype(leaf.dtype)) & np.isfinite(values)
    return np.asarray(large.reshape(len(values), -1).any(axis=1))


def _shown(value: Any) -> str:
    return repr(value) if len(repr(value)) <= SHOWN else f"{repr(value)[:SHOWN]}..."


def _why(value: Any, leaf: Leaf, column: Column, shape: Shape) -> str:
    """Describe what is wrong with a value."""
    text = _shown(value)
    if value is None:
        return "has no value"
    if column.image:
        pixels = decoded(value, column.image)
        found = pixels if isinstance(pixels, str) else f"an image of {pixels.shape[0]} x {pixels.shape[1]} pixels"
        return f"holds {found}, but the column's images are {shape[0]} x {shape[1]}"
    if column.cells == "category":
        return f"holds {text}, which is not one of its [categories]"
    wanted = {"bool": "true or false", "time": "a time between 1678 and 2261", "number": "a number"}.get(
        column.cells, "a value"
    )
    if shape or column.cells == "list":
        wanted = f"numbers of shape {list(shape)} as in other rows"
    return f"holds {text}, not {'a flag: 0 or 1, true or false, yes or no' if leaf.role in FLAG_ROLES else wanted}"


def array_of(array: pa.Array, shape: Shape | None) -> tuple[NDArray[Any], Mask]:
    """Values (N, *shape), 0 in bad rows, and the mask (N,) of bad rows. `shape`: None to use the most common one."""
    if is_list(array.type):
        values, bad = _lists(array, shape)
    elif pa.types.is_null(array.type):
        values, bad = np.zeros(len(array)), np.ones(len(array), np.bool_)
    else:
        bad = _nulls(array)
        filled = array.fill_null(False if pa.types.is_boolean(array.type) else 0) if array.null_count else array
        values = np.asarray(filled.to_numpy(zero_copy_only=False))
    if shape is not None and values.shape[1:] != shape:
        return np.zeros((len(array), *shape), values.dtype), np.ones(len(array), np.bool_)
    return values, bad


def _lists(array: pa.Array, shape: Shape | None) -> tuple[NDArray[Any], Mask]:
    """`array_of` for lists."""
    lengths = pc.fill_null(pc.list_value_length(array), -1).to_numpy(zero_copy_only=False)
    known = lengths[lengths >= 0]
    size = shape[0] if shape else int(np.bincount(known).argmax()) if len(known) else 0
    bad = np.asarray(lengths != size)
    kept = array.filter(pa.array(~bad)) if bad.any() else array
    inner, inner_bad = array_of(kept.flatten(), None if shape is None else shape[1:])
    inner, inner_bad = (
        inner.reshape(len(kept), size, *inner.shape[1:]),
        np.asarray(inner_bad.reshape(len(kept), size).any(axis=1)),
    )
    if len(kept) == len(array):
        return inner, inner_bad
    values = np.zeros((len(array), *inner.shape[1:]), inner.dtype)
    values[~bad] = inner
    bad[~bad] = inner_bad
    return values, bad


# ---- images ----


def decoded(cell: object, kind: str) -> NDArray[np.uint8] | str:
    """Decode an image to (height, width), or (height, width, 3) for `rgb`; or return an error text.

    `kind`: gray or rgb; empty to keep the stored mode. Raises MissingPackage.
    """
    if not isinstance(cell, bytes) or not cell.startswith((PNG, JPEG)):
        return "bytes that are neither PNG nor JPEG"
    if cell[:8] == PNG and len(cell) > 26:  # the header is at a fixed offset
        width, height = int.from_bytes(cell[16:20], "big"), int.from_bytes(cell[20:24], "big")
        if width * height > MOST_PIXELS:
            return f"an image that declares {height:,} x {width:,} pixels, more than {MOST_PIXELS:,}"
        if cell[24] > 8:
            return f"an image of {cell[24]} bits per channel (at most 8 are supported)"
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MOST_PIXELS))  # also limits JPEG
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
    return "a damaged image" if found is None else np.asarray(found, np.uint8)


def likely_image(cells: Sequence[bytes]) -> str:
    """The mode to decode images to: gray if none has colors, otherwise rgb; empty if a cell is not an image."""
    if not cells or not all(cell.startswith((PNG, JPEG)) for cell in cells):
        return ""
    try:
        pixels = [decoded(cell, "") for cell in cells]
    except MissingPackage:
        return "rgb"
    found = [one for one in pixels if not isinstance(one, str)]
    return "" if len(found) < len(pixels) else "gray" if all(one.ndim == 2 for one in found) else "rgb"
