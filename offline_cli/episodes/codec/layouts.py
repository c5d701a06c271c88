"""Layouts of packed episodes: constant bytes with fields between them, learned from one item and matched against others.

Episodes of one recording differ in few places: ids, lengths, flags, array bytes. A layout is learned from one item by repacking
its parts; it then reads other items with a handful of byte comparisons and slices instead of a Python object per value. It
handles our items (arrays) and those of RLlib's recorder (lists of steps). An item that does not match to the last byte goes to
`decode`, so a layout never has to validate hostile bytes.

A name, clock, lookback or map that is empty in the learned item is constant; an item that has one needs another layout.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import forms
from offline_cli.episodes.codec.arrays import (
    check_values,
    dtype_from_type,
    list_header,
    pack,
    shape_from_node,
    unpack_first,
    unpack_raw,
)
from offline_cli.episodes.codec.strided_lists import ItemTemplate, learn_template
from offline_cli.episodes.episode_spaces import known_space_from_rllib, space_in_state, zero_rows
from offline_cli.episodes.stacking import concatenate, stack
from offline_cli.errors import BadEpisode, OfflineCliError
from offline_cli.spaces import Space
from offline_cli.tally import Tally
from offline_cli.trees import Tree

Read = Callable[[bytes, int], tuple[Any, int]]
"""(item, start) to (value, end offset). The end may be past the item: offsets only grow, and the layout checks the last one."""

Column = Sequence[tuple[int, Any]]  # for each item: the number of rows, and their bytes or values
NAMES = ("agent_id", "module_id", "multi_agent_episode_id")
NIL, FALSE, TRUE, FLOAT64, EMPTY_MAP = 0xC0, 0xC2, 0xC3, 0xCB, 0x80
UINT_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4}
BIN_WIDTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4}
LIST_WIDTHS = {0xDC: 2, 0xDD: 4}
MARK, NO_PAYLOAD = os.urandom(16), b""
BOOL_NODE = pack(np.False_)[:-1]  # a packed numpy bool without its payload byte
KEEP_VIEW = 1 << 12  # larger payloads stay views of their item until they are joined
CUT_BYTES = 1 << 16  # larger items get no `_Cut`
MAX_CUTS = 512  # per layout
ODD = (
    msgpack.PackException,
    ArithmeticError,
    AttributeError,
    TypeError,
    ValueError,
)  # raised by unusual values
MAX_NESTING = 32  # of a buffer's leaves
INSIDE = "one packed episode"  # placeholder: users never see these errors, `decode` raises them again with the place


class Mismatch(Exception):
    """The bytes do not match the layout."""


class _NoLayout(Exception):
    """Only `decode` can read this item."""


@dataclass(frozen=True, slots=True)
class ArrayField:
    """An array of rows (numpy'ized data), from its first dimension to its last byte."""

    index: int  # in the row of field values
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of one row
    middle: bytes  # between the first dimension and the payload
    row_bytes: int

    def read(self, data: bytes, start: int) -> tuple[tuple[int, bytes | memoryview], int]:
        """Read the number of rows and their bytes."""
        rows, at = read_uint(data, start)
        if not data.startswith(self.middle, at):
            raise Mismatch
        at += len(self.middle)
        width = BIN_WIDTHS.get(data[at], 0)
        first = at + 1 + width
        stop = first + rows * self.row_bytes
        if not width or int.from_bytes(data[at + 1 : first], "big") != stop - first or stop > len(data):
            raise Mismatch
        return (rows, data[first:stop] if stop - first < KEEP_VIEW else memoryview(data)[first:stop]), stop

    def joined(self, column: Column, skip: Sequence[int], space: Space | None, tally: Tally) -> NDArray[Any]:
        """Concatenate the rows of all items to (rows, *shape), without the first `skip` rows of each."""
        payloads = [payload for _, payload in column]
        if any(skip):
            payloads = [payload[k * self.row_bytes :] for payload, k in zip(payloads, skip, strict=True)]
        rows = sum(count for count, _ in column) - sum(skip)
        array = np.frombuffer(bytearray().join(payloads), self.dtype).reshape(rows, *self.shape)
        check_values(array, where=INSIDE)
        return array


@dataclass(frozen=True, slots=True)
class StepsField:
    """A list with one value per step (data that is not numpy'ized): a table of equal rows, or any values without a template."""

    index: int
    template: ItemTemplate | None

    def read(self, data: bytes, start: int) -> tuple[tuple[int, Any], int]:
        """Read the number of steps and their bytes or values; `joined` compares many items with the template at once."""
        size, first = read_list_size(data, start)
        if self.template is None:
            values, stop = unpack_first(data, start, where=INSIDE)
            return (size, values), stop
        stop = first + size * self.template.size
        if stop > len(data) or not (size == 0 or data.startswith(self.template.head, first)):
            raise Mismatch
        return (size, data[first:stop] if stop - first < KEEP_VIEW else memoryview(data)[first:stop]), stop

    def joined(self, column: Column, skip: Sequence[int], space: Space | None, tally: Tally) -> Tree:
        """Concatenate all items to leaves (rows, *shape), without the first `skip` rows of each; BadEpisode if steps differ."""
        parts = [values for _, values in column]
        if self.template is not None:
            parts = [rows[k * self.template.size :] if k else rows for rows, k in zip(parts, skip, strict=True)]
            table = bytearray().join(parts)
            tree = self.template.read(table, 0, len(table) // self.template.size)
            if tree is None:
                raise BadEpisode("steps differ in more than their values", where=INSIDE, fix="")
            return tree
        trees = [stack(part, space, tally=tally) for values, k in zip(parts, skip, strict=True) if (part := values[k:])]
        if any(forms(tree, "") != forms(trees[0], "") for tree in trees):
            raise BadEpisode("steps have different structures", where=INSIDE, fix="")
        return concatenate(*trees) if trees else zero_rows(space, 0)


@dataclass(frozen=True, slots=True)
class BufferFields:
    """The fields of one buffer."""

    data: Tree  # of ArrayField; a StepsField for a list; the field index for infos
    lookback: int | None  # None: always 0


class _Cut:
    """Splits items of one size and equal constant bytes with one `struct` call.

    In short episodes the bytes around the steps cost more than the steps. Only bytes that the fields' readers do not validate
    may vary (payloads, seconds), and text.
    """

    def __init__(self, data: bytes, row: Sequence[Any], fields: Sequence[tuple[bytes, int, Read]]) -> None:
        """Raises `_NoLayout` for a field whose size rarely repeats, such as non-empty infos."""
        self.row = list(row)  # values that all its items share
        self.free: list[tuple[int, Callable[[Any], Any]]] = []  # (index in the row, converter)
        constants, form, at, done = list[bytes](), ">", 0, 0
        for index, (_, size, read) in enumerate(fields):
            start = at + size
            _, at = read(data, start)
            span = _free_span(read, row[index], data[start])
            if span is not None:
                length, code, make = span
                constants.append(data[done : at - length])
                form += f"{at - length - done}s{code}"
                self.free.append((index, make))
                self.row[index], done = None, at
        self.constants = (*constants, data[done:])
        self.split = struct.Struct(f"{form}{len(data) - done}s").unpack

    def read(self, data: bytes) -> list[Any] | None:
        """The field values of an item of the same size; None if its constant bytes differ."""
        parts = self.split(data)
        if parts[::2] != self.constants:
            return None
        row = self.row.copy()
        try:
            for (index, make), part in zip(self.free, parts[1::2], strict=True):
                row[index] = make(part)
        except UnicodeDecodeError:
            return None
        return row


def _free_span(read: Read, value: Any, code: int) -> tuple[int, str, Callable[[Any], Any]] | None:
    """Variable bytes at the end of a field: their count, `struct` format and converter; None for a constant field."""
    if isinstance(value, tuple) and read is not read_infos:
        rows, payload = value
        return len(payload), f"{len(payload)}s", lambda part: (rows, part)
    if read is read_clock and code == FLOAT64:
        return 8, "d", float
    if read is read_name and value is not None:
        size = len(value.encode())
        return size, f"{size}s", bytes.decode
    if (read is read_infos and value[1] is not None) or (read is read_mapping and value):
        raise _NoLayout
    return None


@dataclass(frozen=True, slots=True)
class ItemLayout:
    """Fields, each with its preceding constant bytes and their number, and the `tail` after the last."""

    fields: tuple[tuple[bytes, int, Read], ...]
    tail: bytes
    slots: dict[str, int]  # indices of single-value fields
    buffers: dict[str, BufferFields]  # observations, actions, rewards, infos
    extra: dict[str, BufferFields]  # by output name
    is_listed: bool  # not numpy'ized: such items are long and get no `_Cut`
    observation_space: Space | None
    action_space: Space | None
    cuts: dict[int, _Cut | None] = field(default_factory=dict)  # by item size; None: seen once, or not worth it

    def read(self, data: bytes) -> list[Any] | None:
        """The field values of an item; None if it has another layout. Rows of lists are compared later, by `joined`."""
        size = len(data)
        cut = self.cuts.get(size)
        row = None if cut is None else cut.read(data)
        if row is not None:
            return row
        row = self._read(data)
        if row is not None and cut is None and size < CUT_BYTES and not self.is_listed and len(self.cuts) < MAX_CUTS:
            with suppress(_NoLayout):
                self.cuts[size] = _Cut(data, row, self.fields) if size in self.cuts else None
        return row

    def _read(self, data: bytes) -> list[Any] | None:
        row: list[Any] = []
        at = 0
        try:
            for constant, size, read in self.fields:
                if not data.startswith(constant, at):
                    return None
                value, at = read(data, at + size)
                row.append(value)
        except (Mismatch, IndexError, struct.error, OfflineCliError):  # IndexError: truncated in a field
            return None
        return row if at + len(self.tail) == len(data) and data.endswith(self.tail) else None


# ---- readers of single values ----


def read_uint(data: bytes, start: int) -> tuple[int, int]:
    """A non-negative integer below 2^32."""
    code = data[start]
    if code < 0x80:
        return code, start + 1
    if code not in UINT_WIDTHS:
        raise Mismatch
    stop = start + 1 + UINT_WIDTHS[code]
    return int.from_bytes(data[start + 1 : stop], "big"), stop


def read_list_size(data: bytes, start: int) -> tuple[int, int]:
    """The number of values of the list at `start`, and the offset of the first."""
    code = data[start]
    if 0x90 <= code < 0xA0:
        return code & 0x0F, start + 1
    if code not in LIST_WIDTHS:
        raise Mismatch
    first = start + 1 + LIST_WIDTHS[code]
    return int.from_bytes(data[start + 1 : first], "big"), first


def read_name(data: bytes, start: int) -> tuple[str | None, int]:
    """Text, or nil as None."""
    code = data[start]
    if code == NIL:
        return None, start + 1
    if 0xA0 <= code < 0xC0:
        first, size = start + 1, code & 0x1F
    elif code == 0xD9:
        first, size = start + 2, data[start + 1]
    elif code == 0xDA:
        first, size = start + 3, int.from_bytes(data[start + 1 : start + 3], "big")
    else:
        raise Mismatch
    try:
        return str(data[first : first + size], "utf-8"), first + size
    except UnicodeDecodeError as err:
        raise Mismatch from err


def read_flag(data: bytes, start: int) -> tuple[bool, int]:
    """A Python or numpy bool (RLlib stores what the environment returned)."""
    code = data[start]
    if code in (FALSE, TRUE):
        return code == TRUE, start + 1
    end = start + len(BOOL_NODE)
    if not data.startswith(BOOL_NODE, start) or data[end] > 1:
        raise Mismatch
    return data[end] == 1, end + 1


def read_clock(data: bytes, start: int) -> tuple[float, int]:
    """Seconds, or nil as NaN."""
    code = data[start]
    if code == NIL:
        return math.nan, start + 1
    if code != FLOAT64:
        raise Mismatch
    return struct.unpack_from(">d", data, start + 1)[0], start + 9


def read_mapping(data: bytes, start: int) -> tuple[dict[Any, Any], int]:
    """A map; nil becomes an empty one."""
    if data[start] in (EMPTY_MAP, NIL):
        return {}, start + 1
    value, stop = unpack_first(data, start, where=INSIDE)
    if not isinstance(value, dict):
        raise Mismatch
    return value, stop


def read_infos(data: bytes, start: int) -> tuple[tuple[int, list[Any] | None], int]:
    """(count, infos); None instead of infos if all are empty, which costs one search and no objects."""
    size, first = read_list_size(data, start)
    if data.count(b"\x80", first, first + size) == size:
        return (size, None), first + size
    value, stop = unpack_first(data, start, where=INSIDE)
    if not all(info is None or isinstance(info, dict) for info in value):
        raise Mismatch
    return (size, [info or {} for info in value]), stop


ALWAYS: Mapping[str, Read] = {
    "id_": read_name,
    "t_started": read_uint,
    "t": read_uint,
    "is_terminated": read_flag,
    "is_truncated": read_flag,
}
IF_ANY: Mapping[str, Read] = {
    **dict.fromkeys(NAMES, read_name),
    **dict.fromkeys(("_start_time", "_last_step_time"), read_clock),
    **dict.fromkeys(("custom_data", "_temporary_timestep_data"), read_mapping),
}
NEEDED = frozenset({*ALWAYS, *NAMES, "observations", "actions", "rewards", "infos"})
KNOWN = frozenset({*NEEDED, *IF_ANY, "extra_model_outputs", "_observation_space", "_action_space"})


# ---- learning ----


def learn_layout(data: bytes) -> ItemLayout | None:
    """Learn the layout of an item that `decode` accepts; None if only `decode` can read it, or report its error."""
    try:
        state = unpack_raw(data, where=INSIDE)
        if not isinstance(state, dict) or not NEEDED <= state.keys() <= KNOWN:
            return None
        layout = _Learner().layout(state)
    except (_NoLayout, Mismatch, OfflineCliError, *ODD):
        return None
    return layout if layout.read(data) is not None else None


class _Learner:
    """Repacks a raw state with a mark in place of each field: the bytes between the marks are constant."""

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self.fields: list[ArrayField | StepsField] = []

    def layout(self, state: Mapping[Any, Any]) -> ItemLayout:
        slots: dict[str, int] = {}
        buffers: dict[str, BufferFields] = {}
        extra: dict[str, BufferFields] = {}
        marked = dict(state)
        for key, value in state.items():
            if key in ALWAYS or (key in IF_ANY and value is not None and value != {}):
                marked[key], slots[key] = self._field(ALWAYS.get(key) or IF_ANY[key])
            elif key in ("observations", "actions", "rewards", "infos"):
                marked[key], buffers[key] = self._buffer(value, read_infos if key == "infos" else None)
            elif key == "extra_model_outputs" and value:
                marked[key] = {}
                for name, part in value.items():
                    marked[key][_text(name)], extra[name] = self._buffer(part, None)
        parts = pack(marked).split(pack(MARK))
        for one in self.fields:
            if isinstance(one, ArrayField):  # the field extends to the end of its payload
                parts[one.index + 1] = parts[one.index + 1].removeprefix(one.middle + pack(NO_PAYLOAD))
        *constants, tail = parts
        return ItemLayout(
            tuple((constant, len(constant), read) for constant, read in zip(constants, self.reads, strict=True)),
            tail,
            slots,
            buffers,
            extra,
            is_listed=any(isinstance(one, StepsField) for one in self.fields),
            observation_space=space_in_state(state, "observations", where=INSIDE),
            action_space=space_in_state(state, "actions", where=INSIDE),
        )

    def _field(self, read: Read) -> tuple[bytes, int]:
        """Add a field; return its mark and its index in a row."""
        self.reads.append(read)
        return MARK, len(self.reads) - 1

    def _buffer(self, value: Mapping[str, Any], read: Read | None) -> tuple[dict[str, Any], BufferFields]:
        if value.keys() - {"space"} != {"data", "lookback", "finalized"} or type(value["finalized"]) is not bool:
            raise _NoLayout
        known_space_from_rllib(value.get("space"), where=INSIDE)  # raises for spaces that `decode` rejects
        found: Tree = None
        marked, lookback = dict(value), None
        for key, part in value.items():
            if key == "lookback" and part:
                marked[key], lookback = self._field(read_uint)
            elif key == "data":
                is_list = isinstance(part, list) and not value["finalized"]
                marked[key], found = self._field(read) if read else self._steps(part) if is_list else self._arrays(part, 0)
        return marked, BufferFields(found, lookback)

    def _steps(self, steps: list[Any]) -> tuple[bytes, StepsField]:
        head, packed = list_header(len(steps)), pack(steps)
        template = learn_template(packed, len(head), where=INSIDE) if steps else None
        if template is not None and template.read(packed, len(head), len(steps)) is None:
            template = None  # for example, steps of several types
        field = StepsField(len(self.reads), template)
        self.fields.append(field)
        return self._field(field.read)[0], field

    def _arrays(self, value: Any, depth: int) -> tuple[Any, Tree]:
        if depth > MAX_NESTING:
            raise _NoLayout
        if isinstance(value, dict) and b"nd" in value:
            return self._array(value)
        if isinstance(value, dict):
            parts = {_text(key): self._arrays(part, depth + 1) for key, part in value.items()}
            return {key: marked for key, (marked, _) in parts.items()}, {key: tree for key, (_, tree) in parts.items()}
        if isinstance(value, list):
            listed = [self._arrays(part, depth + 1) for part in value]
            return [marked for marked, _ in listed], tuple(tree for _, tree in listed)
        raise _NoLayout

    def _array(self, node: dict[Any, Any]) -> tuple[Any, ArrayField]:
        if list(node) != [b"nd", b"type", b"kind", b"shape", b"data"] or node[b"nd"] is not True or not node[b"shape"]:
            raise _NoLayout
        dtype = dtype_from_type(node[b"type"], kind=node[b"kind"], where=INSIDE)
        _, *shape = shape_from_node(node, where=INSIDE)
        middle = b"".join(pack(size) for size in shape) + pack(b"data")
        array = ArrayField(len(self.reads), dtype, tuple(shape), middle, math.prod(shape) * dtype.itemsize)
        self.fields.append(array)
        return {**node, b"shape": [self._field(array.read)[0], *shape], b"data": NO_PAYLOAD}, array


def _text(key: Any) -> str:
    if not isinstance(key, str):
        raise _NoLayout
    return key
