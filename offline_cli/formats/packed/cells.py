"""Cells as arrays, one or a column of them: a few serve as patterns of many, the others are read one by one.

Every pickle goes through `pickles`, which builds numbers and plain containers only. Cells of one column mostly differ in the
bytes of their numbers alone. So one is read with all care, and from those that agree with it in every other byte only these
are taken, for all of them at once. Any other cell is read on its own, by the same rules as the first.

* `unpack`, `unpack_cells`: one packed text, or a column of them of one shape and dtype; `template` finds those that are alike.
* `unpickle_cells`: a column of pickled values (arrays, numbers, dicts and tuples of these), as Ray writes cells that Arrow has
  no type for: the states of a module with memory, actions of a Tuple space. They are raw pickles, neither packed nor base64.
* `KnownPatterns`: pickles that differ from a known one in nothing but the bytes of an array. A pickle states the length of its
  raw bytes before them. So two pickles of one length that agree in every other byte hold arrays of the same shape and dtype,
  and only the first has to be read instruction by instruction. A pattern that cannot be proved is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.packed.pickles import Unpickled, unpickle
from offline_cli.formats.packed.template import FIX, MAX_RATIO, PICKLE_MAGIC, SMALL_BYTES, CellTemplate, Texts, decompress
from offline_cli.formats.packed.values import numbers_of
from offline_cli.trees import Tree, leaves, map_leaves, unflatten_like

__all__ = ["KnownPatterns", "is_pickle", "tree_of_value", "unpack", "unpack_cells", "unpickle_cells"]

MAX_PATTERNS: Final = 8  # cells that are tried as the pattern of many; RLlib's columns need one or two
FEW: Final = 32  # so few cells are read one by one

MAX_KNOWN: Final = 64  # a recording has one for each column, and one more for each number of steps that a line can have
MAX_AROUND: Final = 4096  # bytes beside the array: numpy writes about 150

CHUNK_BYTES: Final = 8 << 20  # of the pickles that are compared at once
NUMERIC: Final = "biufc"
PROBE: Final = b"ACDEFGHJKL"
"""Bytes used as digits in a probe: of finite floats, and of no dtype or byte order."""


def _fill(column: _PackedColumn | _PickledColumn) -> None:
    """Read all cells of a column."""
    rows = np.arange(len(column.texts))
    for _ in range(MAX_PATTERNS):
        if len(rows) <= FEW:
            break
        rows = column.fill_alike(rows)
    for row in rows.tolist():
        column.fill_one(row)


def _check_size(texts: Texts, first_bytes: int, *, kind: str, where: str) -> None:
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
    column = _PackedColumn(texts, where)
    _fill(column)
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


class _PackedColumn:
    """The array being filled, and the form of the first cell, which all must share."""

    def __init__(self, texts: Texts, where: Callable[[int], str]) -> None:
        self.texts, self.where = texts, where
        pickled = decompress(texts[0], where=where(0))
        read = unpickle(pickled, where=where(0))
        if not isinstance(read.value, (np.ndarray, np.generic, bool, int, float)):
            kind = type(read.value).__name__
            raise BadEpisode(f"a packed cell of type {kind} in a column of arrays", where=where(0), fix=FIX)
        first = np.asarray(read.value)
        _check_size(texts, first.nbytes, kind="packed", where=where(0))
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


# ---- pickled values ----


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
    column = _PickledColumn(texts, where)
    _fill(column)
    return unflatten_like(column.tree, column.values)


class _PickledColumn:
    """The arrays being filled, and the form of the first cell, which all must share."""

    def __init__(self, texts: Texts, where: Callable[[int], str]) -> None:
        self.texts, self.where = texts, where
        self.tree: Tree = tree_of_value(unpickle(texts[0], where=where(0)).value, where=where(0))
        firsts = leaves(self.tree)
        _check_size(texts, sum(leaf.nbytes for leaf in firsts), kind="pickled", where=where(0))
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
