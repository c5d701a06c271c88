"""A column of pickled values (arrays, numbers, dicts and tuples of these), as Ray writes cells that Arrow has no type for.

RLlib's column recordings hold such cells where a value of one step has parts: the states of a module with memory, actions of a
Tuple space. They are raw pickles, neither packed nor base64. Each is read by `pickles`, which builds numbers and plain
containers only. Cells of one column mostly differ in the bytes of their numbers alone, so one is read with all care, and from
those that agree with it in every other byte only these bytes are taken, for all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.packed.cells import check_size, fill
from offline_cli.formats.packed.pickles import Unpickled, unpickle
from offline_cli.formats.packed.template import FIX, PICKLE_MAGIC, Texts
from offline_cli.formats.packed.values import numbers_of
from offline_cli.trees import Tree, leaves, map_leaves, unflatten_like

__all__ = ["is_pickle", "tree_of_value", "unpickle_cells"]

CHUNK_BYTES: Final = 8 << 20  # of the cells that are compared at once
NUMERIC: Final = "biufc"
PROBE: Final = b"ACDEFGHJKL"
"""Bytes used as digits in a probe: of finite floats, and of no dtype or byte order."""


def is_pickle(cell: Any) -> bool:
    """Whether a cell is a bare pickle: of protocol 2 or later, as all that Ray has written."""
    return isinstance(cell, bytes) and cell[:1] == PICKLE_MAGIC


def tree_of_value(value: Any, *, where: str) -> Tree:
    """An unpickled value as a tree of arrays. Raises BadEpisode where a part of it is not numbers."""
    if isinstance(value, dict):
        parts = {str(key): tree_of_value(part, where=where) for key, part in value.items()}
        if len(parts) < len(value) or not parts:
            raise BadEpisode("a pickled dict without keys, or with keys that are one as text", where=where, fix=FIX)
        return parts
    if isinstance(value, list) and (numbers := _numbers(value)) is not None:
        return numbers
    if isinstance(value, (tuple, list)) and value:
        return tuple(tree_of_value(part, where=where) for part in value)
    if isinstance(value, (np.ndarray, np.generic, bool, int, float, complex)):
        leaf = np.asarray(value)
        if leaf.dtype.kind in NUMERIC:
            return leaf
    raise BadEpisode(f"a pickled {type(value).__name__} where numbers are wanted", where=where, fix=FIX)


def _numbers(items: list[Any]) -> NDArray[Any] | None:
    """The array of a list of plain numbers."""
    if not items or not all(type(item) in (bool, int, float) for item in items):
        return None
    numbers = np.asarray(items)
    return numbers if numbers.dtype.kind in NUMERIC else None


def unpickle_cells(cells: pa.Array, *, where: Callable[[int], str]) -> Tree:
    """A tree of arrays (n, *shape) of n pickled values; `where` names the place of row i.

    Raises BadEpisode, naming the row, where a cell is cut, is not numbers, or differs in structure, shape or dtype from the
    first; UnsafeData where it names anything else than numpy's arrays, or exceeds its bytes.
    """
    texts = Texts.of(cells.cast(pa.large_binary()))
    if not len(texts):
        return np.zeros(0, np.float32)
    column = _Column(texts, where)
    fill(column, len(texts))
    return unflatten_like(column.tree, column.values)


class _Column:
    """The arrays being filled, and the form of the first cell, which all must share."""

    def __init__(self, texts: Texts, where: Callable[[int], str]) -> None:
        self.texts, self.where = texts, where
        self.tree: Tree = tree_of_value(unpickle(texts[0], where=where(0)).value, where=where(0))
        firsts = leaves(self.tree)
        check_size(texts, sum(leaf.nbytes for leaf in firsts), kind="pickled", where=where(0))
        try:
            self.values = [np.empty((len(texts), *leaf.shape), leaf.dtype) for leaf in firsts]
        except ValueError as error:  # of dimensions beside one of no size: numpy has limits of its own there
            raise BadEpisode(f"a pickled cell of absurd shape: {error}", where=where(0), fix=FIX) from error

    def fill_one(self, row: int) -> tuple[Unpickled, list[NDArray[Any]]]:
        """Read cell `row` on its own: what its pickle holds, and the leaves of that."""
        place = self.where(row)
        read = unpickle(self.texts[row], where=place)
        found = self._leaves_of(read.value, place)
        for values, leaf in zip(self.values, found, strict=True):
            values[row] = leaf
        return read, found

    def _leaves_of(self, value: Any, place: str) -> list[NDArray[Any]]:
        tree = tree_of_value(value, where=place)
        try:
            pairs = leaves(map_leaves(_Pair, self.tree, tree))
        except ValueError as error:
            raise self._another(str(error), place) from error
        for pair in pairs:
            if (pair.leaf.dtype, pair.leaf.shape) != (pair.first.dtype, pair.first.shape):
                raise self._another(f"{_in_words(pair.leaf)} in a column of {_in_words(pair.first)}", place)
        return [pair.leaf for pair in pairs]

    def _another(self, difference: str, place: str) -> BadEpisode:
        fix = "convert the files of each kind into a dataset of its own, or --on-error skip"
        return BadEpisode(f"a pickled cell of another kind than the first one: {difference}", where=place, fix=fix)

    def fill_alike(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Read the first of `rows`, and with it all that differ from it in the bytes of its numbers only; the rows left."""
        first, rest = int(rows[0]), rows[1:]
        read, found = self.fill_one(first)
        pickled = self.texts[first]
        spans = self._number_spans(pickled, read, found)
        if not any(spans):
            return rest
        fixed = np.ones(len(pickled), np.bool_)
        for span in filter(None, spans):
            fixed[slice(*span)] = False
        mine = np.frombuffer(pickled, np.uint8)
        alike: NDArray[np.bool_] = np.diff(self.texts.starts)[rest] == len(pickled)
        step = max(1, CHUNK_BYTES // len(pickled))
        places = np.flatnonzero(alike)
        for at in range(0, len(places), step):
            part = places[at : at + step]
            data = self.texts.cut(rest[part], 0, len(pickled))
            same = (data[:, fixed] == mine[fixed]).all(axis=1)
            alike[part] = same
            self._fill(rest[part[same]], data[same], spans, found)
        left: NDArray[np.intp] = rest[~alike]
        return left

    def _fill(
        self,
        rows: NDArray[np.intp],
        data: NDArray[np.uint8],
        spans: list[tuple[int, int] | None],
        found: list[NDArray[Any]],
    ) -> None:
        for values, span, leaf in zip(self.values, spans, found, strict=True):
            if span is None:
                values[rows] = leaf
            else:
                numbers = numbers_of(data[:, slice(*span)].tobytes(), leaf.dtype)
                values[rows] = numbers.reshape(len(rows), *leaf.shape)

    def _number_spans(self, pickled: bytes, read: Unpickled, found: list[NDArray[Any]]) -> list[tuple[int, int] | None]:
        """For each leaf the bytes (start, stop) of `pickled` that its numbers are; None: they follow from other bytes.

        Tested by trial: the same pickle with other bytes in these places has them as its numbers, and is otherwise equal.
        """
        nothing: list[tuple[int, int] | None] = [None] * len(found)
        probe, filled = bytearray(pickled), dict[bytes, tuple[int, int]]()
        contents = {leaf.tobytes() for leaf in found if leaf.nbytes and leaf.dtype.kind in "iufc"}
        for start, size in read.spans:
            if pickled[start : start + size] in contents:
                filling = _digits(len(filled), size)
                if filling in filled:
                    return nothing
                filled[filling] = start, start + size
                probe[start : start + size] = filling
        try:
            changed = self._leaves_of(unpickle(bytes(probe), where="").value, "")
        except BadData:
            return nothing
        spans = [filled.get(leaf.tobytes()) for leaf in changed]
        known = all(span or mine.tobytes() == leaf.tobytes() for span, mine, leaf in zip(spans, found, changed, strict=True))
        return spans if known else nothing


@dataclass(frozen=True, slots=True)
class _Pair:
    first: NDArray[Any]  # of the first cell
    leaf: NDArray[Any]


def _digits(number: int, size: int) -> bytes:
    """`number` in `size` bytes, none of which is zero; the same for other numbers where there are not as many bytes."""
    text = str(number).zfill(size)[-size:]
    return bytes(PROBE[int(digit)] for digit in text)


def _in_words(leaf: NDArray[Any]) -> str:
    return f"{leaf.dtype}{leaf.shape}"
