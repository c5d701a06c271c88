"""The text of a packed cell to the pickle in it (base64, then one lz4 frame), and cells that share a known cell's form.

* `decompress`: what a frame states of its size is checked against what lz4 can reach from its bytes before any memory is taken,
  and a frame that states nothing is decompressed up to the same limit. A frame beyond it raises.
* `CellTemplate`: finds the cells that differ from a known one in nothing but their numbers' bytes; a template that cannot be
  proved is not used.

A pickle states the length of its raw bytes before them, so that two pickles that agree in every other byte stand for arrays of
the same shape and dtype. An lz4 block copies literals as they stand, so that two blocks that agree outside one run of literals
unfold to the same bytes outside it, provided that no later match copies from the run. And base64 puts each three bytes into
four characters of their own. So where the numbers of a cell lie in one run of literals from which nothing is copied, every text
that agrees with the cell's outside the characters of that run needs only those decoded.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import lz4.frame
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.errors import BadData, BadEpisode, UnsafeData

__all__ = [
    "FIX",
    "FRAME_MAGIC",
    "MAX_RATIO",
    "SMALL_BYTES",
    "CellTemplate",
    "Texts",
    "decompress",
    "looks_packed",
    "unfolded_size",
]

MAX_BYTES: Final = 1 << 30  # of one unpacked value; RLlib's largest are columns of images of a few hundred steps
MAX_RATIO: Final = 256  # lz4 reaches at most 255 bytes from one
SMALL_BYTES: Final = 24 << 20  # what a frame may unfold to however small it is
USUAL_RATIO: Final = 24  # of larger ones: that of images that hardly change
FRAME_MAGIC: Final = b"\x04\x22\x4d\x18"
HEAD: Final = 64  # characters of a text that hold the whole header of a frame: at most 19 bytes
PICKLE_MAGIC: Final = b"\x80"  # of protocol 2 and later
FIX: Final = "write the file again from its source, or set the row aside with --on-error"

CHUNK_BYTES: Final = 8 << 20  # of the texts whose numbers are decoded at once
ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
INVALID: Final = 255
DECODED: Final = np.full(256, INVALID, np.uint8)
DECODED[np.frombuffer(ALPHABET, np.uint8)] = np.arange(64, dtype=np.uint8)

PLAIN_FRAME: Final = 0b0110_0000  # version 1, independent blocks, no checksums, no dictionary; bit 3: content size is given
CONTENT_SIZE_BIT: Final = 0b0000_1000


def looks_packed(value: Any) -> bool:
    """Whether `value` is a text that RLlib would unpack: base64 of an lz4 frame, or such a frame itself."""
    return isinstance(value, (str, bytes)) and value[:4] in ("BCJN", b"BCJN", FRAME_MAGIC)


def decompress(text: str | bytes, *, where: str) -> bytes:
    """The pickle's bytes behind `text`: base64 of an lz4 frame; a bare frame, or base64 of a bare pickle, is taken too.

    Raises BadEpisode for text that is cut or invalid, UnsafeData for frames that unfold beyond reason.
    """
    raw = text if isinstance(text, bytes) and text[:4] == FRAME_MAGIC else _from_base64(text, where)
    if raw[:1] == PICKLE_MAGIC:
        return raw
    if raw[:4] != FRAME_MAGIC:
        raise BadEpisode("a packed cell that holds no lz4 frame", where=where, fix=FIX)
    return _from_frame(raw, where)


def unfolded_size(text: str | bytes) -> int:
    """Bytes that `decompress` makes of `text`, by what the frame declares if it does; those of `text` where it would raise."""
    head = text[:HEAD]
    try:
        frame = head if isinstance(head, bytes) and head[:4] == FRAME_MAGIC else binascii.a2b_base64(head)
        declared = int(lz4.frame.get_frame_info(frame)["content_size"])
        if declared:
            return declared if declared <= _largest(len(text)) else len(text)
        return len(decompress(text, where=""))
    except (ValueError, RuntimeError, BadData):
        return len(text)


def _from_base64(text: str | bytes, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as err:
        raise BadEpisode(f"a packed cell that is not base64: {err}", where=where, fix=FIX) from err


def _from_frame(raw: bytes, where: str) -> bytes:
    limit = _largest(len(raw))
    try:
        declared = int(lz4.frame.get_frame_info(raw)["content_size"])
        if declared > limit:
            raise _bomb(f"declares {declared} bytes in a frame of {len(raw)}", where)
        data, used = lz4.frame.decompress(raw, return_bytes_read=True) if declared else _streamed(raw, limit, where)
    except (RuntimeError, ValueError, MemoryError) as err:
        raise BadEpisode(f"a packed cell with a broken lz4 frame: {err}", where=where, fix=FIX) from err
    if used != len(raw):
        raise BadEpisode("a packed cell with bytes after its lz4 frame", where=where, fix=FIX)
    return bytes(data)


def _largest(stored: int) -> int:
    """Bytes that a frame of `stored` bytes may unfold to."""
    return min(MAX_BYTES, MAX_RATIO * stored, max(SMALL_BYTES, USUAL_RATIO * stored))


def _streamed(raw: bytes, limit: int, where: str) -> tuple[bytes, int]:
    """The content of a frame that does not state its size, and the bytes read."""
    decompressor = lz4.frame.LZ4FrameDecompressor()
    data: bytes = decompressor.decompress(raw, max_length=limit)
    if not decompressor.eof:
        if len(data) >= limit:
            raise _bomb(f"unfolds to more than {limit} bytes", where)
        raise BadEpisode("a truncated packed cell", where=where, fix=FIX)
    return data, len(raw) - len(decompressor.unused_data or b"")


def _bomb(what: str, where: str) -> UnsafeData:
    return UnsafeData(f"a packed cell that {what}", where=where, fix=FIX)


@dataclass(frozen=True, slots=True)
class Texts:
    """The n texts of a column, one after the other."""

    array: pa.Array  # (n,) large_binary
    data: NDArray[np.uint8]  # all characters
    starts: NDArray[np.int64]  # (n + 1,)

    @classmethod
    def of(cls, array: pa.Array) -> Texts:
        """The texts of a large_binary array without nulls."""
        _, offsets, data = array.buffers()
        starts = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
        return cls(array, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.starts[row] : self.starts[row + 1]].tobytes()

    def alike(self, length: int, before: bytes, after: bytes) -> NDArray[np.bool_]:
        """(n,) which texts have that length and begin and end so."""
        found: NDArray[np.bool_] = np.diff(self.starts) == length
        for ends, pattern in ((pc.starts_with, before), (pc.ends_with, after)):
            found &= ends(self.array, pattern).to_numpy(zero_copy_only=False)
        return found

    def cut(self, rows: NDArray[np.intp], first: int, stop: int) -> NDArray[np.uint8]:
        """(m, stop - first) those characters of texts that are so long."""
        width = stop - first
        at_each = np.ndarray((len(self.data) - width + 1,), f"V{width}", self.data, strides=(1,))
        return at_each[self.starts[rows] + first].view(np.uint8).reshape(len(rows), width)


@dataclass(frozen=True, slots=True)
class CellTemplate:
    """A cell whose numbers lie at a known place of its text."""

    text: NDArray[np.uint8]  # (L,) the cell's characters
    first: int  # the numbers lie within the characters first:stop, both multiples of 4
    stop: int
    head: int  # and begin this many bytes after what `first` decodes to
    size: int  # bytes of numbers

    @classmethod
    def of(cls, text: bytes, offset: int, size: int) -> CellTemplate | None:
        """The template of a cell whose pickle has `size` bytes of numbers at `offset`.

        None where they do not lie in one run of literals from which nothing is copied.
        """
        if len(text) % 4:
            return None
        place = _place_in_frame(binascii.a2b_base64(text), offset, size)
        if place is None:
            return None
        first, stop = place // 3 * 4, -(-(place + size) // 3) * 4
        if b"=" in text[first:stop]:
            return None
        return cls(np.frombuffer(text, np.uint8), first, stop, place % 3, size)

    def data_of(self, texts: Texts, rows: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], NDArray[np.uint8]]]:
        """Of the texts of `rows`, those with this pattern, in portions: positions in `rows`, and (k, size) bytes of numbers."""
        before, after = (part.tobytes() for part in (self.text[: self.first], self.text[self.stop :]))
        places = np.flatnonzero(texts.alike(len(self.text), before, after)[rows])
        step = max(1, CHUNK_BYTES // len(self.text))
        for at in range(0, len(places), step):
            part = places[at : at + step]
            same, data = self._decode(texts.cut(rows[part], self.first, self.stop))
            yield part[same], data

    def _decode(self, chars: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
        """Which of the (m, stop - first) characters hold numbers only where this cell does, and the bytes of those."""
        decoded, same = _decode_base64(chars)
        mine, _ = _decode_base64(self.text[None, self.first : self.stop])
        end = self.head + self.size
        same &= (decoded[:, : self.head] == mine[:, : self.head]).all(axis=1)
        same &= (decoded[:, end:] == mine[:, end:]).all(axis=1)
        return same, decoded[same, self.head : end]


def _decode_base64(chars: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """(m, 3k) bytes of (m, 4k) characters, and (m,) whether all of a row's characters are base64."""
    rows, width = chars.shape
    try:
        raw = binascii.a2b_base64(np.ascontiguousarray(chars).data, strict_mode=True)
    except binascii.Error:
        raw = b""
    if len(raw) == rows * width // 4 * 3:
        return np.frombuffer(raw, np.uint8).reshape(rows, width // 4 * 3), np.ones(rows, np.bool_)
    return _decode_row_by_row(chars)


def _decode_row_by_row(chars: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """The same, where some of the characters are not base64."""
    six = DECODED[chars]
    valid = (six != INVALID).all(axis=1)
    a, b, c, d = (six[:, i::4] for i in range(4))
    decoded = np.empty((len(chars), chars.shape[1] // 4 * 3), np.uint8)
    decoded[:, 0::3] = a << 2 | b >> 4
    decoded[:, 1::3] = b << 4 | c >> 2
    decoded[:, 2::3] = c << 6 | d
    return decoded, valid


def _place_in_frame(frame: bytes, offset: int, size: int) -> int | None:
    """Where in `frame` the `size` bytes that it unfolds to at `offset` are literals; None where they are not."""
    flags = frame[4] if frame[:4] == FRAME_MAGIC else 0
    if flags & ~CONTENT_SIZE_BIT != PLAIN_FRAME:
        return None
    start = 15 if flags & CONTENT_SIZE_BIT else 7
    length = int.from_bytes(frame[start : start + 4], "little")
    stored, length = length >> 31, length & 0x7FFF_FFFF
    if start + 4 + length + 4 != len(frame) or any(frame[-4:]):  # one block, then the end mark
        return None
    begin = start + 4
    return begin + offset if stored else _place_in_block(frame[begin:-4], begin, offset, size)


def _place_in_block(block: bytes, begin: int, offset: int, size: int) -> int | None:
    place, at, out = None, 0, 0
    while at < len(block):
        token = block[at]
        literals, at = _length(block, at + 1, token >> 4)
        if out <= offset and offset + size <= out + literals:
            place = begin + at + offset - out
        at, out = at + literals, out + literals
        if at >= len(block):  # the last run has no match
            break
        source = out - int.from_bytes(block[at : at + 2], "little")
        copied, at = _length(block, at + 2, token & 15)
        copied += 4
        if source < offset + size and source + copied > offset:  # the match copies from the numbers
            return None
        out += copied
    return place


def _length(block: bytes, at: int, nibble: int) -> tuple[int, int]:
    """A length that starts in a token's nibble, and the position after it."""
    length = nibble
    more = nibble == 15
    while more:
        length, more, at = length + block[at], block[at] == 255, at + 1
    return length, at
