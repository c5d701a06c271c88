"""Groups of one form, read many at a time: compared with one of them, and what differs taken from all at once.

A file with a group for each episode has the same objects in each: headers, tables of names, B-trees, which differ in addresses,
numbers of rows and values of attributes. `GroupLikeness` is what they share; `Comparison` holds the bytes of many groups that
lie beside each other, and says which of them are alike. What a byte may say is checked as for one group
(`plain_file.py`), which has read that one; groups that are not alike are read there, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from offline_cli.formats.hdf5.messages import plain_text
from offline_cli.formats.hdf5.nodes import Alike
from offline_cli.formats.hdf5.plain_messages import (
    ATTRIBUTE,
    ONE_LEAF,
    TABLE,
    AttributeKind,
    Likeness,
    Pattern,
    Unlike,
    text_of,
    unpacked,
)
from offline_cli.formats.hdf5.plain_objects import TEXTS, PlainObjects

__all__ = ["FEWEST", "Comparison", "beside_each_other", "likeness_of"]

WINDOW: Final = 16 << 20  # bytes of a file that are looked at together
SLOP: Final = 256 << 10  # bytes before the first group and after the last, where parts of theirs may lie
START, NODE, ENTRY, HEAP = 16, 40, 40, 32  # bytes: of a header before messages, of a B-tree's start, of a member, of names
FEWEST: Final = 16  # groups for which it pays
DEAR: Final = 4  # times what a text's bytes count: it may take four in memory for each
OBJECTS: Final = 64 << 20  # bytes of the values of attributes in one window, as Python's objects
TEXT: Final = np.dtype([("length", "<u4"), ("place", "<u8"), ("index", "<u4")])
LONGEST_SIDE: Final = (1 << 31) - 1
Bytes = NDArray[np.uint8]
Addresses = NDArray[np.int64]
Texts = Callable[[int, int], bytes]
"""The text of a collection's address and an index."""


class Place(NamedTuple):
    """Of a message's content in a header."""

    block: int
    at: int


@dataclass(frozen=True, slots=True)
class GroupLikeness:
    """A group, but for addresses and the values of its attributes, with all that is below it."""

    blocks: tuple[Pattern, ...]  # of its header
    more: tuple[Place, ...]  # where the addresses of all blocks but the first are
    table: Place  # of the addresses of its B-tree and of its names
    attributes: tuple[tuple[AttributeKind, Place], ...]  # those that are wanted, by name
    heap: Pattern  # where it is said where names are
    names: Pattern
    tree: Pattern  # the start of its B-tree
    entries: Pattern | None  # None: it is empty
    members: tuple[tuple[str, int, GroupLikeness | Likeness], ...]  # name, where its address is in `entries`


class Stored(NamedTuple):
    """Where a dataset of all groups is."""

    like: Likeness
    rows: NDArray[np.int64]  # (N,)
    offsets: NDArray[np.int64]  # (N,) of the first value, in the window


