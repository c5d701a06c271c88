"""Groups of small datasets as h5py writes them unless it is told otherwise, read without libhdf5.

A file with a group for each episode has hundreds of thousands of objects, and libhdf5 takes some 70 us to open and read one.
Of the format (HDF5 File Format Specification, version 3.0) this knows superblock 0, symbol tables, version 1 of object headers
and of B-trees, and datasets of numbers and booleans in this machine's byte order: compact, contiguous, or in chunks without
filters. Whatever is anything else, or does not fit together, raises `Unlike`, and libhdf5 has the word (`child_process.py`).

No byte of it is trusted (`plain_objects.py`).
"""

from __future__ import annotations

import itertools
import math
import os
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.formats.hdf5.messages import DEEPEST, LOADED, OBJECTS, plain_text
from offline_cli.formats.hdf5.nodes import Alike, Form, Node
from offline_cli.formats.hdf5.plain_alike import Comparison, beside_each_other, likeness_of
from offline_cli.formats.hdf5.plain_messages import (
    ATTRIBUTE,
    LAYOUT,
    LONGEST,
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
    unpacked,
)
from offline_cli.formats.hdf5.plain_objects import PIECES, TEXTS, WORK, Header, PlainObjects

__all__ = ["PlainFile"]

NAMES: Final = 64 << 20  # bytes of the names in a group
GROUPS: Final = 8  # whose members are kept
LONG: Final = 512  # bytes of an attribute, before its values, that is not known again
KNOWN: Final = 1024  # datasets and attributes that are known again
UNDEFINED: Final = (1 << 64) - 1  # an address
ENTRY: Final = struct.Struct("<QQI20x")  # of a group's member: where its name is, its address, what is cached
SUPERBLOCK: Final = b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0"  # version 0, addresses and lengths of 8 bytes
OF_GROUPS: Final = frozenset({0x00, TABLE, ATTRIBUTE, 0x12})
IDLE: Final = frozenset({0x00, 0x04, 0x05, 0x0E, 0x12, ATTRIBUTE})  # of a dataset: nothing, fill values, times


