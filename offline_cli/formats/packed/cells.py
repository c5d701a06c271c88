"""One packed cell or a column of them as arrays; refuses columns whose cells differ in shape or dtype.

* `unpack` reads one text; the pickle goes through `pickles`, which builds numbers and plain containers only.
* `unpack_cells` reads a column of cells of one shape and dtype. Such cells differ in little but the bytes of their numbers,
  so one is read with all care, and the cells that agree with it in every other character (`template`) only have those
  bytes taken out, for all of them at once. Any other cell is read on its own, by the same rules as the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.errors import BadEpisode
from offline_cli.formats.packed.columns import check_size, fill
from offline_cli.formats.packed.patterns import Pattern
from offline_cli.formats.packed.pickles import unpickle
from offline_cli.formats.packed.template import CellTemplate, Texts
from offline_cli.formats.packed.text import FIX, decompress
from offline_cli.formats.packed.values import numbers_of

__all__ = ["unpack", "unpack_cells"]


def unpack(text: str | bytes, *, where: str, object_lists: bool = False) -> Any:
    """The value that `text` stands for: an array, a numpy scalar, or plain containers of these.

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
    """The array being filled, and what the first cell says that all must agree with."""

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
