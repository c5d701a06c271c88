"""One packed cell, or a column of them, as arrays: a few cells serve as patterns of many, the others are read one by one.

* `unpack`: one text; the pickle goes through `pickles`, which builds numbers and plain containers only.
* `unpack_cells`: a column of cells of one shape and dtype; others raise. Such cells differ in little but the bytes of their
  numbers, so one is read with all care, and from cells that agree with it in every other character (`template`) only those
  bytes are taken, for all of them at once. Any other cell is read on its own, by the same rules as the first.
* `KnownPatterns`: pickles that differ from a known one in nothing but the bytes of an array. A pickle states the length of its
  raw bytes before them. So two pickles of one length that agree in every other byte hold arrays of the same shape and dtype,
  and only the first has to be read instruction by instruction. A pattern that cannot be proved is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.errors import BadEpisode
from offline_cli.formats.packed.pickles import Unpickled, unpickle
from offline_cli.formats.packed.template import FIX, MAX_RATIO, SMALL_BYTES, CellTemplate, Texts, decompress
from offline_cli.formats.packed.values import numbers_of

__all__ = ["Column", "KnownPatterns", "Pattern", "check_size", "fill", "unpack", "unpack_cells"]

MAX_PATTERNS: Final = 8  # cells that are tried as the pattern of many; RLlib's columns need one or two
FEW: Final = 32  # so few cells are read one by one

MAX_KNOWN: Final = 64  # a recording has one for each column, and one more for each number of steps that a line can have
MAX_AROUND: Final = 4096  # bytes beside the array: numpy writes about 150


class Column(Protocol):
    """Arrays being filled from the cells of a column."""

    def fill_alike(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Read the first of `rows`, and with it all that differ from it in the bytes of numbers only; the rows left."""

    def fill_one(self, row: int) -> Any:
        """Read cell `row` on its own."""


def fill(column: Column, count: int) -> None:
    """Read all `count` cells of a column."""
    rows = np.arange(count)
    for _ in range(MAX_PATTERNS):
        if len(rows) <= FEW:
            break
        rows = column.fill_alike(rows)
    for row in rows.tolist():
        column.fill_one(row)


