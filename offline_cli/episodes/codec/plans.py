"""How one packed episode is laid out: constant bytes with fields between them; items of other constant bytes do not match.

Episodes of one recording differ in few places: ids, lengths, flags, array bytes. A plan is made from one item, by packing its
parts again, and then reads and writes others: a handful of byte comparisons and slices instead of a Python object per value. It
serves both layouts, our own (arrays) and RLlib's recorder's (lists of steps). Whatever a plan does not recognise to the last
byte goes to the general reader, so a plan never has to judge hostile bytes: it takes what it knows, or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from offline_cli.episodes.codec.arrays import dtype_from_type, list_header, map_header, pack, shape_from_node, unpack_raw
from offline_cli.episodes.codec.fields import (
    INSIDE,
    ArrayField,
    Mismatch,
    Program,
    ReadField,
    StepsField,
    read_clock,
    read_flag,
    read_infos,
    read_mapping,
    read_name,
    read_uint,
)
from offline_cli.episodes.codec.kinds import Kinds
from offline_cli.episodes.episode_spaces import space_in_state
from offline_cli.errors import OfflineCliError
from offline_cli.spaces import Space
from offline_cli.tally import Tally
from offline_cli.trees import Tree

__all__ = ["BufferSlots", "ItemPlan", "Slot", "plan_of"]

Slot = tuple[str, ...]  # ("t",), ("observations", "lookback"), ("actions", "data", "arm"), ("extra", "action_logp", "data")

NAMES = ("id_", "agent_id", "module_id", "multi_agent_episode_id")
BUFFERS = ("observations", "actions", "rewards")
SCALARS: dict[str, ReadField] = {
    **dict.fromkeys(NAMES, read_name),
    **dict.fromkeys(("t_started", "t"), read_uint),
    **dict.fromkeys(("is_terminated", "is_truncated"), read_flag),
    **dict.fromkeys(("_start_time", "_last_step_time"), read_clock),
    **dict.fromkeys(("custom_data", "_temporary_timestep_data"), read_mapping),
}
NEEDED = frozenset({*NAMES, *BUFFERS, "infos", "t_started", "t", "is_terminated", "is_truncated"})
BUFFER_KEYS = frozenset({"data", "lookback", "finalized"})
MAX_NESTING = 64  # of a space's parts; deeper ones are the general reader's


class _NoPlan(Exception):
    """An item that only the general reader can read."""


@dataclass(frozen=True, slots=True)
class BufferSlots:
    """Where a row of field values holds one buffer."""

    data: Tree  # of row indices: one per array; a bare index for a list of steps
    lookback: int
    steps: bool  # whether the one index holds a tree of leaves (a list of steps), not one array's bytes


@dataclass(frozen=True, slots=True)
class ItemPlan:
    """One layout: fields, each with the constant bytes before it, and `tail` after the last."""

    fields: Program
    checked_fields: Program  # the same, reading every value of a list of steps
    slots: dict[Slot, int]
    arrays: dict[int, ArrayField]  # by slot
    steps: dict[int, StepsField]  # by slot
    tail: bytes
    buffers: dict[str, BufferSlots]  # observations, actions, rewards, infos
    extra: dict[str, BufferSlots]  # by name of the output
    observation_space: Space | None
    action_space: Space | None
    scratch: Tally  # assumptions made in reading the present item
    kinds: Kinds  # of items that it has read

    def read(self, data: bytes) -> list[Any] | None:
        """The fields of an item in this layout, by slot; None when it is not in this layout.

        Bytes of lists of steps are not checked here: `batch_of_rows` compares them, many episodes at once.
        """
        if self.steps:
            return self._read(data, self.fields)
        row = self.kinds.read(data)
        if row is None:
            row = self._read(data, self.fields)
            if row is not None:
                self.kinds.learn(data, row, self.fields, self.arrays)
        return row

    def read_checked(self, data: bytes) -> list[Any] | None:
        """As `read`, with nothing left to be compared later."""
        return self._read(data, self.checked_fields)

    def _read(self, data: bytes, fields: Program) -> list[Any] | None:
        self.scratch.assumptions.clear()
        row: list[Any] = []
        at = 0
        try:
            for constant, size, read in fields:
                if not data.startswith(constant, at):
                    return None
                value, at = read(data, at + size)
                row.append(value)
        except (Mismatch, IndexError, OfflineCliError):  # IndexError: cut in the middle of a field
            return None
        if at + len(self.tail) != len(data) or not data.endswith(self.tail):
            return None
        return row


def plan_of(data: bytes) -> ItemPlan | None:
    """The plan of an item's layout; None where only the general reader can read it (and report what is wrong)."""
    try:
        state = unpack_raw(data, where=INSIDE)
        if not isinstance(state, dict) or not state.keys() >= NEEDED:
            return None
        plan = _Builder(state).build()
    except (_NoPlan, OfflineCliError):
        return None
    return plan if plan.read_checked(data) is not None else None


