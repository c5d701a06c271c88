"""What the first rows of a table show of its columns: numbers, flags, answers, times, texts, images; a proposal rests on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.formats.arrow_leaves import is_text
from offline_cli.formats.tables.cells import CellCounts, are_decimal_commas, booleans_in, numbers_in, times_in
from offline_cli.formats.tables.images import GRAY, RGB, header_of, is_bytes, why_no_image
from offline_cli.formats.tables.numeric import array_of, dtype_of, is_one_number, is_temporal

__all__ = ["MOST_IMAGES", "Look", "Seen", "looked"]

MOST_IMAGES: Final = 16  # cells of bytes that are looked at


@dataclass(frozen=True, slots=True)
class Seen:
    """Rows of a table that a proposal rests on."""

    table: pa.Table | None  # the first rows, columns as they are in the files; None: no row could be read
    rows: int  # of which texts were collected
    whole: bool  # whether these are all rows of the table
    texts: Mapping[str, Sequence[str] | None]  # by column of text: all that are different, sorted; None: too many


@dataclass(slots=True)
class Look:
    """What the rows at hand show of one column."""

    kind: str  # number, flag, answer (yes or no), time, text, list, image, empty; "": no row
    codes: NDArray[Any] = field(default_factory=lambda: np.zeros(0))  # (N,) comparable values, NaN for none
    is_whole: bool = False  # whole numbers, or times
    comma: str = ""  # one of its numbers, where these have a decimal comma
    image: str = ""  # what its images are decoded to
    unfit: str = ""  # why its images cannot be read
    gaps: int = 0  # cells without a value

    @property
    def different(self) -> int:
        """How many values."""
        return len(np.unique(self.codes))


def looked(seen: Seen | None, name: str) -> Look:
    """What a column holds, by the rows at hand."""
    column = None if seen is None or seen.table is None or name not in seen.table.column_names else seen.table.column(name)
    if column is None or not len(column):
        return Look("")
    look = _of_cells(column)
    look.gaps = 0 if is_bytes(column.type) else column.null_count  # of bytes only some cells are at hand
    return look


def _of_cells(column: Any) -> Look:
    if column.null_count == len(column):
        return Look("empty")
    if is_text(column.type):
        return _of_text(column.combine_chunks())
    if is_bytes(column.type):
        return _of_bytes(column.drop_null().slice(0, MOST_IMAGES).to_pylist())
    if dtype_of(column.type) is None or not is_one_number(column.type):
        return Look("list" if dtype_of(column.type) is not None else "other")
    values, missing = array_of(column, None, None)
    codes = _with_nan(values, missing)
    if values.dtype.kind == "b" or _are_flags(codes):
        return Look("flag", codes, True)
    return Look("time" if is_temporal(column.type) else "number", codes, _are_whole(codes))


def _of_bytes(cells: Sequence[bytes]) -> Look:
    """Images, where the first bytes of all cells say so; gray where none has colours."""
    headers = [found for cell in cells if (found := header_of(cell)) is not None]
    if len(headers) < len(cells):
        return Look("other")
    kind = GRAY if all(one.is_gray for one in headers) else RGB
    shape = headers[0].height, headers[0].width
    unfit = next((why for cell in cells if (why := why_no_image(cell, kind, shape))), "")
    return Look("other", unfit=unfit) if unfit else Look("image", image=kind)


def _of_text(cells: pa.Array, decimal: str = ".") -> Look:
    counts = CellCounts()
    counts.see(cells, decimal=decimal, with_times=True)
    if decimal == "." and are_decimal_commas(counts.samples):
        return replace(_of_text(cells, ","), comma=counts.samples[0])
    if counts.kind in ("number", "bool") and (decimal == "," or not (counts.texts or counts.times)):
        lower = pc.utf8_lower(cells) if counts.bools else cells
        plain = pc.replace_substring(pc.replace_substring(lower, "true", "1"), "false", "0") if counts.bools else cells
        codes = _with_nan(*numbers_in(plain, np.dtype(np.float64), decimal))
        return Look("flag" if _are_flags(codes) else "number", codes, _are_whole(codes))
    if counts.kind == "time" and not counts.texts:
        return Look("time", _with_nan(*times_in(cells)), True)
    if counts.kind == "list":
        return Look("list")
    if counts.kind == "text" and counts.are_answers:
        return Look("answer", _with_nan(*booleans_in(cells, flags=True)), True)
    return Look("text", np.asarray(cells.dictionary_encode().indices.fill_null(-1).to_numpy(), np.float64))


def _with_nan(values: NDArray[Any], missing: NDArray[np.bool_] | None) -> NDArray[Any]:
    return values.astype(np.float64) if missing is None else np.where(missing, np.nan, values.astype(np.float64))


def _are_flags(codes: NDArray[Any]) -> bool:
    return bool(np.isin(codes[~np.isnan(codes)], (0, 1)).all())


def _are_whole(codes: NDArray[Any]) -> bool:
    known = codes[~np.isnan(codes)]
    return bool((known == np.floor(known)).all())
