"""Kinds of item: those of one layout that also agree in every length, and in every byte outside their values.

Short episodes cost more for what lies around their steps than for the steps, and one writer's episodes of one length are the
same bytes but for ids, clocks, a text, and the payloads of arrays. So an item that an `ItemPlan` has read serves as the model
for the next item of as many bytes: that is cut at the same places with one call, and all fixed bytes are compared at once. Only
bytes whose value the plan would not look at may vary (payloads, seconds), and text, which is decoded as the plan does it: a
kind gives the row that the plan would give, or none, and then the plan reads the item.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from offline_cli.episodes.codec.fields import (
    FLOAT64,
    KEEP_VIEW,
    Program,
    ReadField,
    read_clock,
    read_infos,
    read_mapping,
    read_name,
)

__all__ = ["Kinds"]

Make = Callable[[Any], Any]
Free = tuple[int, str, Make]
"""The free bytes at the end of a field: how many, what `struct` takes them for, and how the field's value is made from it."""

KINDS_BYTES = 2 << 20  # of constants that a plan keeps
TIMES = 2  # items of a size before one of them is worth learning
ALIKE = 4  # kinds of one size, each of which costs an attempt
PATIENCE = 256  # kinds made, and items tried in vain, before it must have paid off: making a kind costs what two matches save


class _NoKind(Exception):
    """A field that is rarely the same twice, such as infos that are not empty."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Constant and free bytes in turn, beginning and ending with constants."""

    cut: Callable[[bytes], tuple[Any, ...]]
    constants: tuple[bytes, ...]
    row: list[Any]  # what all its items share, and the free values of one of them
    payloads: tuple[tuple[int, int, int], ...]  # (slot, part, rows)
    values: tuple[tuple[int, int, Make], ...]  # (slot, part, how its value is made)

    def read(self, data: bytes) -> list[Any] | None:
        """The row of an item of the same size; None when it is of another kind."""
        parts = self.cut(data)
        if parts[::2] != self.constants:
            return None
        row = self.row.copy()
        for slot, part, rows in self.payloads:
            row[slot] = rows, parts[part]
        try:
            for slot, part, make in self.values:
                row[slot] = make(parts[part])
        except UnicodeDecodeError:
            return None
        return row


class Kinds:
    """The kinds that one plan has seen, by size of item.

    Learns as long as that pays off, and drops all when it holds too much.
    """

    def __init__(self) -> None:
        self._times: dict[int, int] = {}  # that items of a size were read at length
        self._by_size: dict[int, list[_Kind]] = {}
        self._bytes = self._made = self._met = self._missed = 0

    def read(self, data: bytes) -> list[Any] | None:
        """The row of an item of a kind that was seen before; None for any other."""
        alike = self._by_size.get(len(data), ())
        for kind in alike:
            row = kind.read(data)
            if row is not None:
                self._met += 1
                return row
        self._missed += len(alike)
        return None

    def learn(self, data: bytes, row: Sequence[Any], fields: Program, arrays: Container[int]) -> None:
        """Learn the kind of `data`, if it is at least the third item of its size: more are likely to come.

        `row` is what `fields` read from it, at the slots `arrays` arrays.
        """
        size = len(data)
        if size >= KEEP_VIEW:  # a kind saves little compared with copying the payloads
            return
        if self._missed > PATIENCE + self._met:
            self._by_size.clear()
        elif self._times.get(size, 0) < TIMES:
            self._times[size] = self._times.get(size, 0) + 1
        elif self._made <= PATIENCE + self._met // 2 and len(self._by_size.get(size, ())) < ALIKE:
            self._made += 1
            with suppress(_NoKind):
                self._add(size, _kind_of(data, row, fields, arrays))

    def _add(self, size: int, kind: _Kind) -> None:
        self._bytes += sum(map(len, kind.constants))
        if self._bytes > KINDS_BYTES:
            self._by_size.clear()
            self._bytes = 0
        else:
            self._by_size.setdefault(size, []).append(kind)


def _kind_of(data: bytes, row: Sequence[Any], fields: Program, arrays: Container[int]) -> _Kind:
    cuts, common = _Cuts(data), list(row)
    payloads: list[tuple[int, int, int]] = []
    values: list[tuple[int, int, Make]] = []
    at = 0
    for slot, (_, size, read) in enumerate(fields):
        first, value = at + size, row[slot]
        free = None if slot in arrays else _free(read, value, data[first])
        _, at = read(data, first)
        if slot in arrays:
            rows, payload = value
            payloads.append((slot, cuts.free(len(payload), at, f"{len(payload)}s"), rows))
            common[slot] = None  # the item need not be kept for its payload
        elif free is not None:
            length, form, make = free
            values.append((slot, cuts.free(length, at, form), make))
    return _Kind(cuts.end(), tuple(cuts.constants), common, tuple(payloads), tuple(values))


class _Cuts:
    """Where one item is cut into constant and free parts."""

    def __init__(self, data: bytes) -> None:
        self.data, self.done = data, 0
        self.form = ">"
        self.constants: list[bytes] = []

    def free(self, length: int, stop: int, form: str) -> int:
        """Which part the `length` bytes before `stop` are, for `struct` a `form`."""
        self._constant(stop - length)
        self.form += form
        self.done = stop
        return 2 * len(self.constants) - 1

    def end(self) -> Callable[[bytes], tuple[Any, ...]]:
        """The struct that cuts an item of the same size."""
        self._constant(len(self.data))
        return struct.Struct(self.form).unpack

    def _constant(self, stop: int) -> None:
        self.constants.append(self.data[self.done : stop])
        self.form += f"{stop - self.done}s"


def _free(read: ReadField, value: Any, code: int) -> Free | None:
    """The free part of the field that `read` read as `value`, and that begins with the byte `code`; None where nothing is."""
    if read is read_name and value is not None:
        return _free_text(value, bytes.decode)
    if read is read_clock and code == FLOAT64:
        return 8, "d", float
    if read is read_mapping:
        return _free_mapping(value)
    if read is read_infos and value[1] is not None:
        raise _NoKind
    return None


def _free_text(text: str, make: Make) -> Free:
    size = len(text.encode())
    return size, f"{size}s", make


def _free_mapping(values: Mapping[Any, Any]) -> Free:
    """Of a map with one text, as every episode of a table has it, the text; of an empty one nothing, but each has its own."""
    if not values:
        return 0, "0s", lambda _: {}
    ((key, value), *more) = values.items()
    if more or type(value) is not str:  # numpy has texts that are packed otherwise
        raise _NoKind
    return _free_text(value, lambda part: {key: part.decode()})