class _Builder:
    """Walks one raw state, packing it again and leaving fields out."""

    def __init__(self, state: Mapping[Any, Any]) -> None:
        self.state = state
        self.spaces = {name: space_in_state(state, name, where=INSIDE) for name in ("observations", "actions")}
        self.constant = bytearray()
        self.fields: list[tuple[bytes, int, ReadField]] = []
        self.checked_fields: list[tuple[bytes, int, ReadField]] = []
        self.steps: dict[int, StepsField] = {}
        self.slots: dict[Slot, int] = {}
        self.arrays: dict[int, ArrayField] = {}
        self.buffers: dict[str, BufferSlots] = {}
        self.extra: dict[str, BufferSlots] = {}
        self.scratch = Tally()

    def build(self) -> ItemPlan:
        self.constant += map_header(len(self.state))
        for key, value in self.state.items():
            self._key(key)
            self._entry(key, value)
        return ItemPlan(
            fields=tuple(self.fields),
            checked_fields=tuple(self.checked_fields),
            slots=self.slots,
            arrays=self.arrays,
            steps=self.steps,
            tail=bytes(self.constant),
            buffers=self.buffers,
            extra=self.extra,
            observation_space=self.spaces["observations"],
            action_space=self.spaces["actions"],
            scratch=self.scratch,
            kinds=Kinds(),
        )

    def _entry(self, key: str, value: Any) -> None:
        if key in SCALARS:
            self._field((key,), SCALARS[key])
        elif key in BUFFERS or key == "infos":
            self.buffers[key] = self._buffer((key,), value, self.spaces.get(key))
        elif key == "extra_model_outputs" and value is not None:
            self._outputs(value)
        else:
            self._constant(value)

    def _outputs(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise _NoPlan
        self.constant += map_header(len(value))
        for name, part in value.items():
            self._key(name)
            self.extra[name] = self._buffer(("extra", name), part, None)

    def _buffer(self, slot: Slot, value: Any, space: Space | None) -> BufferSlots:
        if not isinstance(value, dict) or not value.keys() >= BUFFER_KEYS or type(value["finalized"]) is not bool:
            raise _NoPlan
        self.constant += map_header(len(value))
        found: Tree = None
        steps = slot == ("infos",) or (isinstance(value["data"], list) and not value["finalized"])
        for key, part in value.items():
            self._key(key)
            if key == "lookback":
                self._field((*slot, "lookback"), read_uint)
            elif key == "data":
                found = self._data((*slot, "data"), part, space, steps)
            else:
                self._constant(part)
        return BufferSlots(found, self.slots[(*slot, "lookback")], steps)

    def _data(self, slot: Slot, value: Any, space: Space | None, steps: bool) -> Tree:
        if slot[0] == "infos":
            return self._field(slot, read_infos)
        if steps:
            name = slot[1] if slot[0] == "extra" else slot[0]
            field = StepsField(name, space, self.scratch)
            index = self._field(slot, field.read, field.read_checked)
            self.steps[index] = field
            return index
        return self._arrays(slot, value)

    def _arrays(self, slot: Slot, value: Any) -> Tree:
        if len(slot) > MAX_NESTING:
            raise _NoPlan
        if isinstance(value, dict) and b"nd" in value:
            return self._array(slot, value)
        if isinstance(value, dict):
            self.constant += map_header(len(value))
            return {self._key(key): self._arrays((*slot, key), part) for key, part in value.items()}
        if isinstance(value, list):
            self.constant += list_header(len(value))
            return tuple(self._arrays((*slot, str(i)), part) for i, part in enumerate(value))
        raise _NoPlan

    def _array(self, slot: Slot, node: dict[Any, Any]) -> int:
        if list(node) != [b"nd", b"type", b"kind", b"shape", b"data"] or node[b"nd"] is not True:
            raise _NoPlan
        try:
            dtype = dtype_from_type(node[b"type"], kind=node[b"kind"], where=INSIDE)
            shape = shape_from_node(node, where=INSIDE)
        except OfflineCliError:
            raise _NoPlan from None
        if not shape:
            raise _NoPlan
        packed = {key: pack(node[key]) for key in (b"nd", b"type", b"kind")}
        self.constant += map_header(len(node)) + b"".join(pack(key) + value for key, value in packed.items())
        self.constant += pack(b"shape") + list_header(len(shape))
        middle = b"".join(pack(size) for size in shape[1:]) + pack(b"data")
        field = ArrayField(dtype, shape[1:], middle, math.prod(shape[1:]) * dtype.itemsize)
        index = self._field(slot, field.read)
        self.arrays[index] = field
        return index

    def _field(self, slot: Slot, read: ReadField, checked: ReadField | None = None) -> int:
        if slot in self.slots:
            raise _NoPlan
        constant = bytes(self.constant)
        self.constant.clear()
        self.fields.append((constant, len(constant), read))
        self.checked_fields.append((constant, len(constant), checked or read))
        self.slots[slot] = len(self.fields) - 1
        return self.slots[slot]

    def _key(self, key: Any) -> str:
        if not isinstance(key, str):
            raise _NoPlan
        self._constant(key)
        return key

    def _constant(self, value: Any) -> None:
        try:
            self.constant += pack(value)
        except (TypeError, ValueError, OverflowError, msgpack.PackException):
            raise _NoPlan from None
