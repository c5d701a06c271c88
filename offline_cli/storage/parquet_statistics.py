"""What the footer of a Parquet file says of each column chunk: nulls and bounds, as bytes; refuses to decode them.

Arrow's own `chunk.statistics` decodes bounds where nothing catches what it throws: one that is too short, or of another type
than its column, and the process is aborted. Here they are read as they stand, from the footer's own Thrift, of which only
structs, lists, integers, flags, numbers and bytes are known: there is nothing else in a footer.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa

__all__ = ["ChunkStatistics", "chunk_statistics"]

ROW_GROUPS, COLUMNS, META_DATA, STATISTICS = 4, 1, 3, 12  # numbers of fields in parquet.thrift
NULL_COUNT, HIGH, LOW, OLD_HIGH, OLD_LOW = 3, 5, 6, 1, 2
DEEPEST: Final = 32  # structs and lists in one another; a footer has a third of that

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChunkStatistics:
    """Of one column in one row group; None: the footer does not say."""

    null_count: int | None
    low: bytes | None  # no value is less; in the column's physical type
    high: bytes | None


def chunk_statistics(stream: Any, metadata: Any) -> list[list[ChunkStatistics]]:
    """By row group and column, of an open file. `metadata`: its footer, as Arrow reads it.

    Raises pa.ArrowInvalid where the footer cannot be read, or says one thing to Arrow and another one here.
    """
    stream.seek(-8, io.SEEK_END)
    length = int.from_bytes(stream.read(4), "little")
    stream.seek(-8 - length, io.SEEK_END)
    try:
        footer, _ = _struct(stream.read(length), 0, 0)
    except (LookupError, ValueError) as error:
        raise pa.ArrowInvalid(f"the footer cannot be read: {error}") from error
    groups = [group for group in _of(footer, ROW_GROUPS, list, []) if isinstance(group, dict)]
    found = [[_of_chunk(chunk) for chunk in _of(group, COLUMNS, list, [])] for group in groups]
    if [len(chunks) for chunks in found] != [metadata.num_columns] * metadata.num_row_groups:
        raise pa.ArrowInvalid("the footer cannot be read: it has not one chunk for each column in each row group")
    return found


def _of_chunk(chunk: Any) -> ChunkStatistics:
    said: Any = _of(_of(chunk, META_DATA, dict, {}), STATISTICS, dict, {})
    low, high = (_of(said, new, bytes, _of(said, old, bytes, None)) for new, old in ((LOW, OLD_LOW), (HIGH, OLD_HIGH)))
    return ChunkStatistics(_of(said, NULL_COUNT, int, None), low, high)


def _of(node: Any, field: int, kind: type[Any], otherwise: T) -> Any | T:
    found = node.get(field) if isinstance(node, dict) else None
    return found if type(found) is kind else otherwise


# ---- Thrift's compact protocol: a value, and where the next one begins ----


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("an integer without an end")


def _integer(data: bytes, at: int, depth: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _binary(data: bytes, at: int, depth: int) -> tuple[bytes, int]:
    length, at = _varint(data, at)
    if at + length > len(data):
        raise ValueError("bytes that go on beyond the end")
    return data[at : at + length], at + length


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    _refuse_depth(depth)
    length, read = data[at] >> 4, _VALUES[data[at] & 15]
    at += 1
    if length == 15:
        length, at = _varint(data, at)
    values = []
    for _ in range(length):  # each takes a byte at least, so that no length leads far beyond the end
        value, at = read(data, at, depth + 1)
        values.append(value)
    return values, at


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    _refuse_depth(depth)
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at, depth)
        kind = head & 15
        if kind in _FLAGS:  # a flag of a struct has its value in its kind
            fields[number] = _FLAGS[kind]
        else:
            fields[number], at = _VALUES[kind](data, at, depth + 1)
    return fields, at + 1


def _refuse_depth(depth: int) -> None:
    if depth > DEEPEST:
        raise ValueError(f"more than {DEEPEST} structs and lists in one another")


def _flag(data: bytes, at: int, depth: int) -> tuple[bool, int]:
    return data[at] == 1, at + 1


_FLAGS: Final = {1: True, 2: False}
_VALUES: Final[dict[int, Callable[[bytes, int, int], tuple[Any, int]]]] = {
    1: _flag,
    2: _flag,
    3: lambda data, at, depth: (data[at], at + 1),
    4: _integer,
    5: _integer,
    6: _integer,
    7: lambda data, at, depth: (data[at : at + 8], at + 8),
    8: _binary,
    9: _list,
    10: _list,
    12: _struct,
}
"""By Thrift's number of a type, how it is read."""
