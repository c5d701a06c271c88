"""Packed cells of RLlib (base64 of an lz4 frame of a pickle) and bare pickles of Ray as arrays; nothing in them is run.

RLlib packs a value as text by pickling it, compressing the pickle as one lz4 frame and writing that in base64. Recordings of
the old stack hold whole columns in this form, columns of the new stack one vector per cell. Ray pickles what Arrow has no type
for: states of a module with memory, actions of a Tuple space. We read all of these, and never write them.

Small cells of a column mostly differ in the bytes of their numbers alone, as they are stored. So one cell is read with all care
(`pickles`), and of those that agree with it in every other byte only the numbers are taken, for many cells at once: ten times
as fast. What lies where is proved by trial, and a form that cannot be proved is not used; other cells are read one by one.

Before memory is taken, the size that an lz4 frame states is checked against what lz4 can reach from its bytes. A frame that
states none is decompressed up to the same limit.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import lz4.frame
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.errors import BadData, BadEpisode, UnsafeData
from offline_cli.formats.rllib.pickles import is_pickle, numbers_of, unpickle
from offline_cli.trees import Tree, leaves, paths, unflatten_like

MAX_BYTES: Final = 1 << 30  # of one unpacked value; RLlib's largest are columns of images of a few hundred steps
MAX_RATIO: Final = 256  # lz4 reaches at most 255 bytes from one
SMALL_BYTES: Final = 24 << 20  # what a frame may unfold to however small it is
USUAL_RATIO: Final = 24  # of larger ones: that of images that hardly change
FRAME_MAGIC: Final = b"\x04\x22\x4d\x18"
CONTENT_SIZE_BIT: Final = 0b0000_1000  # of a frame's fifth byte
HEAD: Final = 64  # characters of a text that hold the whole header of a frame: at most 19 bytes
FIX: Final = "write the file again from its source, or set the row aside with --on-error"
OTHER_FIX: Final = "convert the files of each kind into a dataset of its own, or --on-error skip"
NUMERIC: Final = "biufc"

CHUNK_BYTES: Final = 1 << 20  # of the cells that are read at once
SMALL_CELL: Final = 4 << 10  # bytes of a cell that lz4 takes longer to unpack than numpy to compare
MAX_TRIALS: Final = 64  # cells of a column whose form is looked for; RLlib's have two or four forms
TRIALS: Final = 4  # places of an array's bytes that are tried: a small one may have its bytes elsewhere, too


def looks_packed(value: Any) -> bool:
    """Whether `value` is a text that RLlib would unpack: base64 of an lz4 frame, or such a frame itself."""
    return isinstance(value, (str, bytes)) and value[:4] in ("BCJN", b"BCJN", FRAME_MAGIC)


def unpack(cell: str | bytes, *, where: str, object_lists: bool = False) -> Any:
    """The value in a packed cell or bare pickle: an array, a numpy scalar, or plain containers of these.

    `object_lists`: object arrays come back as lists of plain values (for infos) instead of being refused. Raises UnsafeData
    where the pickle names anything but numpy's arrays or would unfold beyond reason, BadEpisode for a cut or invalid cell.
    """
    return unpickle(_pickle_of(cell, where), where=where, object_lists=object_lists)


def tree_of_value(value: Any, *, where: str) -> Tree:
    """An unpickled value as a tree of arrays. Raises BadEpisode where a part of it is not numbers."""
    if isinstance(value, dict):
        parts = {str(key): tree_of_value(part, where=where) for key, part in value.items()}
        if len(parts) < len(value) or not parts:
            raise BadEpisode("a pickled dict without keys, or with keys that are one as text", where=where, fix=FIX)
        return parts
    if isinstance(value, (tuple, list)) and value:
        if isinstance(value, list) and all(type(item) in (bool, int, float) for item in value):
            return tree_of_value(np.asarray(value), where=where)
        return tuple(tree_of_value(part, where=where) for part in value)
    if isinstance(value, (np.ndarray, np.generic, bool, int, float, complex)):
        leaf = np.asarray(value)
        if leaf.dtype.kind in NUMERIC:
            return leaf
    raise BadEpisode(f"a pickled {type(value).__name__} where numbers are wanted", where=where, fix=FIX)


def unpack_cells(cells: Sequence[str | bytes] | pa.Array | pa.ChunkedArray, *, where: Callable[[int], str]) -> Tree:
    """A tree of arrays (n, *shape) of n packed cells or bare pickles; `where` names the place of row i.

    Raises BadEpisode, naming the row, where a cell is null, cut, not numbers, or differs in structure, shape or dtype from the
    first; UnsafeData as `unpack` does.
    """
    array = _binary(cells, where)
    if not len(array):
        return np.zeros(0, np.float32)
    column = _Cells(array, where)
    step = max(1, CHUNK_BYTES // max(1, len(array[0].as_py())))
    for start in range(0, len(array), step):
        column.fill(start, min(step, len(array) - start))
    return unflatten_like(column.tree, column.values)


def _binary(cells: Any, where: Callable[[int], str]) -> pa.LargeBinaryArray:
    """The cells in one piece of memory. Raises BadEpisode where one is null."""
    try:
        array = cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells
        array = (array if isinstance(array, pa.Array) else pa.array(list(array), pa.large_binary())).cast(pa.large_binary())
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise BadEpisode(f"cells that are not text: {error}", where=where(0), fix=FIX) from error
    empty = np.flatnonzero(pc.fill_null(pc.binary_length(array), 0).to_numpy() == 0)
    if len(empty):
        raise BadEpisode("a packed cell that is null or empty", where=where(int(empty[0])), fix=FIX)
    return array


def _by_length(array: pa.LargeBinaryArray) -> Iterator[tuple[NDArray[np.intp], NDArray[np.uint8]]]:
    """The rows of each length, and their bytes (m, length); no cell is null or empty."""
    _, offsets, buffer = array.buffers()
    starts = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    data, lengths = np.frombuffer(buffer or b"", np.uint8), np.diff(starts)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        if len(rows) == len(lengths):
            yield rows, data[starts[0] : starts[-1]].reshape(-1, length)
        else:
            at_each = np.ndarray((len(data) - length + 1,), f"V{length}", data, strides=(1,))
            yield rows, at_each[starts[rows]].view(np.uint8).reshape(len(rows), length)


@dataclass(frozen=True, slots=True)
class _CellForm:
    """Cells of one array in which it is known where its numbers are: others that agree everywhere else hold other numbers.

    Of base64 only the characters are decoded that stand for numbers, four for each three bytes, with the bytes that share a
    group with them.
    """

    start: int  # of the bytes, or characters, that are read
    stop: int
    before: NDArray[np.uint8]  # what all have in common
    after: NDArray[np.uint8]
    lead: NDArray[np.uint8]  # bytes that all have in common around the numbers, among those that are read
    trail: NDArray[np.uint8]
    is_text: bool
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, cell: bytes, data: bytes, leaf: NDArray[Any]) -> _CellForm | None:
        """The form of `cell`: `data`, a frame or a pickle that holds `leaf` alone, or base64 of that. None where it cannot be
        proved, or numbers lie at the very end of a text, where base64 may be padded.

        The proof: read again with other bytes in the place of the numbers, `data` gives these as numbers.
        """
        numbers, start = leaf.tobytes(), -1
        filling = np.random.default_rng(0).integers(0, 2 if leaf.dtype.kind == "b" else 256, leaf.nbytes, np.uint8).tobytes()
        for _ in range(TRIALS if numbers else 0):
            start = data.find(numbers, start + 1)
            if start < 0:
                return None
            stop = start + len(numbers)
            try:
                changed = np.asarray(unpickle(_pickle_in(data[:start] + filling + data[stop:], ""), where=""))
            except BadData:
                continue
            if (changed.dtype, changed.shape, changed.tobytes()) == (leaf.dtype, leaf.shape, filling):
                return cls._at(start, stop, cell, data, leaf)
        return None

    @classmethod
    def _at(cls, start: int, stop: int, cell: bytes, data: bytes, leaf: NDArray[Any]) -> _CellForm | None:
        is_text, stored, known = cell is not data, np.frombuffer(cell, np.uint8), np.frombuffer(data, np.uint8)
        if not is_text:
            none = known[:0]
            return cls(start, stop, known[:start].copy(), known[stop:].copy(), none, none, False, leaf.dtype, leaf.shape)
        first, last = start // 3, -(-stop // 3)  # groups
        if 4 * last > len(cell) - 4:
            return None
        lead, trail = known[3 * first : start], known[stop : 3 * last]
        return cls(4 * first, 4 * last, stored[: 4 * first], stored[4 * last :], lead, trail, True, leaf.dtype, leaf.shape)

    def read(self, rows: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        """(m,) which of the rows (m, length) have this form, and the arrays of these (k, *shape)."""
        same = (rows[:, : self.start] == self.before).all(axis=1) & (rows[:, self.stop :] == self.after).all(axis=1)
        found = rows[same, self.start : self.stop]
        if self.is_text:
            try:
                raw = binascii.a2b_base64(found.tobytes(), strict_mode=True)
            except ValueError:
                return np.zeros(len(rows), np.bool_), np.zeros((0, *self.shape), self.dtype)
            found = np.frombuffer(raw, np.uint8).reshape(len(found), -1) if len(found) else found[:, :0]
        if len(found) and (len(self.lead) or len(self.trail)):
            stop = found.shape[1] - len(self.trail)
            alike = (found[:, : len(self.lead)] == self.lead).all(axis=1) & (found[:, stop:] == self.trail).all(axis=1)
            found = found[alike, len(self.lead) : stop]
            same[same] = alike
        return same, numbers_of(found.tobytes(), self.dtype).reshape(len(found), *self.shape)


class _Cells:
    """The arrays being filled, and the structure of the first cell, which all must share."""

    def __init__(self, cells: pa.LargeBinaryArray, where: Callable[[int], str]) -> None:
        self.cells, self.where = cells, where
        self.forms: dict[int, list[_CellForm]] = {}  # by the length of their cells
        self.trials = MAX_TRIALS
        self.tree = tree_of_value(unpack(cells[0].as_py(), where=where(0)), where=where(0))
        self.paths, firsts = paths(self.tree), leaves(self.tree)
        if sum(leaf.nbytes for leaf in firsts) * len(cells) > MAX_RATIO * cells.nbytes + SMALL_BYTES:
            raise BadEpisode(f"{len(cells)} cells that cannot all be as large as the first", where=where(0), fix=OTHER_FIX)
        try:
            self.values = [np.empty((len(cells), *leaf.shape), leaf.dtype) for leaf in firsts]
        except ValueError as error:  # of dimensions beside one of no size: numpy has limits of its own there
            raise BadEpisode(f"a packed cell of absurd shape: {error}", where=where(0), fix=FIX) from error

    def fill(self, first: int, count: int) -> None:
        """Read so many cells, many at once where they have a known form."""
        for numbers, data in _by_length(self.cells.slice(first, count)):
            rows = first + numbers
            for form in self.forms.get(data.shape[1], ()):
                rows, data = self._without_alike(form, rows, data)
            while len(rows):
                new = self._fill_one(int(rows[0]))
                rows, data = rows[1:], data[1:]
                if new is not None:
                    rows, data = self._without_alike(new, rows, data)

    def _without_alike(
        self, form: _CellForm, rows: NDArray[np.intp], data: NDArray[np.uint8]
    ) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
        """The rows that have another form, and their bytes; the others are read."""
        alike, found = form.read(data)
        if not alike.any():
            return rows, data
        self.values[0][rows[alike]] = found
        return rows[~alike], data[~alike]

    def _fill_one(self, row: int) -> _CellForm | None:
        """Read a cell with all care; its form, where that is a new one."""
        cell = self.cells[row].as_py()
        try:
            raw = _raw_of(cell, "")
            value = unpickle(_pickle_in(raw, ""), where="")
        except BadData:  # a place costs more to say than a cell to unpack
            value = unpack(cell, where=self.where(row))
        tree = tree_of_value(value, where=self.where(row)) if not isinstance(value, np.ndarray) else value
        found = leaves(tree)
        if len(found) != len(self.paths) or paths(tree) != self.paths:
            raise BadEpisode("a packed cell of another kind than the first one", where=self.where(row), fix=OTHER_FIX)
        for values, path, leaf in zip(self.values, self.paths, found, strict=True):
            if (leaf.dtype, leaf.shape) != (values.dtype, values.shape[1:]):
                what = f"{leaf.dtype}{leaf.shape} in a column of {values.dtype}{values.shape[1:]}"
                raise BadEpisode(f"a packed cell of {what}{path and f', part {path}'}", where=self.where(row), fix=OTHER_FIX)
            values[row] = leaf
        if len(cell) > SMALL_CELL or not self.trials or not isinstance(value, (np.ndarray, np.generic)):
            return None
        self.trials -= 1
        form = _CellForm.of(cell, raw, tree)
        if form is not None:
            self.forms.setdefault(len(cell), []).append(form)
        return form


# ---- texts to pickles ----


def _is_text(head: bytes) -> bool:
    return head != FRAME_MAGIC and not is_pickle(head)


def _pickle_of(cell: Any, where: str) -> bytes:
    """The pickle in base64 of an lz4 frame, a bare frame, base64 of a bare pickle, or a bare pickle."""
    return _pickle_in(_raw_of(cell, where), where)


def _raw_of(cell: Any, where: str) -> bytes:
    """The lz4 frame or pickle in a cell."""
    if isinstance(cell, bytes) and not _is_text(cell[:4]):
        return cell
    try:
        return binascii.a2b_base64(cell, strict_mode=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise BadEpisode(f"a packed cell that is not base64: {error}", where=where, fix=FIX) from error


def _pickle_in(raw: bytes, where: str) -> bytes:
    if raw[:4] == FRAME_MAGIC:
        return _from_frame(raw, where)
    if is_pickle(raw):
        return raw
    raise BadEpisode("a packed cell that holds no lz4 frame", where=where, fix=FIX)


def _from_frame(raw: bytes, where: str) -> bytes:
    declared, limit = _declared_size(raw), _largest(len(raw))
    if declared > limit:
        raise _bomb(f"declares {declared} bytes in a frame of {len(raw)}", where)
    try:
        context = lz4.frame.create_decompression_context()
        data, used, is_whole = lz4.frame.decompress_chunk(context, raw, max_length=declared + 1 if declared else limit)
    except (RuntimeError, ValueError, MemoryError) as error:
        raise BadEpisode(f"a packed cell with a broken lz4 frame: {error}", where=where, fix=FIX) from error
    if not is_whole and len(data) >= limit:
        raise _bomb(f"unfolds to more than {limit} bytes", where)
    if not is_whole or used != len(raw):
        raise BadEpisode("a packed cell whose lz4 frame is cut, or has bytes after it", where=where, fix=FIX)
    return data  # type: ignore[no-any-return]  # lz4 has no types


def _declared_size(frame: bytes) -> int:
    """Bytes that the header of a frame says that it unfolds to; 0: it does not say."""
    return int.from_bytes(frame[6:14], "little") if len(frame) > 14 and frame[4] & CONTENT_SIZE_BIT else 0


def _largest(stored: int) -> int:
    """Bytes that a frame of `stored` bytes may unfold to."""
    small = MAX_RATIO * stored
    return min(small, MAX_BYTES) if small <= SMALL_BYTES else min(MAX_BYTES, small, max(SMALL_BYTES, USUAL_RATIO * stored))


def _bomb(what: str, where: str) -> UnsafeData:
    return UnsafeData(f"a packed cell that {what}", where=where, fix=FIX)


def unfolded_size(text: str | bytes) -> int:
    """Bytes in a packed cell, by what its frame declares if it does; those of `text` where it cannot be unpacked."""
    head = text[:HEAD]
    try:
        frame = head if isinstance(head, bytes) and head[:4] == FRAME_MAGIC else binascii.a2b_base64(head)
        declared = _declared_size(frame)
        if declared:
            return declared if declared <= _largest(len(text)) else len(text)
        return len(_pickle_of(text, ""))
    except (ValueError, BadData):
        return len(text)
