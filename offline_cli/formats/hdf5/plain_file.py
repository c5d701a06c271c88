"""Groups of small datasets as h5py writes them unless it is told otherwise, read without libhdf5.

A file with a group for each episode has hundreds of thousands of objects, and libhdf5 takes some 70 us to open and read one.
Of the format (HDF5 File Format Specification, version 3.0) this knows superblock 0, symbol tables, version 1 of object headers
and of B-trees, and datasets of numbers and booleans in this machine's byte order: compact, contiguous, or in chunks without
filters. Whatever is anything else, or does not fit together, raises `Unlike`, and libhdf5 has the word (`child_process.py`).

What is read is bounded by the file's size, and of one group by OBJECTS and DEEPEST; no byte of it is trusted.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
from collections.abc import Collection, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.formats.hdf5.nodes import Form, Node
from offline_cli.formats.hdf5.plain_messages import (
    ATTRIBUTE,
    LAYOUT,
    MORE,
    ONE_LEAF,
    SPACE,
    TABLE,
    TYPE,
    AttributeKind,
    Likeness,
    Unlike,
    dtype_of,
    is_boolean,
    shape_of,
    text_of,
    unpacked,
)

__all__ = ["PlainFile"]

BLOCK: Final = 1 << 20  # bytes that are read at a time
BLOCKS: Final = 16  # that are kept
NAMES: Final = 64 << 20  # bytes of the names in a group
TEXTS: Final = 1 << 20  # bytes of a collection of texts, and of those of one group
HEAPS: Final = 16  # of these are kept
VALUES: Final = 8 << 20  # bytes of values in a group; larger ones are read in parts, by libhdf5
OBJECTS: Final = 100_000  # below one group
DEEPEST: Final = 32  # groups within groups
KNOWN: Final = 1024  # datasets and attributes that are known again
PIECES: Final = 4096  # chunks of a dataset, and blocks of a header
UNDEFINED: Final = (1 << 64) - 1  # an address
ENTRY: Final = struct.Struct("<QQI20x")  # of a group's member: where its name is, its address, what is cached
MESSAGE: Final = struct.Struct("<HHB3x")
SUPERBLOCK: Final = b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0"  # version 0, addresses and lengths of 8 bytes
OF_GROUPS: Final = frozenset({0x00, TABLE, ATTRIBUTE, 0x12})
IDLE: Final = frozenset({0x00, 0x04, 0x05, 0x0E, 0x12, ATTRIBUTE})  # of a dataset: nothing, fill values, times


class _Header(NamedTuple):
    names: int  # of the object: links to it
    messages: list[tuple[int, bytes]]  # kind and content


class PlainFile:
    """An open file; a context manager, which closes its own handle. Everything raises Unlike."""

    def __init__(self, handle: int) -> None:
        """`handle`: of a file that is open for reading; it stays the caller's."""
        self._file = os.fdopen(os.dup(handle), "rb", buffering=0)
        self._handle = self._file.fileno()
        self._size = os.fstat(self._handle).st_size
        self._blocks: dict[int, bytes] = {}  # by where they begin
        self._first, self._block = 0, b""  # the last one
        self._groups: dict[str, dict[bytes, int]] = {}  # members of groups by path
        self._seen: dict[str, Likeness] = {}  # of datasets, by their path below a group that was asked for
        self._texts: dict[int, dict[int, bytes]] = {}  # the collections of texts that were asked for last, by address
        self._attribute_kinds: dict[bytes, AttributeKind] = {}  # by the bytes before the values

    def __enter__(self) -> Self:
        try:
            start = self._bytes(0, 96)
            base, root, kind = *struct.unpack_from("<Q", start, 24), *struct.unpack_from("<QI", start, 64)
            if start[:16] != SUPERBLOCK or base or kind > 1:
                raise Unlike
            self._groups[""] = self._members(self._header(root))
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def members(self, path: str) -> list[str]:
        """Names in a group, in their order."""
        return [text_of(name) for name in self._group(path)]

    def node(self, path: str, passed_over: Collection[str] = ()) -> Node:
        """The group with all that is below it, and all values; without attributes that are `passed_over`."""
        above, _, name = path.rpartition("/")
        header = self._header(self._group(above).get(name.encode(), UNDEFINED))
        if header.names != 1:
            raise Unlike
        datasets: dict[str, Form] = {}
        values: dict[str, NDArray[Any]] = {}
        groups, nbytes = list[str](), 0
        for below, one in self._below(header, "", itertools.count(), 0):
            if one is None:
                groups.append(below)
            else:
                values[below] = one
                datasets[below] = one.dtype.str, one.shape
                nbytes += one.nbytes
                if nbytes > VALUES:
                    raise Unlike
        return Node(self._attributes(header, passed_over), (), datasets, tuple(groups), values)

    def _attributes(self, group: _Header, passed_over: Collection[str]) -> dict[str, Any]:
        """Values by name, in the order of names."""
        found, nbytes = dict[bytes, tuple[str, Any]](), 0
        for message, data in group.messages:
            if message != ATTRIBUTE:
                continue
            version, name, told, space = unpacked("<BxHHH", data)
            start = data[: 8 + (name + 7 & -8) + (told + 7 & -8) + (space + 7 & -8)]
            kind = self._attribute_kinds.get(start)
            if kind is None:
                if version != 1:
                    raise Unlike
                kind = AttributeKind.of(data)
                if len(self._attribute_kinds) < KNOWN:
                    self._attribute_kinds[start] = kind
            if kind.text not in passed_over:
                found[kind.name] = kind.text, kind.values(data, self._text_at)
                nbytes += len(found[kind.name][1]) if kind.dtype is None else 0
                if nbytes > TEXTS:
                    raise Unlike
        return dict(found[name] for name in sorted(found))

    def _text_at(self, place: int, index: int) -> bytes:
        """An object of the collection of texts that is there."""
        if place not in self._texts:
            sign, size = unpacked("<8sQ", self._bytes(place, 16))
            if sign != b"GCOL\x01\0\0\0" or size > TEXTS:
                raise Unlike
            data, at, found = self._bytes(place, size), 16, dict[int, bytes]()
            while at + 16 <= size:
                number, length = struct.unpack_from("<H6xQ", data, at)
                if not number:
                    break  # what is left is free
                found[number] = data[at + 16 : at + 16 + length]
                at += 16 + (length + 7 & -8)
            while len(self._texts) >= HEAPS:
                del self._texts[next(iter(self._texts))]
            self._texts[place] = found
        return self._texts[place].get(index, b"")

    # ---- groups ----

    def _group(self, path: str) -> dict[bytes, int]:
        if path not in self._groups:
            above, _, name = path.rpartition("/")
            found = self._members(self._header(self._group(above).get(name.encode(), UNDEFINED)))
            while len(self._groups) > DEEPEST:  # the last ones that were asked for
                del self._groups[next(one for one in self._groups if one)]
            self._groups[path] = found
        return self._groups[path]

    def _below(
        self, group: _Header, prefix: str, count: Iterator[int], depth: int
    ) -> Iterator[tuple[str, NDArray[Any] | None]]:
        """Name below the first group, and values, of all datasets; None of groups."""
        for raw, address in self._members(group).items():
            if depth > DEEPEST or next(count) > OBJECTS:
                raise Unlike
            name = prefix + text_of(raw)
            if (values := self._as_seen(name, address)) is not None:
                yield name, values
                continue
            header = self._header(address)
            if any(kind == TABLE for kind, _ in header.messages):
                if header.names != 1:
                    raise Unlike
                yield name, None
                yield from self._below(header, name + "/", count, depth + 1)
            else:
                yield name, self._values(header)
                self._see(name, address)

    def _members(self, group: _Header) -> dict[bytes, int]:
        """Addresses of a group's members by name."""
        tables = [data for kind, data in group.messages if kind == TABLE]
        if len(tables) != 1 or not all(kind in OF_GROUPS for kind, _ in group.messages):
            raise Unlike
        tree, heap = unpacked("<QQ", tables[0])
        sign, size, _, place = unpacked("<8sQQQ", self._bytes(heap, 32))
        if sign != b"HEAP\0\0\0\0" or size > NAMES:
            raise Unlike
        names = self._bytes(place, size)
        found: dict[bytes, int] = {}
        for _, leaf in self._leaves(tree, 0, 8):
            sign, count = unpacked("<6sH", self._bytes(leaf, 8))
            if sign != b"SNOD\x01\0":
                raise Unlike
            for at, address, kind in ENTRY.iter_unpack(self._bytes(leaf + 8, 40 * count)):
                end = names.find(b"\0", at) if at < size else -1
                if kind > 1 or end < 0:
                    raise Unlike
                found[names[at:end]] = address
        return found

    def _leaves(self, address: int, kind: int, key: int, level: int | None = None) -> Iterator[tuple[bytes, int]]:
        """Key and address of each leaf of a B-tree; `key`: bytes of one."""
        sign, *form, used = unpacked("<4sBBH", self._bytes(address, 8))
        if sign != b"TREE" or form[0] != kind or form[1] != (form[1] if level is None else level) or form[1] > DEEPEST:
            raise Unlike
        entries = self._bytes(address + 24, used * (key + 8))
        for at in range(0, len(entries), key + 8):
            (child,) = struct.unpack_from("<Q", entries, at + key)
            if form[1]:
                yield from self._leaves(child, kind, key, form[1] - 1)
            else:
                yield entries[at : at + key], child

    def _header(self, address: int) -> _Header:
        version, count, names, size = unpacked("<BxHII", self._bytes(address, 12))
        if version != 1:
            raise Unlike
        blocks, messages = [(address + 16, size)], list[tuple[int, bytes]]()
        for place, length in blocks:
            block, at = self._bytes(place, length), 0
            if len(messages) + len(blocks) + length // 8 > PIECES:
                raise Unlike
            while at + 8 <= length:
                kind, size, flags = MESSAGE.unpack_from(block, at)
                data = block[at + 8 : at + 8 + size]
                if flags & 2 or len(data) != size:
                    raise Unlike
                if kind == MORE:
                    blocks.append(unpacked("<QQ", data))
                else:
                    messages.append((kind, data))
                at += 8 + size
        if len(messages) + len(blocks) - 1 != count:
            raise Unlike
        return _Header(names, messages)

    # ---- datasets ----

    def _values(self, dataset: _Header) -> NDArray[Any]:
        parts = {kind: data for kind, data in dataset.messages if kind not in IDLE}
        if parts.keys() != {SPACE, TYPE, LAYOUT}:
            raise Unlike
        shape, layout = shape_of(parts[SPACE]), parts[LAYOUT]
        dtype = dtype_of(parts[TYPE])
        size = dtype.itemsize * math.prod(shape)
        if size > VALUES or layout[0] != 3:
            raise Unlike
        if layout[1] == 2:
            values = self._from_chunks(layout, shape, dtype)
        else:
            place, stored = unpacked("<QQ", layout[2:]) if layout[1] == 1 else (0, *unpacked("<H", layout[2:]))
            if layout[1] > 1 or stored != size:
                raise Unlike
            inside = np.frombuffer(layout[4 : 4 + size], np.uint8)
            values = self._array(place, dtype, shape) if layout[1] else inside.view(dtype).reshape(shape)
        return (values != 0) if is_boolean(parts[TYPE]) else values.copy()

    def _see(self, name: str, address: int) -> None:
        """Keep what the header of a dataset shares with those of the same name in other groups."""
        (size,) = unpacked("<8xI", self._bytes(address, 12))
        like = Likeness.of(self._bytes(address, 16 + size)) if len(self._seen) < KNOWN else None
        if like is not None:
            self._seen[name] = like

    def _as_seen(self, name: str, address: int) -> NDArray[Any] | None:
        """The values of a dataset like the one of this name that was seen, in one chunk; None of another."""
        like = self._seen.get(name)
        if like is None:
            return None
        raw = self._bytes(address, like.length)
        for begin, end, known in like.same:
            if raw[begin:end] != known:
                return None
        shape, (tree, *chunk, _) = like.sides.unpack_from(raw, like.sides_at), like.chunks.unpack_from(raw, like.chunks_at)
        leaf = self._bytes(tree, like.leaf.size)
        size, mask, *first, address = like.leaf.unpack(leaf)
        count = math.prod(chunk)
        if leaf[:24] != ONE_LEAF or mask or any(first) or size != count * like.dtype.itemsize or not 0 < size <= VALUES:
            return None
        values = self._array(address, like.dtype, chunk)
        if shape != values.shape:
            if not all(0 < side <= of for side, of in zip(shape, chunk, strict=True)):
                return None
            values = values[tuple(map(slice, shape))]
        return (values != 0) if like.is_boolean else values.copy()

    def _from_chunks(self, layout: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        sides, (tree,) = layout[2], unpacked("<Q", layout[3:])
        *chunk, itemsize = unpacked(f"<{sides}I", layout[11:])
        if len(chunk) != len(shape) or not shape or itemsize != dtype.itemsize or not all(chunk):
            raise Unlike
        counts = [-(-side // of) for side, of in zip(shape, chunk, strict=True)]
        if math.prod(chunk) * itemsize > 2 * VALUES or not 0 < math.prod(counts) <= PIECES:
            raise Unlike
        seen, values = set[tuple[int, ...]](), np.empty(0)
        for key, address in self._leaves(tree, 1, 8 + 8 * sides):
            size, mask, *first, last = unpacked(f"<II{sides}Q", key)
            place = tuple(first)
            inside = all(at % of == 0 and at < side for at, of, side in zip(first, chunk, shape, strict=True))
            if mask or last or not inside or place in seen or size != math.prod(chunk) * itemsize:
                raise Unlike
            seen.add(place)
            found = self._array(address, dtype, chunk)
            found = found[tuple(slice(0, side - at) for side, at in zip(shape, first, strict=True))]
            if len(seen) == math.prod(counts) == 1:
                return found
            values = values if len(values) else np.empty(shape, dtype)
            values[tuple(slice(at, at + many) for at, many in zip(first, found.shape, strict=True))] = found
        if len(seen) != math.prod(counts):
            raise Unlike
        return values

    # ---- bytes ----

    def _bytes(self, first: int, count: int) -> bytes:
        block, at = self._at(first, count)
        return block[at : at + count]

    def _array(self, first: int, dtype: np.dtype[Any], shape: Sequence[int]) -> NDArray[Any]:
        count = math.prod(shape)
        block, at = self._at(first, count * dtype.itemsize)
        return np.frombuffer(block, dtype, count, at).reshape(shape)

    def _at(self, first: int, count: int) -> tuple[bytes, int]:
        """Bytes that hold those, and where in them these begin."""
        at = first - self._first
        if 0 <= at <= len(self._block) - count:
            return self._block, at
        if count > self._size or first > self._size - count:
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
