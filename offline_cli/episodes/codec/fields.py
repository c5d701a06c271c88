"""The parts of a packed episode that vary between episodes, read at a byte offset; and the limits on ids and names.

Each reader takes (data, start) and gives (value, the byte after it), or raises `Mismatch`: these bytes are not what the plan
expects, and the general reader takes over. A reader may run past the end, since offsets only grow and the plan checks the last
one.

`check_names`: ids, and names of agents and modules, must fit both formats: no lone surrogates, at most 64 KiB.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec.arrays import bin_header, pack, unpack_first
from offline_cli.episodes.codec.steps import Signature, Steps, signature
from offline_cli.episodes.codec.strided_lists import ItemTemplate, learn_template
from offline_cli.episodes.episode_spaces import zero_rows
from offline_cli.errors import BadData
from offline_cli.spaces import Space
from offline_cli.tally import Tally
from offline_cli.trees import Tree, map_leaves

__all__ = [
    "INSIDE",
    "ArrayField",
    "Mismatch",
    "Program",
    "ReadField",
    "StepRows",
    "StepsField",
    "check_names",
    "clocks_bytes",
    "flag_bytes",
    "name_bytes",
    "names_bytes",
    "read_clock",
    "read_flag",
    "read_infos",
    "read_mapping",
    "read_name",
    "read_uint",
    "uint_bytes",
]

LONGEST = (1 << 16) - 1  # bytes

ReadField = Callable[[bytes, int], tuple[Any, int]]
Program = tuple[tuple[bytes, int, ReadField], ...]
"""Of each field of an item: the bytes before it, how many these are, and its reader."""

NIL, FALSE, TRUE, FLOAT64, EMPTY_MAP = 0xC0, 0xC2, 0xC3, 0xCB, 0x80
BOOL_NODE = pack(np.False_)[:-1]  # all of a numpy bool but its one byte of payload
ONE_BYTE = tuple(bytes([value]) for value in range(0x100))
NAME_HEADS = (*ONE_BYTE[0xA0:0xC0], *(b"\xd9" + ONE_BYTE[size] for size in range(0x20, 0x100)))  # by bytes of text
KEEP_VIEW = 1 << 16  # payloads at least this large are not copied out of their item before they are joined
INSIDE = "one packed episode"  # errors under this name never surface: the general reader raises them again, with the place

StepRows = tuple[int, ItemTemplate | None, Any]
"""Steps of one list: how many; the template of their bytes and these bytes, or None and leaves (steps, *shape)."""


def check_names(batch: EpisodeBatch, *, where: str) -> None:
    """Raise BadData for a name in `batch` that a file cannot hold."""
    for name in chain(batch.ids, batch.agent_ids or (), batch.module_ids or (), batch.multi_agent_ids or ()):
        if name is not None and (len(name) > LONGEST // 4 or not name.isascii()):
            _check(name, where)


def _check(name: str, where: str) -> None:
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError as err:
        raise BadData(f"the name {name[:80]!r}, which UTF-8 cannot hold", where=where, fix="give other ids") from err
    if size > LONGEST:
        raise BadData(f"a name of {len(name)} letters: {name[:40]!r}...", where=where, fix="give shorter ids")


class Mismatch(Exception):
    """These bytes do not have the plan's layout."""


def read_uint(data: bytes, start: int) -> tuple[int, int]:
    """A non-negative integer below 2^32."""
    code = data[start]
    if code < 0x80:
        return code, start + 1
    width = {0xCC: 1, 0xCD: 2, 0xCE: 4}.get(code)
    if width is None:
        raise Mismatch
    return int.from_bytes(data[start + 1 : start + 1 + width], "big"), start + 1 + width


def uint_bytes(value: int) -> bytes:
    """`value` as `read_uint` takes it, and as msgpack writes it."""
    return ONE_BYTE[value] if value < 0x80 else pack(value)


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


def name_bytes(name: str | None) -> bytes:
    """`name` as `read_name` takes it, and as msgpack writes it."""
    if name is None:
        return b"\xc0"
    text = name.encode()
    return NAME_HEADS[len(text)] + text if len(text) < len(NAME_HEADS) else pack(name)


def names_bytes(names: Sequence[str | None]) -> list[bytes]:
    """`name_bytes` of each."""
    texts = [b"" if name is None else name.encode() for name in names]
    if None in names or max(map(len, texts), default=0) >= len(NAME_HEADS):
        return list(map(name_bytes, names))
    return [NAME_HEADS[len(text)] + text for text in texts]


def read_flag(data: bytes, start: int) -> tuple[bool, int]:
    """A bool, Python's or numpy's (RLlib writes what the environment returned)."""
    code = data[start]
    if code in (FALSE, TRUE):
        return code == TRUE, start + 1
    end = start + len(BOOL_NODE)
    if not data.startswith(BOOL_NODE, start) or data[end] > 1:
        raise Mismatch
    return data[end] == 1, end + 1


def flag_bytes(flag: bool | int) -> bytes:
    """`flag` as `read_flag` takes it, and as msgpack writes it."""
    return ONE_BYTE[TRUE if flag else FALSE]


