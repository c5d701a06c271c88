"""Nulls and bounds of each column chunk from a Parquet footer, as undecoded bytes.

Arrow's own `chunk.statistics` decodes bounds where nothing catches its C++ exceptions: a bound that is too short, or of another
type than its column, aborts the process. So the footer's Thrift is parsed here, of which only structs, lists, integers, flags,
numbers and bytes are known: a footer has nothing else.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

import pyarrow as pa

from offline_cli.parquet.thrift_footers import CHUNK_DATA, CHUNKS, GROUPS, STRUCT, TAIL, signed

__all__ = ["ChunkStatistics", "chunk_statistics"]

STATISTICS: Final = 12  # of ColumnMetaData; and of these
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
    stream.seek(-TAIL, io.SEEK_END)
    length = int.from_bytes(stream.read(4), "little")
    stream.seek(-TAIL - length, io.SEEK_END)
    try:
        footer = _Thrift(stream.read(length)).value(STRUCT)
    except (StopIteration, LookupError, ValueError) as error:
        raise pa.ArrowInvalid(f"the footer cannot be read: {error}") from error
    groups = [group for group in _of(footer, GROUPS[0], list, []) if isinstance(group, dict)]
    found = [[_of_chunk(chunk) for chunk in _of(group, CHUNKS, list, [])] for group in groups]
    if [len(chunks) for chunks in found] != [metadata.num_columns] * metadata.num_row_groups:
        raise pa.ArrowInvalid("the footer cannot be read: it has not one chunk for each column in each row group")
    return found


def _of_chunk(chunk: Any) -> ChunkStatistics:
    said: Any = _of(_of(chunk, CHUNK_DATA, dict, {}), STATISTICS, dict, {})
    low, high = (_of(said, new, bytes, _of(said, old, bytes, None)) for new, old in ((LOW, OLD_LOW), (HIGH, OLD_HIGH)))
    return ChunkStatistics(_of(said, NULL_COUNT, int, None), low, high)


def _of(node: Any, field: int, kind: type[Any], otherwise: T) -> Any | T:
    found = node.get(field) if isinstance(node, dict) else None
    return found if type(found) is kind else otherwise


class _Thrift:
    """Reads values of Thrift's compact protocol one after the other.

    Raises StopIteration at the end, LookupError and ValueError for what is no value.
    """

    def __init__(self, data: bytes) -> None:
        self._rest = iter(data)
        self._byte = self._rest.__next__

    def value(self, kind: int, depth: int = 0) -> Any:
        """The next one, by Thrift's number of its type; `depth`: of the structs and lists around it."""
        if depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} structs and lists in one another")
        match kind:  # the most frequent first
            case 4 | 5 | 6:
                return signed(self._varint())
            case 8 | 7:
                return self._bytes(8 if kind == 7 else self._varint())
            case 12:  # STRUCT
                return self._struct(depth)
            case 9 | 10:
                head = self._byte()  # each value takes a byte at least, so that no length leads far beyond the end
                return [self.value(head & 15, depth + 1) for _ in range(head >> 4 if head < 240 else self._varint())]
            case 1 | 2:
                return self._byte() == 1
            case 3:
                return self._byte()
        raise LookupError(f"no type has the number {kind}")

    def _struct(self, depth: int) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self.value(4)
            kind = head & 15
            fields[number] = kind == 1 if kind in (1, 2) else self.value(kind, depth + 1)  # a flag has its value in its kind
        return fields

    def _bytes(self, length: int) -> bytes:
        found = bytes(islice(self._rest, length))
        if len(found) < length:
            raise ValueError("bytes that extend beyond the end")
        return found

    def _varint(self) -> int:
        value = self._byte()
        if value < 128:
            return value
        value &= 127
        for shift in range(7, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("an integer without an end")
