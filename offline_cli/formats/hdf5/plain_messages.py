"""What the messages in an object's header say, in the forms that `plain_file.py` knows.

Datasets of one name have headers that differ in little: their sides, and where their values are. A `Likeness` is what they
share, so that the next one is compared with it, and not taken apart.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.formats.hdf5.messages import plain_text

__all__ = [
    "ATTRIBUTE",
    "LAYOUT",
    "LONGEST",
    "MORE",
    "ONE_LEAF",
    "SPACE",
    "TABLE",
    "TYPE",
    "AttributeKind",
    "Likeness",
    "Pattern",
    "Unlike",
    "dtype_of",
    "is_boolean",
    "shape_of",
    "text_of",
    "unpacked",
]

SPACE, TYPE, LAYOUT, ATTRIBUTE, MORE, TABLE = 0x01, 0x03, 0x08, 0x0C, 0x10, 0x11  # kinds of messages
TEXTS: Final = frozenset(b"\x19\x01" + charset + b"\0\x10\0\0\0" for charset in (b"\0", b"\x01"))  # of any length, types of
UNDEFINED: Final = b"\xff" * 8  # an address
FLOATS: Final = {  # properties of IEEE 754 numbers in version 1 of the datatype message
    struct.pack("<B3BIHHBBBBI", 0x11, 0x20, sign, 0, size, 0, 8 * size, *fields): f"<f{size}"
    for size, sign, fields in ((4, 31, (23, 8, 0, 23, 127)), (8, 63, (52, 11, 0, 52, 1023)))
}
BOOLEAN: Final = struct.pack("<B3BIB3BIHH", 0x18, 2, 0, 0, 1, 0x10, 8, 0, 0, 1, 0, 8) + b"FALSE\0\0\0TRUE\0\0\0\0" + b"\0\x01"

MOST: Final = 32  # sides
SIDES: Final = 4  # of an attribute: each value is in so many lists
LONGEST: Final = 1024  # bytes of a type, or of sides, that are looked at
ONE_LEAF: Final = b"TREE\x01\x00\x01\x00" + 2 * UNDEFINED  # a B-tree of one chunk


class Unlike(Exception):
    """This file, or this object, has another form."""


def unpacked(form: str, data: bytes) -> tuple[Any, ...]:
    try:
        return struct.unpack_from(form, data)
    except struct.error as error:
        raise Unlike from error


@lru_cache(1024)
def shape_of(space: bytes) -> tuple[int, ...]:
    version, sides, kind = unpacked("<BBxB", space)
    if version not in (1, 2) or (version == 2 and kind > 1):
        raise Unlike
    if sides > MOST:
        raise Unlike
    shape = unpacked(f"<{sides}Q", space[8 if version == 1 else 4 :])
    if any(side >> 31 for side in shape):  # more than is read, or nothing at all
        raise Unlike
    return shape


@lru_cache(256)
def dtype_of(kind: bytes) -> np.dtype[Any]:
    """That of stored values; of booleans, bytes."""
    kind = kind.ljust(24, b"\0")
    if kind[:20] in FLOATS:
        return np.dtype(FLOATS[kind[:20]])
    if kind.startswith(BOOLEAN):
        return np.dtype(np.uint8)
    form, bits, size, first, precision = unpacked("<BB2xIHH", kind)
    if form != 0x10 or bits not in (0, 8) or size not in (1, 2, 4, 8) or first or precision != 8 * size:
        raise Unlike
    return np.dtype(f"<{'i' if bits else 'u'}{size}")


def is_boolean(kind: bytes) -> bool:
    """Whether a type that `dtype_of` knows is that of booleans."""
    return kind[0] == BOOLEAN[0]


class AttributeKind(NamedTuple):
    """An attribute, but for its values."""

    name: bytes
    text: str
    dtype: np.dtype[Any] | None  # None: a text of any length, which is elsewhere
    shape: tuple[int, ...]
    is_boolean: bool
    at: int  # where values begin

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Of a message. Raises Unlike."""
        _, *sizes = unpacked("<BxHHH", data)
        ends = list(itertools.accumulate((-(-size // 8) * 8 for size in sizes), initial=8))
        name, kind, space = (data[first : first + size] for first, size in zip(ends, sizes, strict=False))
        name, shape, is_text = name[:-1], shape_of(space[:LONGEST]), kind[:8] in TEXTS
        if not name or b"\0" in name or data[8 + sizes[0] - 1] or (is_text and shape) or len(shape) > SIDES:
            raise Unlike
        return cls(name, plain_text(name), None if is_text else dtype_of(kind[:LONGEST]), shape, is_boolean(kind), ends[3])

    def values(self, data: bytes, text_at: Callable[[int, int], bytes]) -> Any:
        """As JSON has them; `text_at`: that of a collection's address and an index. Raises Unlike where there are none."""
        if self.dtype is None:
            return text_of(text_at, *unpacked("<IQI", data[self.at :]))
        if not self.shape and len(data) >= self.at + self.dtype.itemsize:
            one = np.frombuffer(data, self.dtype, 1, self.at).item()
            return one != 0 if self.is_boolean else one
        count = math.prod(self.shape)
        if not count or len(data) < self.at + count * self.dtype.itemsize:
            raise Unlike
        values = np.frombuffer(data, self.dtype, count, self.at).reshape(self.shape)
        return ((values != 0) if self.is_boolean else values).tolist()

    @property
    def cost(self) -> int:
        """Bytes that its values take at most as Python's objects; without those of a text."""
        return 64 * math.prod(self.shape) * max(1, len(self.shape))

    def numbers(self, rows: NDArray[np.uint8], at: int) -> list[Any]:
        """Those of many: (N, bytes), in which values begin at `at`; as `values`."""
        assert self.dtype is not None, "of numbers"
        count = math.prod(self.shape)
        end = at + count * self.dtype.itemsize
        if not count or rows.shape[1] < end:
            raise Unlike
        values = np.ascontiguousarray(rows[:, at:end]).view(self.dtype).reshape(-1, *self.shape)
        found: list[Any] = ((values != 0) if self.is_boolean else values).tolist()
        return found


def text_of(text_at: Callable[[int, int], bytes], length: int, place: int, index: int) -> str:
    """A text of so many bytes; `text_at`: the object of a collection's address and an index. Raises Unlike."""
    text = text_at(place, index) if length else b""
    if len(text) != length:
        raise Unlike
    return plain_text(text.partition(b"\0")[0])


class Pattern(NamedTuple):
    """Bytes of an object, of which some may differ."""

    raw: NDArray[np.uint8]
    mask: NDArray[np.uint8]  # 0 where they may

    @classmethod
    def of(cls, raw: bytes, differ: Iterable[tuple[int, int]]) -> Self:
        """`differ`: bytes [first, stop) that may."""
        mask = np.full(len(raw), 255, np.uint8)
        for first, stop in differ:
            mask[first:stop] = 0
        return cls(np.frombuffer(raw, np.uint8), mask)

    def fits(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Whether each (N, bytes) of the rows has them."""
        found: NDArray[np.bool_] = ~np.any((rows ^ self.raw) & self.mask, axis=1)
        return found


@dataclass(frozen=True, slots=True)
class Likeness:
    """The header of a dataset, without its sides, those of its only chunk, and the address of its values or their B-tree."""

    length: int
    same: tuple[tuple[int, int, bytes], ...]  # from, to, and what is there
    pattern: Pattern  # the same
    shape: tuple[int, ...]  # of the one that was seen
    sides: struct.Struct
    sides_at: int
    address: struct.Struct  # that, and the bytes of the values or the sides of the chunk
    address_at: int
    leaf: struct.Struct | None  # of the B-tree; None: the values have none
    dtype: np.dtype[Any]
    is_boolean: bool

    @classmethod
    def of(cls, raw: bytes) -> Self | None:
        """Of a whole header, whose dataset has been read; None where it is in other forms."""
        places, at = dict[int, int](), 16
        while at + 8 <= len(raw):
            kind, size = struct.unpack_from("<HH", raw, at)
            places.setdefault(kind, at + 8)
            at += 8 + size
        if MORE in places or not places.keys() >= {SPACE, TYPE, LAYOUT} or raw[places[SPACE]] != 1:
            return None
        space, kind, layout = (places[kind] for kind in (SPACE, TYPE, LAYOUT))
        count = raw[space + 1]
        form = raw[layout : layout + 2]
        if form not in (b"\x03\x01", b"\x03\x02") or not count or not space < kind < layout:
            return None
        in_chunks = form == b"\x03\x02"
        sides, address = struct.Struct(f"<{count}Q"), struct.Struct(f"<Q{count}I" if in_chunks else "<QQ")
        sides_at, address_at = space + 8, layout + (3 if in_chunks else 2)
        of_space, of_type = (struct.unpack_from("<H", raw, at - 6)[0] for at in (space, kind))
        ends = (0, sides_at, space + of_space, address_at, address_at + address.size, len(raw))  # how far sides may grow, too
        told = raw[kind : kind + of_type]
        return cls(
            length=len(raw),
            same=tuple((first, stop, raw[first:stop]) for first, stop in zip(ends[::2], ends[1::2], strict=True)),
            pattern=Pattern.of(raw, [ends[1:3], ends[3:5]]),
            shape=sides.unpack_from(raw, sides_at),
            sides=sides,
            sides_at=sides_at,
            address=address,
            address_at=address_at,
            leaf=struct.Struct(f"<24xII{count + 1}QQ") if in_chunks else None,
            dtype=dtype_of(told),
            is_boolean=is_boolean(told),
        )
