"""Where a table is cut into row groups so that readers accept the file, how its columns are stored, and column statistics.

* `Cuts`, `cuts_of`: readers refuse a file that unfolds beyond the bound of `safety`, as one of frames in which nothing
  moves does. A table that would bring a shard there begins another one, where it may unfold to more. A table beyond the bound
  by itself, an episode of hundreds of MiB, is cut into more row groups, each of which adds some bytes to the file. Where that
  is not enough, because single cells are that large, its shard is written without compression and dictionaries (`alone`): no
  manifest is needed then to know that it is no bomb. All other tables are cut, and written, as they always were.
* `parquet_options`: floats are stored plain, text and integers with a dictionary; `item` never has one. Every page carries a
  checksum.
* `chunk_statistics`: nulls and bounds of each column chunk from a Parquet footer, as undecoded bytes. Arrow's own
  `chunk.statistics` decodes bounds where nothing catches its C++ exceptions: a bound that is too short, or of another type than
  its column, aborts the process. So the footer's Thrift is parsed here, of which only structs, lists, integers, flags, numbers
  and bytes are known: a footer has nothing else.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from offline_cli.columns import Columns
from offline_cli.parquet import safety
from offline_cli.parquet.safety import in_memory_bytes

__all__ = ["BLOCK_BYTES", "ChunkStatistics", "Cuts", "Held", "alone", "chunk_statistics", "cuts_of", "parquet_options"]

BLOCK_BYTES: Final = 8 << 20  # of raw arrays in a row group, about
SURE: Final = 2  # so many times the wanted bytes, packed in parts, are never fewer packed as a whole
PIECE: Final = 1 << 20  # bytes packed at a time
LIMITED: Final = ("lz4", "snappy", "none")  # these unfold to at most 255 times their bytes
LIMIT: Final = 255

ROW_GROUPS, COLUMNS, META_DATA, STATISTICS = 4, 1, 3, 12  # numbers of fields in parquet.thrift
NULL_COUNT, HIGH, LOW, OLD_HIGH, OLD_LOW = 3, 5, 6, 1, 2
STRUCT: Final = 12  # the number of its type
DEEPEST: Final = 32  # structs and lists in one another; a footer has a third of that

T = TypeVar("T")


def parquet_options(schema: Any, compression: str, *, is_plain: bool) -> dict[str, Any]:
    """For a pa.Schema. `is_plain`: without compression and dictionaries, so that the file is as large as what it holds."""
    return {
        "compression": "none" if is_plain else compression,
        "use_dictionary": False if is_plain else _repeating(schema),
        "write_statistics": [name for name in schema.names if name != Columns.ITEM] if Columns.ITEM in schema.names else True,
        "write_batch_size": 1 << 20,
        "write_page_checksum": True,
    }


def _repeating(schema: Any) -> list[str]:
    """Paths of Parquet columns worth a dictionary: text and integers, wherever they are.

    Parquet has no 8-bit numbers: an image's bytes take four each. As indices into a dictionary they take one again.
    """
    return [path for field in schema for path in _paths(field.type, field.name) if path != Columns.ITEM]


def _paths(kind: Any, path: str) -> Iterator[str]:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _paths(kind.field(index).type, f"{path}.{kind.field(index).name}")
    elif pa.types.is_fixed_size_list(kind):
        yield from _paths(kind.value_type, f"{path}.list.element")
    elif pa.types.is_string(kind) or pa.types.is_integer(kind):
        yield path


@dataclass(frozen=True, slots=True)
class Cuts:
    """How a table is written."""

    rows: tuple[int, ...]  # of each row group, in order
    is_plain: bool = False  # without compression and dictionaries, alone in its shard


@dataclass(frozen=True, slots=True)
class Held:
    """What is in a shard before a table."""

    in_memory: int = 0  # bytes, as readers count them
    by_now: int = 0  # bytes of the file that are certainly written
    stored: Callable[[], int] = int  # bytes of the file, once all is written: waits for it


NOTHING: Final = Held()


def cuts_of(table: Any, compression: str, held: Held = NOTHING) -> Cuts | None:
    """The row groups of a pa.Table after what is `held`; None: it belongs into another shard. The same for the same tables."""
    if not table.num_rows:
        return Cuts((0,))
    usual = _groups(table.num_rows, _usual_rows(table))
    total = held.in_memory + in_memory_bytes(table)
    ratio = safety.MAX_RATIO
    if total <= max(safety.MAX_BYTES, ratio * held.by_now):
        return Cuts(usual)
    wanted = -(-total // ratio) - held.stored()
    size = _size_if_less(table, usual, compression, wanted)
    if size is None:
        return Cuts(usual)
    if held.in_memory:
        return None
    finer = _finer(table, len(usual), compression, wanted, wanted - size)
    return Cuts(_groups(table.num_rows, 1), is_plain=True) if finer is None else Cuts(finer)


def alone(table: Any, compression: str) -> Cuts:
    """The row groups of a pa.Table that is a file by itself."""
    cuts = cuts_of(table, compression)
    assert cuts is not None, "a file of its own takes any table"
    return cuts


def _usual_rows(table: Any) -> int:
    """All rows of a pa.Table in one group, unless it is large, as one of a single long episode or of images may be."""
    return max(1, table.num_rows if table.nbytes <= 2 * BLOCK_BYTES else int(table.num_rows * BLOCK_BYTES / table.nbytes))


def _groups(rows: int, each: int) -> tuple[int, ...]:
    return (each,) * (rows // each) + ((rows % each,) if rows % each else ())


def _finer(table: Any, usual: int, compression: str, wanted: int, missing: int) -> tuple[int, ...] | None:
    """More than the `usual` number of row groups, for `missing` bytes of those `wanted`; None where one a row does not do."""
    if usual == table.num_rows:
        return None
    count = usual - (-SURE * missing // _bytes_of_group(table, compression))
    while count < table.num_rows:
        finer = _groups(table.num_rows, table.num_rows // count)
        if _size(table, finer, compression) >= wanted:
            return finer
        count *= SURE
    each = _groups(table.num_rows, 1)
    return each if _size(table, each, compression) >= wanted else None


def _bytes_of_group(table: Any, compression: str) -> int:
    """What a row group adds to a file at least, headers of pages and its part of the footer."""
    pairs = (table.slice(first, 2) for first in (0, table.num_rows // 2 - 1, table.num_rows - 2))
    return max(1, min(_size(pair, (1, 1), compression) - _size(pair, (2,), compression) for pair in pairs))


def _size_if_less(table: Any, groups: Sequence[int], compression: str, wanted: int) -> int | None:
    """Bytes of a file of the pa.Table; None where they are `wanted` or more, which its first rows may tell."""
    if wanted <= 0 or (compression in LIMITED and _item_bytes(table) // LIMIT > wanted):
        return None
    packs_one = table.num_rows == 1 and Columns.ITEM in table.column_names and compression not in LIMITED
    if packs_one and _packs_to(table.column(Columns.ITEM), compression, SURE * wanted) > SURE * wanted:
        return None
    for share in (64, 16):
        count = table.num_rows // share
        if count and _size(table.slice(0, count), _groups(count, groups[0]), compression) > SURE * wanted:
            return None
    size = _size(table, groups, compression)
    return None if size >= wanted else size


def _item_bytes(table: Any) -> int:
    return int(table.column(Columns.ITEM).nbytes) if Columns.ITEM in table.column_names else 0


def _packs_to(item: Any, compression: str, enough: int) -> int:
    """Bytes that the one value of a pa.ChunkedArray becomes, no longer counted once they are more than `enough`."""
    (chunk,) = (chunk for chunk in item.chunks if len(chunk))
    _, offsets, data = chunk.buffers()
    first, last = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + 2].tolist()
    sink = pa.MockOutputStream()
    with pa.CompressedOutputStream(sink, compression) as packed:
        for at in range(first, last, PIECE):
            packed.write(data.slice(at, min(PIECE, last - at)))
            if sink.size() > enough:
                break
    return int(sink.size())


def _size(table: Any, groups: Sequence[int], compression: str) -> int:
    """Bytes of a file of the pa.Table alone."""
    sink, first = pa.MockOutputStream(), 0
    with pq.ParquetWriter(sink, table.schema, **parquet_options(table.schema, compression, is_plain=False)) as parquet:
        whole = table.combine_chunks()
        for count in groups:
            parquet.write_table(whole.slice(first, count), row_group_size=count)
            first += count
    return int(sink.size())


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
        footer = _Thrift(stream.read(length)).value(STRUCT)
    except (StopIteration, LookupError, ValueError) as error:
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
                value = self._varint()
                return value >> 1 ^ -(value & 1)
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
