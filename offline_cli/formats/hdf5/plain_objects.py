"""Bytes and common parts of an HDF5 file, for `plain_file.py`: headers of objects, B-trees, texts.

No byte is trusted: a question ends, with `Unlike`, when it has read as much as an honest file has to answer it with.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_cli.formats.hdf5.plain_messages import MORE, Unlike, unpacked

__all__ = ["PIECES", "TEXTS", "WORK", "Header", "PlainObjects"]

BLOCK: Final = 64 << 10  # bytes that are read at a time
BLOCKS: Final = 256  # that are kept
WORK: Final = 64 << 20  # bytes that may be read for one group, each look counted as LOOK more, and headers HEADER times
LOOK, HEADER = 64, 8
TEXTS: Final = 1 << 20  # bytes of a collection of texts, and of those of one group
HEAPS: Final = 16  # of these are kept
LEVELS: Final = 32  # of a B-tree
PIECES: Final = 4096  # chunks of a dataset; messages and blocks of a header
MESSAGE: Final = struct.Struct("<HHB3x")


class Header(NamedTuple):
    """Of an object."""

    names: int  # of the object: links to it
    messages: list[tuple[int, bytes]]  # kind and content
    blocks: list[tuple[int, int]]  # address and bytes of its parts, the first without what comes before messages
    places: list[tuple[int, int]]  # of each message: its block, and where in that its content begins
    more: list[tuple[int, int]]  # the same, of the messages that tell of further blocks


class PlainObjects:
    """An open file; everything raises Unlike. Used within `question`."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self.size = os.fstat(handle).st_size
        self._left = 0  # of the work that a question may take
        self._blocks: dict[int, bytes] = {}  # by where they begin
        self._first, self._block = 0, b""  # the last one
        self._texts_left = 2 * self.size + TEXTS  # bytes: no two texts are the same ones, and each is read twice at most
        self._texts: dict[int, dict[int, bytes]] = {}  # the collections of texts that were asked for last, by address

    @contextmanager
    def question(self, work: int) -> Iterator[None]:
        """Within it so much may be read; what else goes wrong is for libhdf5 to say, too."""
        self._left = work
        try:
            yield
        except (ValueError, LookupError, ArithmeticError, RecursionError, MemoryError, OSError, struct.error) as error:
            raise Unlike from error

    # ---- objects ----

    def leaves(
        self, address: int, kind: int, key: int, seen: set[int], level: int | None = None
    ) -> Iterator[tuple[bytes, int]]:
        """Key and address of each leaf of a B-tree; `key`: bytes of one. `seen`: addresses of its nodes."""
        sign, *form, used = unpacked("<4sBBH", self.bytes_at(address, 8))
        if sign != b"TREE" or form[0] != kind or form[1] != (form[1] if level is None else level) or form[1] > LEVELS:
            raise Unlike
        if address in seen:
            raise Unlike
        seen.add(address)
        entries = self.bytes_at(address + 24, used * (key + 8))
        for at in range(0, len(entries), key + 8):
            (child,) = struct.unpack_from("<Q", entries, at + key)
            if form[1]:
                yield from self.leaves(child, kind, key, seen, form[1] - 1)
            else:
                yield entries[at : at + key], child

    def header(self, address: int) -> Header:
        """Of the object there."""
        version, count, names, size = unpacked("<BxHII", self.bytes_at(address, 12))
        if version != 1:
            raise Unlike
        blocks, messages = [(address + 16, size)], list[tuple[int, bytes]]()
        places, more = list[tuple[int, int]](), list[tuple[int, int]]()
        for number, (place, length) in enumerate(blocks):
            if len(messages) + len(blocks) + length // 8 > PIECES:
                raise Unlike
            self.spend(HEADER * length)
            block, at = self.bytes_at(place, length), 0
            while at + 8 <= length:
                kind, size, flags = MESSAGE.unpack_from(block, at)
                data = block[at + 8 : at + 8 + size]
                if flags & 2 or len(data) != size:
                    raise Unlike
                if kind == MORE:
                    blocks.append(unpacked("<QQ", data))
                    more.append((number, at + 8))
                else:
                    messages.append((kind, data))
                    places.append((number, at + 8))
                at += 8 + size
        if len(messages) + len(blocks) - 1 != count:
            raise Unlike
        return Header(names, messages, blocks, places, more)

    def text_at(self, place: int, index: int) -> bytes:
        """An object of the collection of texts that is there."""
        found = self._texts.pop(place, None)
        if found is None:
            sign, size = unpacked("<8sQ", self.bytes_at(place, 16))
            if sign != b"GCOL\x01\0\0\0" or size > TEXTS:
                raise Unlike
            self.spend(HEADER * size)
            data, at, found = self.bytes_at(place, size), 16, {}
            while at + 16 <= size:
                number, length = struct.unpack_from("<H6xQ", data, at)
                if not number:
                    break  # what is left is free
                found[number] = data[at + 16 : at + 16 + length]
                at += 16 + (length + 7 & -8)
            while len(self._texts) >= HEAPS:
                del self._texts[next(iter(self._texts))]
        self._texts[place] = found
        text = found.get(index, b"")
        self._texts_left -= len(text)
        if self._texts_left < 0:
            raise Unlike
        return text

    # ---- bytes ----

    def bytes_at(self, first: int, count: int) -> bytes:
        """`count` bytes from `first` on."""
        block, at = self._at(first, count)
        return block[at : at + count]

    def array(self, first: int, dtype: np.dtype[Any], shape: Sequence[int]) -> NDArray[Any]:
        """Values of that shape and dtype; a view of bytes that are kept."""
        count = math.prod(shape)
        block, at = self._at(first, count * dtype.itemsize)
        return np.frombuffer(block, dtype, count, at).reshape(shape)

    def _at(self, first: int, count: int) -> tuple[bytes, int]:
        """Bytes that hold those, and where in them these begin."""
        self.spend(count + LOOK)
        at = first - self._first
        if 0 <= at <= len(self._block) - count:
            return self._block, at
        if count > self.size or first > self.size - count:
            raise Unlike
        start = first // BLOCK * BLOCK
        if first + count > start + BLOCK:
            found, at = os.pread(self._handle, count, first), 0
        else:
            block = self._blocks.pop(start, None)
            found, at = os.pread(self._handle, BLOCK, start) if block is None else block, first - start
            self._blocks[start] = found  # the last one that was asked for
            if len(self._blocks) > BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            self._first, self._block = start, found
        if len(found) < at + count:
            raise Unlike  # the file has become shorter
        return found, at

    def spend(self, work: int) -> None:
        """Count so many bytes of work."""
        self._left -= work
        if self._left < 0:
            raise Unlike