def read_clock(data: bytes, start: int) -> tuple[float, int]:
    """Seconds, or nil as NaN."""
    code = data[start]
    if code == NIL:
        return math.nan, start + 1
    if code != FLOAT64:
        raise Mismatch
    try:
        return struct.unpack_from(">d", data, start + 1)[0], start + 9
    except struct.error as err:
        raise Mismatch from err


def clocks_bytes(seconds: NDArray[Any]) -> list[bytes]:
    """Each of `seconds` (E,) as `read_clock` takes it, and as msgpack writes it; NaN as nil."""
    image = np.full((len(seconds), 9), FLOAT64, np.uint8)
    image[:, 1:] = seconds.astype(">f8").view(np.uint8).reshape(-1, 8)
    written = image.tobytes()
    found = [written[start : start + 9] for start in range(0, len(written), 9)]
    for index in np.flatnonzero(np.isnan(seconds)).tolist():
        found[index] = ONE_BYTE[NIL]
    return found


def read_mapping(data: bytes, start: int) -> tuple[dict[Any, Any], int]:
    """A map, mostly empty; nil counts as one."""
    if data[start] in (EMPTY_MAP, NIL):
        return {}, start + 1
    value, stop = unpack_first(data, start, where=INSIDE)
    if not isinstance(value, dict):
        raise Mismatch
    return value, stop


def read_list_size(data: bytes, start: int) -> tuple[int, int]:
    """How many values the list at `start` has, and the byte where the first begins."""
    code = data[start]
    if 0x90 <= code < 0xA0:
        return code & 0x0F, start + 1
    width = {0xDC: 2, 0xDD: 4}.get(code)
    if width is None:
        raise Mismatch
    return int.from_bytes(data[start + 1 : start + 1 + width], "big"), start + 1 + width


def read_infos(data: bytes, start: int) -> tuple[tuple[int, list[Any] | None], int]:
    """(how many, the infos): None where every info is empty, which costs one search and no object."""
    size, first = read_list_size(data, start)
    if data.count(b"\x80", first, first + size) == size:
        return (size, None), first + size
    value, stop = unpack_first(data, start, where=INSIDE)
    if not all(info is None or isinstance(info, dict) for info in value):
        raise Mismatch
    return (size, [info or {} for info in value]), stop


@dataclass(frozen=True, slots=True)
class ArrayField:
    """One array of rows (finalised data): from its first dimension to its last byte."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of one row
    middle: bytes  # between the first dimension and the header of the payload
    row_bytes: int

    def read(self, data: bytes, start: int) -> tuple[tuple[int, bytes | memoryview], int]:
        """(rows, their bytes)."""
        rows, at = read_uint(data, start)
        if not data.startswith(self.middle, at):
            raise Mismatch
        first = at + len(self.middle)
        size = rows * self.row_bytes
        header = bin_header(size) if size < 1 << 32 else b""
        if not header or not data.startswith(header, first):
            raise Mismatch
        first += len(header)
        stop = first + size
        if stop > len(data):
            raise Mismatch
        return (rows, data[first:stop] if size < KEEP_VIEW else memoryview(data)[first:stop]), stop

    def head(self, rows: int) -> bytes:
        """The bytes before the payload of `rows` rows."""
        return uint_bytes(rows) + self.middle + bin_header(rows * self.row_bytes)


@dataclass(slots=True)
class StepsField:
    """A list of one value per step (data that is not finalised)."""

    name: str
    space: Space | None
    tally: Tally  # of the item being read; its plan passes it on once the whole item has fitted
    kind: Signature | None = None  # of the first list read; another one is another structure, and needs another plan
    empty: Tree = None  # leaves (0, *shape), once `kind` is known
    template: ItemTemplate | None = field(default=None, repr=False)

    def read(self, data: bytes, start: int) -> tuple[StepRows, int]:
        """Assumes that the list repeats the template; the caller that joins the bytes has to check that."""
        template = self.template
        if template is None:
            raise Mismatch
        size, first = read_list_size(data, start)
        stop = first + size * template.size
        if stop > len(data) or not data.startswith(template.head, first):
            raise Mismatch
        return (size, template, data[first:stop] if stop - first < KEEP_VIEW else memoryview(data)[first:stop]), stop

    def read_checked(self, data: bytes, start: int) -> tuple[StepRows, int]:
        """Reads every value; learns the template of lists that have none yet."""
        size, first = read_list_size(data, start)
        if not size:
            return (0, None, self._accept(zero_rows(self.space, 0)) if self.kind is None else self.empty), first
        template = learn_template(data, first, where=INSIDE)
        tree = template.read(data, first, size) if template else None
        if template is None or tree is None:
            values, stop = unpack_first(data, start, where=INSIDE)
            return (len(values), None, self._accept(self.structured(self._steps.stack(values)))), stop
        accepted = self._accept(self.structured(tree))
        self.template = template
        return (size, None, accepted), first + size * template.size

    def structured(self, tree: Tree) -> Tree:
        """`tree` with tuples for lists, as the space has them."""
        return self._steps.in_space(tree, self.space)

    @property
    def _steps(self) -> Steps:
        return Steps(self.name, INSIDE, self.tally)

    def _accept(self, tree: Tree) -> Tree:
        kind = signature(tree)
        if self.kind is None:
            self.kind, self.empty = kind, map_leaves(lambda leaf: leaf[:0], tree)
        elif self.kind != kind:
            raise Mismatch
        return tree
