"""Read lists of equally laid out values as one array, without an object per value; a single differing byte is a mismatch.

RLlib's recorder packs one small array per step. If all steps have the same size and differ only in their payload, the list is
a table: some byte columns are constant (headers, keys, dtypes, shapes), the others payload. `ItemTemplate` describes one row.
It is learned by repacking the first value, so it matches only bytes that the standard packer writes; every constant byte of
every row is compared with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.codec.arrays import (
    bin_header,
    dtype_from_type,
    list_header,
    map_header,
    pack,
    shape_from_node,
    unpack_first,
)
from offline_cli.errors import OfflineCliError
from offline_cli.trees import Tree, map_leaves

__all__ = ["ItemTemplate", "learn_template"]

FIXINT_LOW = -32
INT_CODES = {0xCC: ">u1", 0xCD: ">u2", 0xCE: ">u4", 0xD0: ">i1", 0xD1: ">i2", 0xD2: ">i4", 0xD3: ">i8"}
FLOAT64_CODE = 0xCB
MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Payload:
    """The bytes of one leaf within a row."""

    start: int
    stop: int
    stored: np.dtype[Any]  # in the bytes
    wanted: np.dtype[Any]  # in the array
    shape: tuple[int, ...]  # of one step
    fixint: bool = False  # a msgpack fixint: value and type share one byte, so the value must stay in range


@dataclass(frozen=True, slots=True)
class ItemTemplate:
    """One row of a strided list: constant bytes and payloads."""

    size: int
    head: bytes  # the bytes up to the first payload
    constants: tuple[tuple[int, int, NDArray[np.uint8]], ...]  # (start, stop, bytes)
    payloads: Tree  # of Payload, in the structure of one value

    def read(self, data: bytes | bytearray, start: int, count: int) -> Tree | None:
        """Leaves (count, *shape) of `count` values from byte `start`; None unless all match the template."""
        if start + count * self.size > len(data):
            return None
        rows = np.frombuffer(data, np.uint8, count * self.size, start).reshape(count, self.size)
        for first, stop, wanted in self.constants:
            if not np.array_equal(rows[:, first:stop], np.broadcast_to(wanted, (count, stop - first))):
                return None
        try:
            return map_leaves(lambda payload: _read_payload(rows, payload), self.payloads)
        except _OutOfRange:
            return None


class _OutOfRange(Exception):
    """A byte is no fixint or bool although the template has one there."""


def _read_payload(rows: NDArray[np.uint8], payload: Payload) -> NDArray[Any]:
    shape = (len(rows), *payload.shape)
    if payload.start == payload.stop:
        return np.zeros(shape, payload.wanted)
    raw = np.ascontiguousarray(rows[:, payload.start : payload.stop])
    values = raw.view(payload.stored).reshape(shape)
    if payload.fixint and int(values.min()) < FIXINT_LOW:
        raise _OutOfRange
    if values.dtype.kind == "b" and int(raw.max()) > 1:
        raise _OutOfRange
    return values if values.dtype == payload.wanted and values.flags.writeable else values.astype(payload.wanted)


def learn_template(data: bytes, start: int, *, where: str) -> ItemTemplate | None:
    """The template of the value at byte `start`; None if it holds anything but arrays and numbers, or is packed unusually.

    Raises UnsafeData and BadEpisode as `arrays.unpack` does.
    """
    value, stop = unpack_first(data, start, where=where, raw=True)
    builder = _Builder(where)
    try:
        payloads = builder.add(value, 0)
    except _NotStrided:
        return None
    if builder.image != data[start:stop]:
        return None
    return ItemTemplate(len(builder.image), builder.head(), builder.constants(), payloads)


class _NotStrided(Exception):
    """The packed size of a value may vary between steps."""


class _Builder:
    """Repacks a value and records the offsets of its payloads."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.image = bytearray()
        self.spans: list[tuple[int, int]] = []

    def add(self, value: Any, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise _NotStrided
        if isinstance(value, dict):
            return self._node(value) if b"nd" in value else self._dict(value, depth)
        if isinstance(value, list):
            if all(isinstance(part, (bool, int, float)) for part in value):
                raise _NotStrided  # a vector is one leaf, not a tuple of leaves
            self.image += list_header(len(value))
            return tuple(self.add(part, depth + 1) for part in value)
        return self._number(value)

    def head(self) -> bytes:
        return bytes(self.image[: self.spans[0][0]] if self.spans else self.image)

    def constants(self) -> tuple[tuple[int, int, NDArray[np.uint8]], ...]:
        image = np.frombuffer(bytes(self.image), np.uint8)
        edges = [0, *(edge for span in self.spans for edge in span), len(image)]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return tuple((first, stop, image[first:stop]) for first, stop in pairs if stop > first)

    def _dict(self, value: dict[Any, Any], depth: int) -> Tree:
        self.image += map_header(len(value))
        tree: dict[str, Tree] = {}
        for key, part in value.items():
            if not isinstance(key, str):
                raise _NotStrided
            self.image += pack(key)
            tree[key] = self.add(part, depth + 1)
        return tree

    def _node(self, node: dict[Any, Any]) -> Payload:
        try:
            dtype = dtype_from_type(node.get(b"type"), kind=node.get(b"kind", b""), where=self.where)
            shape = shape_from_node(node, where=self.where) if node[b"nd"] is True else ()
        except OfflineCliError:
            raise _NotStrided from None  # `decode` reports the error
        data = node.get(b"data")
        if not isinstance(data, bytes) or len(data) != math.prod(shape) * dtype.itemsize or dtype.kind == "U":
            raise _NotStrided  # `decode` validates the characters of text
        self.image += map_header(len(node))
        span = (0, 0)
        for key, part in node.items():
            self.image += pack(key)
            if key == b"data":
                self.image += bin_header(len(data))
                span = self._span(data)
            else:
                self.image += pack(part)
        return Payload(*span, stored=dtype, wanted=dtype, shape=shape)

    def _number(self, value: Any) -> Payload:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _NotStrided
        packed = pack(value)
        if len(packed) == 1:
            return Payload(*self._span(packed), stored=np.dtype("i1"), wanted=np.dtype(np.int64), shape=(), fixint=True)
        self.image += packed[:1]
        span = self._span(packed[1:])
        if packed[0] == FLOAT64_CODE:
            return Payload(*span, stored=np.dtype(">f8"), wanted=np.dtype(np.float64), shape=())
        if packed[0] not in INT_CODES:
            raise _NotStrided
        return Payload(*span, stored=np.dtype(INT_CODES[packed[0]]), wanted=np.dtype(np.int64), shape=())

    def _span(self, payload: bytes) -> tuple[int, int]:
        span = (len(self.image), len(self.image) + len(payload))
        self.image += payload
        self.spans.append(span)
        return span
