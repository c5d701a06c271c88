"""Footers and page headers of many Parquet files of one writer, walked side by side: their numbers as arrays over the files.

Both are structs in Thrift's compact protocol. Files of one writer and schema differ in a few numbers and in the texts of their
statistics; every other byte is the same. So one footer is walked in Python (`walked`), and the others with NumPy, value by
value, all at once (`Lanes.follow`). A file with any other byte is not followed: its caller leaves it to Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CHUNKS",
    "CHUNK_DATA",
    "GROUPS",
    "MAGIC",
    "ROWS",
    "STRUCT",
    "TAIL",
    "Lanes",
    "OddStruct",
    "Path",
    "Walk",
    "integer",
    "list_head",
    "padded_numbers",
    "signed",
    "walked",
]

Stored = TypeVar("Stored", int, NDArray[np.int64])
Path: TypeAlias = tuple[int, ...]
"""Of a value: ids of fields and numbers of list elements, from the outermost struct to it."""

MAGIC: Final = b"PAR1"  # at both ends of a Parquet file
TAIL: Final = 8  # bytes after a footer: its length, and `MAGIC`
ROWS, GROUPS = (3,), (4,)  # fields of FileMetaData, in parquet.thrift: how many rows, and the list of row groups
CHUNKS: Final = 1  # of RowGroup: the list of its column chunks
CHUNK_DATA: Final = 3  # of ColumnChunk: its ColumnMetaData
DEEPEST: Final = 12  # parts of a path
LONG: Final = 48  # bytes from which on Python compares them file by file
DIGITS: Final = 5  # bytes of a number at most: 35 bits
PAD: Final = LONG + DIGITS + 1  # bytes after the last file that may be looked at
BOOLEANS, BYTE, INTEGERS, DOUBLE, BINARY, LISTS, STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12  # Thrift's types


class OddStruct(ValueError):
    """A struct that no writer of Parquet files makes, or that ends too soon."""


@dataclass(frozen=True, slots=True)
class _Free:
    """A value that differs from file to file, and the bytes before it, which do not."""

    before: bytes
    path: Path
    is_text: bool


@dataclass(slots=True)
class Walk:
    """One struct, value by value."""

    free: list[_Free] = field(default_factory=list)
    rest: bytes = b""  # after the last of these
    numbers: dict[Path, int] = field(default_factory=dict)  # all integers, as they are stored: zigzag
    spans: dict[Path, tuple[int, int]] = field(default_factory=dict)  # where each value is in the bytes; of (): the struct


def walked(data: bytes, at: int, end: int, is_free: Callable[[Path], bool]) -> Walk:
    """The struct that begins at `data[at]` and ends before `end`. Raises OddStruct.

    `is_free`: whether other files may have another value there: an integer, or a text.
    """
    walker = _Walker(data, end, is_free, at, at)
    try:
        walker.struct(())
    except IndexError:
        raise OddStruct from None
    if walker.at > end:
        raise OddStruct
    walker.walk.rest = data[walker.copied : walker.at]
    return walker.walk


@dataclass(slots=True)
class _Walker:
    data: bytes
    end: int
    is_free: Callable[[Path], bool]
    at: int
    copied: int  # before which all bytes are those of `walk`
    walk: Walk = field(default_factory=Walk)

    def struct(self, path: Path) -> None:
        begin, number = self.at, 0
        if len(path) > DEEPEST:
            raise OddStruct
        while (head := self._byte()) != 0:
            if not head >> 4:  # a field out of order
                raise OddStruct
            number += head >> 4
            if head & 15 not in BOOLEANS:  # which are in the head
                self._value(head & 15, (*path, number))
        self.walk.spans[path] = begin, self.at

    def _value(self, kind: int, path: Path) -> None:
        begin = self.at
        if kind in INTEGERS:
            self.walk.numbers[path] = self._number()
            if self.is_free(path):
                self._end_free(begin, path, is_text=False)
        elif kind == BINARY:
            size = self._number()
            if self.is_free(path):
                self.at += size
                self._end_free(begin, path, is_text=True)
            else:
                self.at += size
        elif kind in LISTS:
            self._elements(path)
        elif kind == STRUCT:
            self.struct(path)
        elif kind in (BYTE, DOUBLE):
            self.at += 1 if kind == BYTE else 8
        else:
            raise OddStruct
        if self.at > self.end:
            raise OddStruct
        self.walk.spans[path] = begin, self.at

    def _elements(self, path: Path) -> None:
        head = self._byte()
        size = head >> 4 if head >> 4 < 15 else self._number()
        if head & 15 in BOOLEANS:
            self.at += size
            return
        for number in range(size):
            self._value(head & 15, (*path, number))

    def _end_free(self, begin: int, path: Path, *, is_text: bool) -> None:
        self.walk.free.append(_Free(self.data[self.copied : begin], path, is_text))
        self.copied = self.at

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _number(self) -> int:
        value = 0
        for digit in range(DIGITS):
            byte = self._byte()
            value |= (byte & 127) << 7 * digit
            if byte < 128:
                return value
        raise OddStruct


class Lanes:
    """A place in each of N files, whose bytes are one after the other in one array."""

    def __init__(self, data: Sequence[bytes]) -> None:
        sizes = np.array([len(one) for one in data], np.int64)
        self.data = data
        self.bytes = np.frombuffer(b"".join(data) + bytes(PAD), np.uint8)
        self.starts = np.cumsum(sizes) - sizes  # (N,) of each file in `bytes`
        self.sizes = sizes
        self.at = self.starts.copy()  # (N,)
        self.ends = self.starts + sizes  # (N,) which `at` never passes

    def go_to(self, places: NDArray[np.int64], ok: NDArray[np.bool_]) -> None:
        """Be at `places` (N,) of the files that are `ok`, which are within them."""
        self.at = self.starts + np.where(ok, places, 0)

    def follow(self, walk: Walk, ok: NDArray[np.bool_]) -> Mapping[Path, NDArray[np.int64]]:
        """Go through the struct that begins at each place, and after it; its free numbers (N,) by path.

        `ok` (N,) becomes false where a file has other bytes than `walk`, or numbers of more than `DIGITS` bytes.
        """
        found: dict[Path, NDArray[np.int64]] = {}
        for free in walk.free:
            self._pass(free.before, ok)
            value = self._numbers(ok)
            if free.is_text:
                self.at += value
            else:
                found[free.path] = signed(value)
            ok &= self.at <= self.ends
            np.minimum(self.at, self.ends, out=self.at)
        self._pass(walk.rest, ok)
        return found

    def _pass(self, same: bytes, ok: NDArray[np.bool_]) -> None:
        """Go past bytes that are to be `same`."""
        size = len(same)
        if size > LONG:
            first = (self.at - self.starts).tolist()
            ok &= [one[begin : begin + size] == same for one, begin in zip(self.data, first, strict=True)]
        elif size:
            window = self.bytes[self.at[:, None] + np.arange(size)]
            ok &= (window == np.frombuffer(same, np.uint8)).all(axis=1)
        self.at += size
        ok &= self.at <= self.ends
        np.minimum(self.at, self.ends, out=self.at)

    def _numbers(self, ok: NDArray[np.bool_]) -> NDArray[np.int64]:
        """(N,) the number at each place, as it is stored, and go past it."""
        digit = self.bytes[self.at]
        self.at += 1
        value: NDArray[np.int64] = (digit & 127).astype(np.int64)
        more = digit >= 128
        for place in range(1, DIGITS):
            if not more.any():
                break
            digit = np.where(more, self.bytes[self.at], 0)
            self.at += more
            value |= (digit & 127).astype(np.int64) << 7 * place
            more = digit >= 128
        ok &= ~more
        return value


def padded_numbers(values: NDArray[np.int64]) -> NDArray[np.uint8]:
    """(N, `DIGITS`) each value, less than 2^34 and not negative, as a Thrift integer: in so many bytes, the last may be 0."""
    digits = (values[:, None] << 1) >> (7 * np.arange(DIGITS)) & 127
    digits[:, :-1] |= 128
    return digits.astype(np.uint8)


def list_head(count: int) -> bytes:
    """What comes before `count` structs that are a list."""
    return bytes((count << 4 | STRUCT,)) if count < 15 else bytes((15 << 4 | STRUCT,)) + _varint(count)


def signed(stored: Stored) -> Stored:
    """The integer that is stored so: zigzag, in which small negative ones are small."""
    return stored >> 1 ^ -(stored & 1)


def integer(value: int) -> bytes:
    """A Thrift integer, in as few bytes as there are."""
    return _varint(value << 1 ^ value >> 63)


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes((*digits, value))
