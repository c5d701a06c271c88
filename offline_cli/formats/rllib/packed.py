"""Packed cells of RLlib (base64 of an lz4 frame of a pickle) and bare pickles of Ray as arrays; nothing in them is run.

RLlib packs a value as text by pickling it, compressing the pickle as one lz4 frame and writing that in base64. Recordings of
the old stack hold whole columns in this form, columns of the new stack one vector per cell. Ray pickles what Arrow has no type
for: states of a module with memory, actions of a Tuple space. We read all of these, and never write them.

The cells of a column mostly differ in the bytes of their numbers alone, as they are stored or at least when they are unpacked.
So one cell is read with all care (`pickles`), and of those that agree with it in every other byte only the numbers are taken,
for many cells at once: ten times as fast. What lies where is proved by trial, and a form that cannot be proved is not used.

Before memory is taken, the size that an lz4 frame states is checked against what lz4 can reach from its bytes. A frame that
states none is decompressed up to the same limit.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import lz4.frame
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.errors import BadData, BadEpisode, UnsafeData
from offline_cli.formats.rllib.pickles import is_pickle, numbers_of, unpickle
from offline_cli.trees import Tree, flatten, leaves, paths, unflatten_like

__all__ = ["looks_packed", "tree_of_value", "unfolded_size", "unpack", "unpack_cells"]

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
MAX_FORMS: Final = 16  # of the cells of one column; RLlib's need two or four
PROBE: Final = b"ACDEFGHJKL"
"""Bytes used as digits in a probe: of finite floats, and of no dtype or byte order."""


def looks_packed(value: Any) -> bool:
    """Whether `value` is a text that RLlib would unpack: base64 of an lz4 frame, or such a frame itself."""
    return isinstance(value, (str, bytes)) and value[:4] in ("BCJN", b"BCJN", FRAME_MAGIC)


def unpack(cell: str | bytes, *, where: str, object_lists: bool = False) -> Any:
    """The value in a packed cell or bare pickle: an array, a numpy scalar, or plain containers of these.

    `object_lists`: object arrays come back as lists of plain values (for infos) instead of being refused. Raises UnsafeData
    where the pickle names anything but numpy's arrays or would unfold beyond reason, BadEpisode for a cut or invalid cell.
    """
    return unpickle(_pickle_of(cell, where), where=where, object_lists=object_lists).value


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
    column = _Column(array, where)
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
    if array.null_count:
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise BadEpisode("a packed cell that is null", where=where(row), fix=FIX)
    return array


def _by_length(array: pa.LargeBinaryArray) -> Iterator[tuple[NDArray[np.intp], NDArray[np.uint8]]]:
    """The rows of each length, without those that are null or empty, and their bytes (m, length)."""
    _, offsets, buffer = array.buffers()
    starts = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    data, lengths = np.frombuffer(buffer or b"", np.uint8), np.diff(starts)
    for length in np.unique(lengths[lengths > 0]).tolist():
        rows = np.flatnonzero(lengths == length)
        if len(rows) == len(lengths):
            yield rows, data[starts[0] : starts[-1]].reshape(-1, length)
        else:
            at_each = np.ndarray((len(data) - length + 1,), f"V{length}", data, strides=(1,))
            yield rows, at_each[starts[rows]].view(np.uint8).reshape(len(rows), length)


@dataclass(frozen=True, slots=True)
class _Form:
    """Bytes in which it is known what their numbers are: others that agree with them everywhere else hold other numbers."""

    fixed: tuple[tuple[slice, NDArray[np.uint8]], ...]  # all bytes but the numbers
    leaves: list[NDArray[Any]]
    spans: list[slice | None]  # (leaves,) where the numbers of each are; None: they follow from the other bytes

    @classmethod
    def of(cls, data: bytes, places: Iterable[tuple[int, int]], found: list[NDArray[Any]]) -> _Form | None:
        """The form of `data`, a frame or a pickle that holds the arrays `found`; None where it cannot be proved.

        The proof: read again with other bytes in those of `places` (offset, size) that hold an array, `data` gives these as
        numbers, and is equal otherwise.
        """
        probe, filled = bytearray(data), dict[bytes, slice]()
        contents = {leaf.tobytes(): leaf.dtype for leaf in found if leaf.nbytes}
        for start, size in places:
            dtype = contents.get(data[start : start + size])
            if dtype is not None:
                filling = _filling(len(filled), size)
                expected = numbers_of(filling, dtype).tobytes()
                if expected in filled:
                    return None
                filled[expected] = slice(start, start + size)
                probe[start : start + size] = filling
        try:
            changed = leaves(tree_of_value(unpickle(_pickle_in(bytes(probe), ""), where="").value, where=""))
        except BadData:
            return None
        spans = [filled.get(leaf.tobytes()) for leaf in changed]
        if len(changed) != len(found) or not any(spans):
            return None
        if not all(span or _same(*pair) for span, *pair in zip(spans, found, changed, strict=True)):
            return None
        return cls.at(data, found, spans)

    @classmethod
    def at(cls, data: bytes, found: list[NDArray[Any]], spans: list[slice | None]) -> _Form:
        """The form of `data` whose numbers are known to lie at `spans`."""
        whole = np.frombuffer(data, np.uint8)
        fixed = tuple((part, whole[part].copy()) for part in _around(filter(None, spans), len(data)))
        return cls(fixed, [np.zeros_like(leaf) if span else leaf for leaf, span in zip(found, spans, strict=True)], spans)

    def read(self, rows: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], list[NDArray[Any]]]:
        """(m,) which of the rows (m, length) have this form, and of these each leaf (k, *shape)."""
        same = np.ones(len(rows), np.bool_)
        for part, data in self.fixed:
            same &= (rows[:, part] == data).all(axis=1)
        chosen = rows if same.all() else rows[same]
        return same, [
            np.broadcast_to(leaf, (len(chosen), *leaf.shape))
            if span is None
            else numbers_of(chosen[:, span].tobytes(), leaf.dtype).reshape(len(chosen), *leaf.shape)
            for leaf, span in zip(self.leaves, self.spans, strict=True)
        ]


def _around(spans: Iterable[slice], size: int) -> list[slice]:
    """What `spans` leave of `size` places."""
    ordered = sorted(spans, key=lambda span: int(span.start))
    return [
        slice(*edge) for edge in zip([0, *(one.stop for one in ordered)], [*(one.start for one in ordered), size], strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _TextForm:
    """The same of base64, of which only the characters are decoded that stand for numbers: four for each three bytes."""

    start: int  # of these characters
    stop: int
    before: NDArray[np.uint8]  # what all cells have in common
    after: NDArray[np.uint8]
    inner: _Form  # of the bytes that these characters stand for

    def read(self, rows: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], list[NDArray[Any]]]:
        """As `_Form.read`; no row has this form where one is not base64."""
        same = (rows[:, : self.start] == self.before).all(axis=1) & (rows[:, self.stop :] == self.after).all(axis=1)
        try:
            raw = binascii.a2b_base64(rows[same, self.start : self.stop].tobytes(), strict_mode=True)
        except ValueError:
            same[:], raw = False, b""
        alike, found = self.inner.read(np.frombuffer(raw, np.uint8).reshape(-1, (self.stop - self.start) // 4 * 3))
        same[same] = alike
        return same, found


def _same(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())


def _filling(number: int, size: int) -> bytes:
    """`size` bytes, none of which is zero; others for another number, where there are as many."""
    digits = bytes(PROBE[int(digit)] for digit in str(number))
    return (digits + PROBE * (size // len(PROBE) + 1))[:size]


class _Column:
    """The arrays being filled, and the structure of the first cell, which all must share."""

    def __init__(self, cells: pa.LargeBinaryArray, where: Callable[[int], str]) -> None:
        self.cells, self.where = cells, where
        self.forms: dict[tuple[str, int], list[_Form | _TextForm]] = {}  # by what their bytes are, and how many
        self.tree = tree_of_value(unpack(cells[0].as_py(), where=where(0)), where=where(0))
        self.paths, firsts = paths(self.tree), leaves(self.tree)
        if sum(leaf.nbytes for leaf in firsts) * len(cells) > MAX_RATIO * cells.nbytes + SMALL_BYTES:
            raise BadEpisode(f"{len(cells)} cells that cannot all be as large as the first", where=where(0), fix=OTHER_FIX)
        try:
            self.values = [np.empty((len(cells), *leaf.shape), leaf.dtype) for leaf in firsts]
        except ValueError as error:  # of dimensions beside one of no size: numpy has limits of its own there
            raise BadEpisode(f"a packed cell of absurd shape: {error}", where=where(0), fix=FIX) from error
        self.fill(0, 1)

    def fill(self, first: int, count: int) -> None:
        """Read so many cells, many at once where they have a known form: as they are stored, or else unpacked."""
        unread = np.ones(count, np.bool_)
        for rows, data in _by_length(self.cells.slice(first, count)):
            unread[rows] = False
            unread[self._fill_alike(("stored", data.shape[1]), first, rows, data)[0]] = True
        left = np.flatnonzero(unread)
        pickles = pa.array([self._pickle(first + row) for row in left.tolist()], pa.large_binary())
        for numbers, data in _by_length(pickles):
            kind = ("pickle", data.shape[1])
            rows, data = self._fill_alike(kind, first, left[numbers], data)
            while len(rows):
                self._fill_one(first + int(rows[0]), data[0].tobytes())
                rows, data = self._fill_alike(kind, first, rows[1:], data[1:])

    def _pickle(self, row: int) -> bytes:
        cell = self.cells[row].as_py()
        try:
            return _pickle_of(cell, "")
        except BadData:  # a place costs more to say than a cell to unpack
            return _pickle_of(cell, self.where(row))

    def _fill_alike(
        self, kind: tuple[str, int], first: int, rows: NDArray[np.intp], data: NDArray[np.uint8]
    ) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
        """The rows that have no known form, and their bytes; the others are read."""
        for form in self.forms.get(kind, ()):
            alike, found = form.read(data)
            if alike.any():
                for values, numbers in zip(self.values, found, strict=True):
                    values[first + rows[alike]] = numbers
                rows, data = rows[~alike], data[~alike]
        return rows, data

    def _fill_one(self, row: int, pickled: bytes) -> None:
        """Read a cell with all care, and keep its form."""
        place = self.where(row)
        read = unpickle(pickled, where=place)
        tree = tree_of_value(read.value, where=place)
        if paths(tree) != self.paths:
            raise BadEpisode("a packed cell of another kind than the first one", where=place, fix=OTHER_FIX)
        found = leaves(tree)
        for values, (path, leaf) in zip(self.values, flatten(tree), strict=True):
            if (leaf.dtype, leaf.shape) != (values.dtype, values.shape[1:]):
                what = f"{leaf.dtype}{leaf.shape} in a column of {values.dtype}{values.shape[1:]}"
                raise BadEpisode(f"a packed cell of {what}{path and f', part {path}'}", where=place, fix=OTHER_FIX)
            values[row] = leaf
        if sum(map(len, self.forms.values())) < MAX_FORMS:
            self._learn("pickle", len(pickled), _Form.of(pickled, read.spans, found))
            cell = self.cells[row].as_py()
            if len(cell) <= SMALL_CELL:
                self._learn("stored", len(cell), _stored_form(cell, _raw_of(cell, place), found))

    def _learn(self, kind: str, length: int, form: _Form | _TextForm | None) -> None:
        if form is not None:
            self.forms.setdefault((kind, length), []).append(form)


def _stored_form(cell: bytes, raw: bytes, found: list[NDArray[Any]]) -> _Form | _TextForm | None:
    """The form of a cell; `raw`: its frame or pickle. None where numbers lie at the very end, where base64 may be padded."""
    places = [(raw.find(content), len(content)) for content in {leaf.tobytes() for leaf in found} if content in raw]
    form = _Form.of(raw, places, found)
    if form is None or raw is cell:
        return form
    spans = [span for span in form.spans if span is not None]
    first, last = min(span.start for span in spans) // 3, -(-max(span.stop for span in spans) // 3)  # groups
    if 4 * last > len(cell) - 4:
        return None
    moved = [span and slice(span.start - 3 * first, span.stop - 3 * first) for span in form.spans]
    whole = np.frombuffer(cell, np.uint8)
    inner = _Form.at(raw[3 * first : 3 * last], found, moved)
    return _TextForm(4 * first, 4 * last, whole[: 4 * first], whole[4 * last :], inner)


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