def check_size(texts: Texts, first_bytes: int, *, kind: str, where: str) -> None:
    """Raise BadEpisode where the cells are too short to be all as large as the first, of `first_bytes` when unfolded."""
    if first_bytes * len(texts) > MAX_RATIO * len(texts.data) + SMALL_BYTES:
        what = f"{len(texts)} {kind} cells that cannot all be as large as the first"
        raise BadEpisode(what, where=where, fix="convert the files of each kind into a dataset of its own")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pickle of one array whose raw bytes lie at a known place; others that agree around it differ in numbers only."""

    before: bytes
    after: bytes
    length: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, pickled: bytes, value: Any, read: Unpickled) -> Pattern | None:
        """The pattern of a pickle; None where it is not one C-ordered array of numbers over one run of bytes."""
        if not isinstance(value, np.ndarray) or not value.flags.c_contiguous or not value.nbytes or value.dtype.kind == "U":
            return None  # text is checked each time: not every number in it is a character
        spans = [(start, start + size) for start, size in read.spans if size == value.nbytes]
        if len(spans) != 1 or pickled[slice(*spans[0])] != value.tobytes():
            return None
        return cls(pickled[: spans[0][0]], pickled[spans[0][1] :], len(pickled), value.dtype, value.shape)

    def array_of(self, pickled: bytes) -> NDArray[Any] | None:
        """The flat array of `pickled`; None where it has another pattern."""
        alike = len(pickled) == self.length and pickled.startswith(self.before) and pickled.endswith(self.after)
        return numbers_of(pickled[len(self.before) : self.length - len(self.after)], self.dtype) if alike else None


@dataclass(slots=True)
class KnownPatterns:
    """Reads packed texts one after the other, and keeps the patterns of those that it has read."""

    _known: dict[int, Pattern] = field(default_factory=dict)  # by length: the last one of each

    def unpack(self, text: str | bytes, *, where: str) -> Any:
        """As `unpack` of this package."""
        pickled = decompress(text, where=where)
        known = self._known.get(len(pickled))
        array = None if known is None else known.array_of(pickled)
        if known is not None and array is not None:
            return array.reshape(known.shape)
        read = unpickle(pickled, where=where)
        pattern = Pattern.of(pickled, read.value, read)
        if pattern is not None and len(pattern.before) + len(pattern.after) <= MAX_AROUND:
            if len(self._known) == MAX_KNOWN:
                self._known.clear()
            self._known[pattern.length] = pattern
        return read.value


def unpack(text: str | bytes, *, where: str, object_lists: bool = False) -> Any:
    """The value packed in `text`: an array, a numpy scalar, or plain containers of these.

    `object_lists`: object arrays come back as lists of plain values (for infos) instead of being refused. Raises UnsafeData
    where the pickle names anything but numpy's arrays or would unfold beyond reason, BadEpisode for a cut or invalid text.
    """
    return unpickle(decompress(text, where=where), where=where, object_lists=object_lists).value


def unpack_cells(cells: Sequence[str | bytes] | pa.Array | pa.ChunkedArray, *, where: Callable[[int], str]) -> NDArray[Any]:
    """The (n, *shape) array of n packed cells; `where` names the place of row i.

    Raises BadEpisode, naming the row, where a cell is null, cut or invalid, or differs in shape or dtype from the first;
    UnsafeData as `unpack` does.
    """
    texts = _texts(cells, where)
    if not len(texts):
        return np.zeros(0, np.float32)
    column = _Column(texts, where)
    fill(column, len(texts))
    return column.values


def _texts(cells: Any, where: Callable[[int], str]) -> Texts:
    try:
        array = cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells
        binary = array if isinstance(array, pa.Array) else pa.array(list(array), pa.large_binary())
        binary = binary.cast(pa.large_binary())
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as err:
        raise BadEpisode(f"cells that are not text: {err}", where=where(0), fix=FIX) from err
    if binary.null_count:
        row = int(np.flatnonzero(binary.is_null().to_numpy(zero_copy_only=False))[0])
        raise BadEpisode("a packed cell that is null", where=where(row), fix=FIX)
    return Texts.of(binary)


class _Column:
    """The array being filled, and the form of the first cell, which all must share."""

    def __init__(self, texts: Texts, where: Callable[[int], str]) -> None:
        self.texts, self.where = texts, where
        pickled = decompress(texts[0], where=where(0))
        read = unpickle(pickled, where=where(0))
        if not isinstance(read.value, (np.ndarray, np.generic, bool, int, float)):
            kind = type(read.value).__name__
            raise BadEpisode(f"a packed cell of type {kind} in a column of arrays", where=where(0), fix=FIX)
        first = np.asarray(read.value)
        check_size(texts, first.nbytes, kind="packed", where=where(0))
        self.values = np.empty((len(texts), *first.shape), first.dtype)
        self.pattern = Pattern.of(pickled, read.value, read)

    def fill_one(self, row: int) -> bytes:
        """Read cell `row` on its own; its pickle."""
        pickled = decompress(self.texts[row], where=self.where(row))
        flat = self.pattern.array_of(pickled) if self.pattern else None
        if flat is None:
            self.values[row] = self._read_with_care(pickled, row)
        else:
            self.values[row] = flat.reshape(self.values.shape[1:])
        return pickled

    def _read_with_care(self, pickled: bytes, row: int) -> NDArray[Any]:
        value = np.asarray(unpickle(pickled, where=self.where(row)).value)
        shape, dtype = self.values.shape[1:], self.values.dtype
        if value.shape != shape or value.dtype != dtype:
            raise BadEpisode(
                f"a packed cell of {value.dtype}{value.shape} in a column of {dtype}{shape}",
                where=self.where(row),
                fix="convert the files of each kind into a dataset of its own",
            )
        return value

    def fill_alike(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Read the first of `rows`, and with it all whose texts have its pattern; the rows that are left."""
        first, rest = int(rows[0]), rows[1:]
        pickled = self.fill_one(first)
        if self.pattern is None or self.pattern.array_of(pickled) is None:
            return rest
        size = self.pattern.length - len(self.pattern.before) - len(self.pattern.after)
        template = CellTemplate.of(self.texts[first], len(self.pattern.before), size)
        if template is None:
            return rest
        alike = np.zeros(len(rest), np.bool_)
        for part, data in template.data_of(self.texts, rest):
            alike[part] = True
            numbers = numbers_of(data.tobytes(), self.pattern.dtype)
            self.values[rest[part]] = numbers.reshape(len(part), *self.values.shape[1:])
        return rest[~alike]
