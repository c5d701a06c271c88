"""Reads pickles of numpy arrays, numpy scalars and plain containers as data; a pickle that names anything else is refused.

Python's own unpickler is not used at all, restricted or not: its instructions call what a file names, set attributes on
whatever is on its stack, and reserve memory before they look at how many bytes there are. Here the instructions are read by
`pickletools.genops`, which only parses, and are carried out by a small machine that knows

* containers and plain values;
* the handful of names by which numpy and pickle write arrays, dtypes, scalars, bytes and sets. A name is on the stack as a
  token that has no attributes to set; calling it runs a function of `values`, which checks types and sizes;
* nothing else: classes, persistent ids, extension codes, out-of-band buffers and state for other objects raise UnsafeData.

Arrays hold numbers, booleans or strings (dtype kinds `biufcSU`). Object arrays raise, unless the caller asks for them as plain
lists (`object_lists`, for columns of infos): their elements are then plain values as well. What a pickle builds may not exceed
its own bytes by more than a small factor, however often it refers to the same part.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from offline_cli.errors import BadEpisode, UnsafeData
from offline_cli.formats.packed.values import FIX, MAKERS, NAMES, Blank, Builder, DType, Name, array_of_state, set_dtype_state

__all__ = ["Unpickled", "unpickle"]

MAX_DEPTH: Final = 64  # of containers; RLlib's nest two or three deep
SHARING: Final = 16  # a value may be this much larger than its pickle, by referring to parts of itself again

NUMBERS: Final = frozenset(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"))
TEXTS: Final = frozenset(("STRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"))
PUSHED: Final = NUMBERS | TEXTS
DATA_OFFSETS: Final = {
    "SHORT_BINBYTES": 2,
    "BINBYTES": 5,
    "BINBYTES8": 9,
    "BYTEARRAY8": 9,
    "SHORT_BINSTRING": 2,
    "BINSTRING": 5,
}
"""Instructions that carry bytes, and how many of their own bytes precede these."""


@dataclass(frozen=True, slots=True)
class Unpickled:
    """The value of a pickle, and the places of its raw bytes."""

    value: Any  # array, numpy scalar, or plain containers of these and of plain values
    spans: tuple[tuple[int, int], ...]  # (offset, length) of each run of raw bytes in the pickle


def unpickle(data: bytes, *, where: str, object_lists: bool = False) -> Unpickled:
    """The value that `data` (pickle, protocol 0 to 5) holds.

    `object_lists`: give object arrays as (nested) lists instead of refusing them. Raises UnsafeData where the pickle names or
    does anything beyond arrays and plain containers, or exceeds its bytes; BadEpisode where it is cut or inconsistent.
    """
    machine = _Machine(Builder(where, 2 * len(data) + 1024, object_lists))
    try:
        value = machine.run(pickletools.genops(data))
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError, MemoryError) as err:
        raise BadEpisode(
            f"not a whole pickle: {err or type(err).__name__}", where=where, fix="write the file again from its source"
        ) from err
    _check_extent(value, SHARING * len(data) + 1024, where)
    return Unpickled(value, tuple(machine.spans))


@dataclass(slots=True)
class _Machine:
    """The stack, the memo and the budget of one pickle."""

    builder: Builder
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[Any, Any] = field(default_factory=dict)
    spans: list[tuple[int, int]] = field(default_factory=list)

    def run(self, instructions: Iterable[tuple[Any, Any, int | None]]) -> Any:
        """The value on the stack at STOP."""
        for instruction, arg, position in instructions:
            name = instruction.name
            if name in DATA_OFFSETS:
                self.spans.append(((position or 0) + DATA_OFFSETS[name], len(arg)))
                self.stack.append(arg)
            elif name in PUSHED:
                self.stack.append(arg)
            elif name == "STOP":
                break
            elif (perform := PERFORMED.get(name)) is not None:
                perform(self, arg)
            else:
                self.builder.refuse(f"a pickle that uses {name}")
        (value,) = self.stack
        return value

    # ---- stack and memo ----

    def pop_to_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def pop_many(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("the stack is empty")
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def put(self, key: Any) -> None:
        value = self.stack[-1]
        if isinstance(value, Blank):
            value.keys.append(key)
        self.memo[key] = value

    # ---- containers ----

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, set):
            target.update(items)
        else:
            self.builder.refuse(f"a pickle that adds items to {type(target).__name__}")

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            self.builder.refuse(f"a pickle that sets items of {type(target).__name__}")
        target.update(zip(items[::2], items[1::2], strict=True))

    def push_dict(self, items: list[Any]) -> None:
        self.stack.append({})
        self.set_items(items)

    # ---- names, calls, state ----

    def push_name(self, module: Any, name: Any) -> None:
        kind = NAMES.get(f"{module} {name}")
        if kind is None:
            self.builder.refuse(f"a pickle that calls for {module}.{name}")
        self.stack.append(Name(kind))

    def call(self) -> None:
        target, args = self.pop_many(2)
        if not isinstance(target, Name) or not isinstance(args, tuple):
            self.builder.refuse(f"a pickle that calls {type(target).__name__}")
        maker = MAKERS.get(target.kind)
        if maker is None:
            self.builder.refuse(f"a pickle that calls {target.kind}")
        self.stack.append(maker(self.builder, *args))

    def build(self) -> None:
        target, state = self.pop_many(2)
        if isinstance(target, DType):
            set_dtype_state(self.builder, target, state)
            self.stack.append(target)
        elif isinstance(target, Blank):
            array = array_of_state(self.builder, state)
            self.stack.append(array)
            self.memo.update(dict.fromkeys(target.keys, array))
        else:
            self.builder.refuse(f"a pickle that sets the state of {type(target).__name__}")


PERFORMED: Final[dict[str, Callable[[_Machine, Any], Any]]] = {
    "PROTO": lambda m, version: None,
    "FRAME": lambda m, size: None,
    "NONE": lambda m, _: m.stack.append(None),
    "NEWTRUE": lambda m, _: m.stack.append(True),
    "NEWFALSE": lambda m, _: m.stack.append(False),
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "POP": lambda m, _: m.stack.pop(),
    "POP_MARK": lambda m, _: m.pop_to_mark(),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "EMPTY_SET": lambda m, _: m.stack.append(set()),
    "EMPTY_TUPLE": lambda m, _: m.stack.append(()),
    "LIST": lambda m, _: m.stack.append(m.pop_to_mark()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.pop_to_mark())),
    "TUPLE1": lambda m, _: m.stack.append(tuple(m.pop_many(1))),
    "TUPLE2": lambda m, _: m.stack.append(tuple(m.pop_many(2))),
    "TUPLE3": lambda m, _: m.stack.append(tuple(m.pop_many(3))),
    "FROZENSET": lambda m, _: m.stack.append(frozenset(m.pop_to_mark())),
    "DICT": lambda m, _: m.push_dict(m.pop_to_mark()),
    "APPEND": lambda m, _: m.extend(m.pop_many(1)),
    "APPENDS": lambda m, _: m.extend(m.pop_to_mark()),
    "ADDITEMS": lambda m, _: m.extend(m.pop_to_mark()),
    "SETITEM": lambda m, _: m.set_items(m.pop_many(2)),
    "SETITEMS": lambda m, _: m.set_items(m.pop_to_mark()),
    "MEMOIZE": lambda m, _: m.put(len(m.memo)),
    "PUT": lambda m, key: m.put(key),
    "BINPUT": lambda m, key: m.put(key),
    "LONG_BINPUT": lambda m, key: m.put(key),
    "GET": lambda m, key: m.stack.append(m.memo[key]),
    "BINGET": lambda m, key: m.stack.append(m.memo[key]),
    "LONG_BINGET": lambda m, key: m.stack.append(m.memo[key]),
    "GLOBAL": lambda m, names: m.push_name(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.push_name(*m.pop_many(2)),
    "REDUCE": lambda m, _: m.call(),
    "BUILD": lambda m, _: m.build(),
}


def _check_extent(value: Any, budget: int, where: str) -> None:
    """Raise UnsafeData unless `value` is plain and, with every reference followed, no larger than `budget`: without cycles."""
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        node, depth = pending.pop()
        budget -= 1
        if budget < 0 or depth > MAX_DEPTH:
            raise UnsafeData("a pickle whose value refers to itself without end is not read", where=where, fix=FIX)
        if isinstance(node, dict):
            pending.extend((part, depth + 1) for pair in node.items() for part in pair)
        elif isinstance(node, (list, tuple, set, frozenset)):
            pending.extend((part, depth + 1) for part in node)
        elif isinstance(node, np.ndarray):
            budget -= node.nbytes
        elif isinstance(node, (Name, DType, Blank)):
            raise UnsafeData("a pickle of anything but numbers is not read", where=where, fix=FIX)