class Comparison:
    """Many groups: `fits` says which of them are alike. Raises Unlike where none is, or more is asked than they can have."""

    def __init__(self, first: int, data: bytes, count: int) -> None:
        """`data`: the bytes of the file from `first` on."""
        self.fits = np.ones(count, np.bool_)
        self._first, self._data = first, np.frombuffer(data, np.uint8)
        self._left = len(data)  # of what is taken: no byte belongs to two objects
        self._stored: dict[str, Stored] = {}

    def alike(self, names: Sequence[str], like: GroupLikeness, addresses: Addresses, text_at: Texts) -> Alike:
        """Those of the groups that are."""
        blocks = self._group(like, addresses, "")
        attributes = self._attributes(like, blocks, text_at)
        return Alike(
            names=[name for name, fits in zip(names, self.fits.tolist(), strict=True) if fits],
            attributes=attributes,
            rows={name: stored.rows[self.fits] for name, stored in self._stored.items()},
            values={name: self._values(stored) for name, stored in self._stored.items()},
        )

    def _attributes(self, like: GroupLikeness, blocks: Sequence[Bytes], text_at: Texts) -> list[dict[str, Any]]:
        """Of each group that fits, by name."""
        told = [(kind, blocks[place.block], place.at) for kind, place in like.attributes]
        texts = [(kind.text, columns(block, at, TEXT, 1)[:, 0]) for kind, block, at in told if kind.dtype is None]
        lengths = sum((text["length"].astype(np.int64) for _, text in texts), np.zeros(len(self.fits), np.int64))
        self._keep(lengths <= TEXTS)
        self._spend(DEAR * int(lengths[self.fits].sum()))
        if int(self.fits.sum()) * sum(kind.cost for kind, _, _ in told) > OBJECTS:
            raise Unlike
        found = {kind.text: kind.numbers(block[self.fits], at) for kind, block, at in told if kind.dtype is not None}
        found |= {name: [] for name, _ in texts}
        for row in zip(*(text[self.fits].tolist() for _, text in texts), strict=True):  # a group's are beside each other
            for (name, _), one in zip(texts, row, strict=True):
                found[name].append(text_of(text_at, *one))
        if not told:
            return [{} for _ in range(int(self.fits.sum()))]
        keys = [kind.text for kind, _, _ in told]
        return [dict(zip(keys, row, strict=True)) for row in zip(*(found[key] for key in keys), strict=True)]

    def _group(self, like: GroupLikeness, addresses: Addresses, prefix: str) -> list[Bytes]:
        """The blocks of its headers."""
        blocks = [self._fitting(like.blocks[0], addresses)]
        for pattern, place in zip(like.blocks[1:], like.more, strict=True):
            blocks.append(self._fitting(pattern, column(blocks[place.block], place.at, "<i8")))
        tree, heap = (column(blocks[like.table.block], like.table.at + at, "<i8") for at in (0, 8))
        start = self._fitting(like.heap, heap)
        self._fitting(like.names, column(start, 24, "<i8"))
        node = self._fitting(like.tree, tree)
        if like.entries is None:
            return blocks
        entries = self._fitting(like.entries, column(node, 32, "<i8"))
        for name, at, member in like.members:
            below = column(entries, at, "<i8")
            if isinstance(member, GroupLikeness):
                self._group(member, below, f"{prefix}{name}/")
            else:
                self._stored[prefix + name] = self._dataset(member, below)
        return blocks

    def _dataset(self, like: Likeness, addresses: Addresses) -> Stored:
        header = self._fitting(like.pattern, addresses)
        sides = columns(header, like.sides_at, "<i8", len(like.shape))
        rows, width = sides[:, 0], math.prod(like.shape[1:]) * like.dtype.itemsize
        self._keep((sides[:, 1:] == like.shape[1:]).all(1) & (rows > 0) & (rows <= LONGEST_SIDE))
        whole, place = rows, column(header, like.address_at, "<i8")
        if like.leaf is None:
            self._keep(column(header, like.address_at + 8, "<i8") == rows * width)
        else:
            chunk = columns(header, like.address_at + 8, "<u4", len(like.shape)).astype(np.int64)
            whole = chunk[:, 0]
            leaf = self._rows(place, like.leaf.size)
            size, mask = (column(leaf, at, "<u4") for at in (24, 28))
            is_one = (leaf[:, :24] == np.frombuffer(ONE_LEAF, np.uint8)).all(1) & (mask == 0)
            is_one &= (columns(leaf, 32, "<i8", len(like.shape) + 1) == 0).all(1)
            self._keep(is_one & (chunk[:, 1:] == like.shape[1:]).all(1) & (rows <= whole) & (size == whole * width))
            place = column(leaf, like.leaf.size - 8, "<i8")
        return Stored(like, rows, self._offsets(place, whole * width))

    def _values(self, stored: Stored) -> NDArray[Any]:
        like, width = stored.like, math.prod(stored.like.shape[1:]) * stored.like.dtype.itemsize
        first = stored.offsets[self.fits]
        ends = first + stored.rows[self.fits] * width
        self._spend(int((ends - first).sum()))
        parts = [self._data[start:stop] for start, stop in zip(first.tolist(), ends.tolist(), strict=True)]
        values = np.concatenate(parts).view(like.dtype).reshape(-1, *like.shape[1:])
        return values.astype(np.bool_) if like.is_boolean else values

    # ---- bytes: whatever is said of groups that do not fit means nothing ----

    def _fitting(self, pattern: Pattern, addresses: Addresses) -> Bytes:
        """The bytes there; groups of whose other bytes they are do not fit."""
        found = self._rows(addresses, len(pattern.raw))
        self._keep(pattern.fits(found))
        return found

    def _rows(self, addresses: Addresses, size: int) -> Bytes:
        """(N, size) bytes at the addresses."""
        offsets = self._offsets(addresses, size)
        self._spend(size * len(offsets))
        return sliding_window_view(self._data, size)[offsets]

    def _offsets(self, addresses: Addresses, size: Addresses | int) -> Addresses:
        """Where so many bytes at the addresses begin in `data`, in which they are."""
        offsets = addresses - self._first
        self._keep((offsets >= 0) & (offsets <= len(self._data) - size))
        return np.where(self.fits, offsets, 0)

    def _keep(self, fits: NDArray[np.bool_]) -> None:
        self.fits &= fits
        if not self.fits.any():
            raise Unlike

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise Unlike


