"""Packed cells of RLlib (base64 of an lz4 frame of a pickle) and bare pickles of Ray as arrays; nothing in them is run.

RLlib packs a value as text by pickling it, compressing the pickle as one lz4 frame and writing that in base64. Recordings of
the old stack hold whole columns in this form, columns of the new stack one vector per cell. Ray pickles what Arrow has no type
for: states of a module with memory, actions of a Tuple space. We read all of these, and never write them.

The cells of a column mostly differ in the bytes of their numbers alone. A pickle states the length of its raw bytes before
them. So one cell is read with all care (`pickles`), and of those whose pickles agree with it in every other byte only the
numbers are taken, for many cells at once: five times as fast. What lies where is proved by trial, and a form that cannot be
proved is not used.

Before memory is taken, the size that an lz4 frame states is checked against what lz4 can reach from its bytes. A frame that
states none is decompressed up to the same limit.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import lz4.frame
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.errors import BadData, BadEpisode, UnsafeData
from offline_cli.formats.rllib.pickles import Unpickled, is_pickle, numbers_of, unpickle
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

CHUNK_BYTES: Final = 256 << 10  # of the pickles that are compared at once: what a cache holds
MAX_FORMS: Final = 8  # of one column; RLlib's need one or two
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
    texts = cells.to_pylist() if isinstance(cells, (pa.Array, pa.ChunkedArray)) else cells
    if not len(texts):
        return np.zeros(0, np.float32)
    first = _pickle_of(texts[0], where(0))
    tree = tree_of_value(unpickle(first, where=where(0)).value, where=where(0))
    column = _Column(texts, tree, len(first) + 1, where)
    step = max(1, CHUNK_BYTES // len(first))
    for start in range(0, len(texts), step):
        column.fill(start, min(start + step, len(texts)))
    return unflatten_like(column.tree, column.values)


@dataclass(frozen=True, slots=True)
class _Form:
    """A pickle in which it is known what its numbers are; others that agree with it in all other bytes have others."""

    pickled: NDArray[np.uint8]
    fixed: tuple[slice, ...]  # its bytes that are no numbers
    leaves: list[NDArray[Any]]
    spans: list[slice | None]  # (leaves,) where the numbers of each are; None: they follow from the other bytes

    @classmethod
    def of(cls, pickled: bytes, read: Unpickled, found: list[NDArray[Any]]) -> _Form | None:
        """The same pickle with other bytes in the places of numbers must have these as its numbers, and be equal otherwise."""
        probe, filled = bytearray(pickled), dict[bytes, slice]()
        contents = {leaf.tobytes(): leaf.dtype for leaf in found if leaf.nbytes}
        for start, size in read.spans:
            dtype = contents.get(pickled[start : start + size])
            if dtype is not None:
                filling = _digits(len(filled), size)
                expected = numbers_of(filling, dtype).tobytes()
                if expected in filled:
                    return None
                filled[expected] = slice(start, start + size)
                probe[start : start + size] = filling
        try:
            changed = leaves(tree_of_value(unpickle(bytes(probe), where="").value, where=""))
        except BadData:
            return None
        spans = [filled.get(leaf.tobytes()) for leaf in changed]
        if not any(spans) or not all(span or _same(*pair) for span, *pair in zip(spans, found, changed, strict=True)):
            return None
        numbers = sorted((span for span in spans if span is not None), key=lambda span: int(span.start))
        edges = zip([0, *(span.stop for span in numbers)], [*(span.start for span in numbers), len(pickled)], strict=True)
        return cls(np.frombuffer(pickled, np.uint8), tuple(slice(*edge) for edge in edges), found, spans)

    def alike(self, pickles: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """(m,) which of the pickles (m, L) have this form."""
        return np.asarray(np.logical_and.reduce([(pickles[:, part] == self.pickled[part]).all(axis=1) for part in self.fixed]))

    def numbers(self, pickles: NDArray[np.uint8]) -> list[NDArray[Any]]:
        """(m, *shape) of each leaf, of pickles of this form."""
        return [
            np.broadcast_to(leaf, (len(pickles), *leaf.shape))
            if span is None
            else numbers_of(pickles[:, span].tobytes(), leaf.dtype).reshape(len(pickles), *leaf.shape)
            for leaf, span in zip(self.leaves, self.spans, strict=True)
        ]


def _same(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())


def _digits(number: int, size: int) -> bytes:
    """`number` in `size` bytes, none of which is zero; the same for other numbers where there are not as many bytes."""
    text = str(number).zfill(size)[-size:]
    return bytes(PROBE[int(digit)] for digit in text)


class _Column:
    """The arrays being filled, and the structure of the first cell, which all must share."""

    def __init__(self, texts: Sequence[str | bytes], tree: Tree, room: int, where: Callable[[int], str]) -> None:
        """`room`: bytes that the pickle of a cell like the first one takes at most."""
        self.texts, self.tree, self.room, self.where = texts, tree, room, where
        self.paths, firsts = paths(tree), leaves(tree)
        self.forms: dict[int, list[_Form]] = {}  # by the length of their pickles
        stored = sum(len(text or b"") for text in texts)
        if sum(leaf.nbytes for leaf in firsts) * len(texts) > MAX_RATIO * stored + SMALL_BYTES:
            raise BadEpisode(f"{len(texts)} cells that cannot all be as large as the first", where=where(0), fix=OTHER_FIX)
        try:
            self.values = [np.empty((len(texts), *leaf.shape), leaf.dtype) for leaf in firsts]
        except ValueError as error:  # of dimensions beside one of no size: numpy has limits of its own there
            raise BadEpisode(f"a packed cell of absurd shape: {error}", where=where(0), fix=FIX) from error

    def fill(self, start: int, stop: int) -> None:
        """Read the cells start:stop, many at once where they have a known form."""
        pickles = self._pickles(start, stop)
        lengths = np.fromiter(map(len, pickles), np.int64, len(pickles))
        for length in dict.fromkeys(lengths.tolist()):
            rows = np.flatnonzero(lengths == length)
            data = np.frombuffer(b"".join([pickles[row] for row in rows.tolist()]), np.uint8).reshape(len(rows), length)
            forms = self.forms.setdefault(length, [])
            for form in forms:
                rows, data = self._fill_alike(form, rows, data, start)
            while len(rows):
                row = int(rows[0])
                found = self._fill_one(pickles[row], start + row, is_known=sum(map(len, self.forms.values())) >= MAX_FORMS)
                rows, data = rows[1:], data[1:]
                if found is not None:
                    forms.append(found)
                    rows, data = self._fill_alike(found, rows, data, start)

    def _pickles(self, start: int, stop: int) -> list[bytes]:
        """The pickles of the cells; mostly they are frames that unfold to no more than the first."""
        texts = self.texts[start:stop]
        if not is_pickle(texts[0]):
            with suppress(ValueError, TypeError, RuntimeError, MemoryError):  # of a cell that is another one
                context = lz4.frame.create_decompression_context()
                frames = [binascii.a2b_base64(text, strict_mode=True) for text in texts]
                read = [lz4.frame.decompress_chunk(context, frame, max_length=self.room) for frame in frames]
                if all(whole and used == len(frame) for frame, (_, used, whole) in zip(frames, read, strict=True)):
                    return [data for data, _, _ in read]
        try:
            return [_pickle_of(text, "") for text in texts]
        except BadData:  # a place costs more to say than a cell to unpack
            return [_pickle_of(self.texts[row], self.where(row)) for row in range(start, stop)]

    def _fill_alike(
        self, form: _Form, rows: NDArray[np.intp], data: NDArray[np.uint8], start: int
    ) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
        """The rows that are left, and their pickles."""
        alike = form.alike(data)
        if not alike.any():
            return rows, data
        for values, numbers in zip(self.values, form.numbers(data[alike]), strict=True):
            values[start + rows[alike]] = numbers
        return rows[~alike], data[~alike]

    def _fill_one(self, pickled: bytes, row: int, *, is_known: bool) -> _Form | None:
        """Read a cell with all care; its form, unless enough are known."""
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
        return None if is_known else _Form.of(pickled, read, found)


# ---- texts to pickles ----


def _pickle_of(cell: Any, where: str) -> bytes:
    """The pickle in base64 of an lz4 frame, a bare frame, base64 of a bare pickle, or a bare pickle."""
    raw: bytes = cell
    if type(cell) is not bytes or (cell[:4] != FRAME_MAGIC and not is_pickle(cell)):
        try:
            raw = binascii.a2b_base64(cell, strict_mode=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise BadEpisode(f"a packed cell that is not base64: {error}", where=where, fix=FIX) from error
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