class PlainFile:
    """An open file; a context manager, which closes its own handle. Everything raises Unlike."""

    def __init__(self, handle: int) -> None:
        """`handle`: of a file that is open for reading; it stays the caller's."""
        self._file = os.fdopen(os.dup(handle), "rb", buffering=0)
        self._objects = PlainObjects(self._file.fileno())
        self._root = UNDEFINED
        self._groups: dict[str, dict[bytes, int]] = {}  # members of groups by path
        self._seen: dict[str, Likeness] = {}  # of datasets, by their path below a group that was asked for
        self._attribute_kinds: dict[bytes, AttributeKind] = {}  # by the bytes before the values

    def __enter__(self) -> Self:
        try:
            with self._objects.question(WORK):
                start = self._objects.bytes_at(0, 96)
                base, _, end, driver = struct.unpack_from("<4Q", start, 24)
                self._root, kind = struct.unpack_from("<QI", start, 64)
                if start[:16] != SUPERBLOCK or base or end > self._objects.size or driver != UNDEFINED or kind > 1:
                    raise Unlike
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def members(self, path: str) -> list[str]:
        """Names in a group, in their order."""
        with self._objects.question(WORK + 4 * self._objects.size):
            return [plain_text(name) for name in self._group(path)]

    def node(self, path: str, passed_over: Collection[str] = ()) -> Node:
        """The group with all that is below it, and all values; without attributes that are `passed_over`."""
        above, _, name = path.rpartition("/")
        with self._objects.question(WORK + 4 * self._objects.size if above not in self._groups else WORK):
            return self._node(self._named(self._group(above), name), passed_over)

    def alike(self, paths: Sequence[str], passed_over: Collection[str] = ()) -> tuple[Alike, NDArray[np.bool_]]:
        """Of the first N groups, all in one group: those of the form that most have, as `node` reads them; which these are."""
        above, _, name = paths[0].rpartition("/")
        names = [path[len(paths[0]) - len(name) :] for path in paths]
        with self._objects.question(WORK + 4 * self._objects.size if above not in self._groups else WORK):
            members = self._group(above)
            addresses = np.array([members[one.encode()] for one in names], np.int64)
            count, first, stop = beside_each_other(addresses, self._objects.size)
        for number in dict.fromkeys((count // 2, count // 3)):  # the first one of a file is often laid out in another way
            with suppress(Unlike), self._objects.question(WORK + stop - first):
                self._node(self._named(members, names[number]), passed_over)
                like = likeness_of(self._objects, int(addresses[number]), passed_over)
                seen = Comparison(first, self._objects.bytes_at(first, stop - first), count)
                alike = seen.alike(paths[:count], like, addresses[:count], self._objects.text_at)
                if 2 * len(alike.names) > count:
                    return alike, seen.fits
        raise Unlike

    def _node(self, header: Header, passed_over: Collection[str]) -> Node:
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
                if nbytes > LOADED:
                    raise Unlike
        return Node(self._attributes(header, passed_over), (), datasets, tuple(groups), values)

    def _attributes(self, group: Header, passed_over: Collection[str]) -> dict[str, Any]:
        """Values by name, in the order of names."""
        found, nbytes = dict[bytes, tuple[str, Any]](), 0  # as Python's objects
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
                if len(self._attribute_kinds) < KNOWN and len(start) < LONG:
                    self._attribute_kinds[start] = kind
            if kind.text not in passed_over:
                nbytes += kind.cost if kind.dtype else unpacked("<I", data[kind.at :])[0]
                if kind.name in found or nbytes > TEXTS:
                    raise Unlike
                found[kind.name] = kind.text, kind.values(data, self._objects.text_at)
        return dict(found[name] for name in sorted(found))

    # ---- groups ----

    def _group(self, path: str) -> dict[bytes, int]:
        found = self._groups.pop(path, None)
        if found is None:
            above, _, name = path.rpartition("/")
            found = self._members(self._named(self._group(above), name) if path else self._objects.header(self._root))
            while len(self._groups) >= GROUPS:
                del self._groups[next(iter(self._groups))]
        self._groups[path] = found  # the one that was asked for last
        return found

    def _named(self, members: Mapping[bytes, int], name: str) -> Header:
        """A group's member, which has no other name."""
        header = self._objects.header(members[name.encode()])
        if header.names != 1:
            raise Unlike
        return header

    def _below(self, group: Header, prefix: str, count: Iterator[int], depth: int) -> Iterator[tuple[str, NDArray[Any] | None]]:
        """Name below the first group, and values, of all datasets; None of groups."""
        for raw, address in self._members(group).items():
            if depth >= DEEPEST or next(count) > OBJECTS:
                raise Unlike
            self._objects.spend(len(prefix))
            name = prefix + plain_text(raw)
            if (values := self._as_seen(name, address)) is not None:
                yield name, values
                continue
            header = self._objects.header(address)
            if any(kind == TABLE for kind, _ in header.messages):
                if header.names != 1:
                    raise Unlike
                yield name, None
                yield from self._below(header, name + "/", count, depth + 1)
            else:
                yield name, self._values(header)
                self._see(name, address)

    def _members(self, group: Header) -> dict[bytes, int]:
        """Addresses of a group's members by name."""
        tables = [data for kind, data in group.messages if kind == TABLE]
        if len(tables) != 1 or not all(kind in OF_GROUPS for kind, _ in group.messages):
            raise Unlike
        tree, heap = unpacked("<QQ", tables[0])
        sign, size, _, place = unpacked("<8sQQQ", self._objects.bytes_at(heap, 32))
        if sign != b"HEAP\0\0\0\0" or size > NAMES:
            raise Unlike
        names = self._objects.bytes_at(place, size)
        found: dict[bytes, int] = {}
        last, held = b"", 0
        for _, leaf in self._objects.leaves(tree, 0, 8, set()):
            sign, count = unpacked("<6sH", self._objects.bytes_at(leaf, 8))
            if sign != b"SNOD\x01\0":
                raise Unlike
            for at, address, kind in ENTRY.iter_unpack(self._objects.bytes_at(leaf + 8, 40 * count)):
                end = names.find(b"\0", at) if at < size else -1
                name = names[at:end]
                held += end - at + 1
                if kind > 1 or end < 0 or held > size or name <= last or b"/" in name or name == b".":
                    raise Unlike
                found[name] = address
                last = name
        return found

    # ---- datasets ----

    def _values(self, dataset: Header) -> NDArray[Any]:
        messages = [(kind, data) for kind, data in dataset.messages if kind not in IDLE]
        parts = dict(messages)
        if len(messages) != 3 or parts.keys() != {SPACE, TYPE, LAYOUT}:
            raise Unlike
        shape, layout = shape_of(parts[SPACE][:LONGEST]), parts[LAYOUT]
        dtype = dtype_of(parts[TYPE][:LONGEST])
        size = dtype.itemsize * math.prod(shape)
        version, form = unpacked("<BB", layout)
        if size > LOADED or version != 3:
            raise Unlike
        if form == 2:
            values = self._from_chunks(layout, shape, dtype)
        else:
            place, stored = unpacked("<QQ", layout[2:]) if form == 1 else (0, *unpacked("<H", layout[2:]))
            if form > 1 or stored != size:
                raise Unlike
            inside = np.frombuffer(layout[4 : 4 + size], np.uint8)
            values = self._objects.array(place, dtype, shape) if form else inside.view(dtype).reshape(shape)
        return values.astype(np.bool_) if is_boolean(parts[TYPE]) else values.copy()

    def _see(self, name: str, address: int) -> None:
        """Keep what the header of a dataset shares with those of the same name in other groups."""
        (size,) = unpacked("<8xI", self._objects.bytes_at(address, 12))
        like = Likeness.of(self._objects.bytes_at(address, 16 + size)) if len(self._seen) < KNOWN else None
        if like is not None:
            self._seen[name] = like

    def _as_seen(self, name: str, address: int) -> NDArray[Any] | None:
        """The values of a dataset like the one of this name that was seen, in one chunk; None of another."""
        like = self._seen.get(name)
        if like is None:
            return None
        raw = self._objects.bytes_at(address, like.length)
        for begin, end, known in like.same:
            if raw[begin:end] != known:
                return None
        shape, (place, *rest) = like.sides.unpack_from(raw, like.sides_at), like.address.unpack_from(raw, like.address_at)
        chunk, size = (tuple(rest), 0) if like.leaf else (shape, rest[0])
        if like.leaf is not None:
            leaf = self._objects.bytes_at(place, like.leaf.size)
            size, mask, *first, place = like.leaf.unpack(leaf)
            if leaf[:24] != ONE_LEAF or mask or any(first):
                return None
        if size != math.prod(chunk) * like.dtype.itemsize or not 0 < size <= LOADED:
            return None
        values = self._objects.array(place, like.dtype, chunk)
        if shape != values.shape:
            if not all(0 < side <= of for side, of in zip(shape, chunk, strict=True)):
                return None
            values = values[tuple(map(slice, shape))]
        return values.astype(np.bool_) if like.is_boolean else values.copy()

    def _from_chunks(self, layout: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        sides, (tree,) = layout[2], unpacked("<Q", layout[3:])
        *chunk, itemsize = unpacked(f"<{sides}I", layout[11:])
        if len(chunk) != len(shape) or not shape or itemsize != dtype.itemsize or not all(chunk):
            raise Unlike
        counts = [-(-side // of) for side, of in zip(shape, chunk, strict=True)]
        if math.prod(chunk) * itemsize > 2 * LOADED or not 0 < math.prod(counts) <= PIECES:
            raise Unlike
        seen, values = set[tuple[int, ...]](), np.empty(0)
        for key, address in self._objects.leaves(tree, 1, 8 + 8 * sides, set()):
            size, mask, *first, last = unpacked(f"<II{sides}Q", key)
            place = tuple(first)
            inside = all(at % of == 0 and at < side for at, of, side in zip(first, chunk, shape, strict=True))
            if mask or last or not inside or place in seen or size != math.prod(chunk) * itemsize:
                raise Unlike
            seen.add(place)
            found = self._objects.array(address, dtype, chunk)
            found = found[tuple(slice(0, side - at) for side, at in zip(shape, first, strict=True))]
            if math.prod(counts) == 1:
                values = found
                continue
            values = values if len(values) else np.empty(shape, dtype)
            values[tuple(slice(at, at + many) for at, many in zip(first, found.shape, strict=True))] = found
        if len(seen) != math.prod(counts):
            raise Unlike
        return values