def beside_each_other(addresses: Addresses, size: int) -> tuple[int, int, int]:
    """Of a file of that size: how many of the groups are looked at together, and the bytes [first, stop) of these.

    Raises Unlike where so few of them are near each other that it does not pay.
    """
    lowest, highest = np.minimum.accumulate(addresses), np.maximum.accumulate(addresses)
    near = (addresses >= 0) & (highest - lowest < WINDOW - 2 * SLOP)
    count = len(near) if near.all() else int(np.argmin(near))
    if count < min(FEWEST, len(addresses)):
        raise Unlike
    first, last = int(lowest[count - 1]), int(highest[count - 1])
    each = SLOP + 2 * (last - first) // count  # of the last one, too
    return count, max(0, first - SLOP), min(size, max(first + SLOP, last + each))


def likeness_of(objects: PlainObjects, address: int, passed_over: Collection[str]) -> GroupLikeness:
    """Of the group there, which has been read. Raises Unlike where it has a form of which one is read at a time."""
    header = objects.header(address)
    ((_, size), *others) = header.blocks
    raw = [objects.bytes_at(address, START + size), *(objects.bytes_at(*block) for block in others)]
    differ: list[list[tuple[int, int]]] = [[] for _ in raw]
    tables, attributes = list[Place](), list[tuple[AttributeKind, Place]]()
    for (block, at), (kind, data) in zip(map(_place, header.places), header.messages, strict=True):
        begin = at
        if kind == TABLE:
            tables.append(Place(block, at))
        elif kind == ATTRIBUTE:
            one = AttributeKind.of(data)
            begin += one.at
            if one.text not in passed_over:
                attributes.append((one, Place(block, begin)))
        differ[block].append((begin, at + len(data)))
    more = tuple(map(_place, header.more))
    for block, at in more:
        differ[block].append((at, at + 8))
    if len(tables) != 1:
        raise Unlike
    blocks = tuple(Pattern.of(one, places) for one, places in zip(raw, differ, strict=True))
    attributes.sort(key=lambda one: one[0].name)
    tree, heap = unpacked("<QQ", raw[tables[0].block][tables[0].at :])
    return GroupLikeness(blocks, more, tables[0], tuple(attributes), *_members(objects, tree, heap))


def _place(place: tuple[int, int]) -> Place:
    """In a block with what comes before the messages."""
    block, at = place
    return Place(block, at + START if block == 0 else at)


def _members(
    objects: PlainObjects, tree: int, heap: int
) -> tuple[Pattern, Pattern, Pattern, Pattern | None, tuple[tuple[str, int, GroupLikeness | Likeness], ...]]:
    """The last five parts of a group's likeness."""
    told = objects.bytes_at(heap, HEAP)
    size, _, place = unpacked("<8xQQQ", told)
    heaps = Pattern.of(told, [(16, HEAP)])
    names, start, nodes = objects.bytes_at(place, size), objects.bytes_at(tree, NODE), list(objects.leaves(tree, 0, 8, set()))
    if start[5]:  # what is below the first node is not compared
        raise Unlike
    if not nodes:
        return heaps, Pattern.of(names, [(0, size)]), Pattern.of(start, [(8, NODE)]), None, ()
    if len(nodes) > 1:
        raise Unlike
    (count,) = unpacked("<6xH", objects.bytes_at(nodes[0][1], 8))
    entries = objects.bytes_at(nodes[0][1], 8 + ENTRY * count)
    unused, differ = np.ones(size + 1, np.int8), list[tuple[int, int]]()
    members = list[tuple[str, int, GroupLikeness | Likeness]]()
    for at in range(8, len(entries), ENTRY):
        begin, address = unpacked("<QQ", entries[at:])
        end = names.index(b"\0", begin)
        unused[begin : end + 1] = 0
        differ += (at + 8, at + 16), (at + 20, at + ENTRY)
        members.append((plain_text(names[begin:end]), at + 8, _member(objects, address)))
    edges = np.flatnonzero(np.diff(np.concatenate([[0], unused[:size], [0]]))).reshape(-1, 2)
    free = [(int(first), int(stop)) for first, stop in edges]
    return heaps, Pattern.of(names, free), Pattern.of(start, [(8, NODE)]), Pattern.of(entries, differ), tuple(members)


def _member(objects: PlainObjects, address: int) -> GroupLikeness | Likeness:
    if any(kind == TABLE for kind, _ in objects.header(address).messages):
        return likeness_of(objects, address, ())
    (size,) = unpacked("<8xI", objects.bytes_at(address, 12))
    like = Likeness.of(objects.bytes_at(address, START + size))
    if like is None:
        raise Unlike
    return like


def columns(rows: Bytes, at: int, kind: Any, count: int) -> NDArray[Any]:
    """(N, count) numbers, which begin at that byte of each row."""
    return np.ascontiguousarray(rows[:, at : at + count * np.dtype(kind).itemsize]).view(kind)


def column(rows: Bytes, at: int, kind: str) -> NDArray[Any]:
    """(N,) numbers at that byte of each row."""
    found: NDArray[Any] = columns(rows, at, kind, 1)[:, 0]
    return found
