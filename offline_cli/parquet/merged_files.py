"""Small Parquet files of one writer, read as one in memory: their bytes one after the other, and a footer made of theirs.

Most of what Arrow takes for a file of a few rows goes into opening it. As one file with a row group for each of them they take
a third of that. What is read must be what each file would give by itself, whatever its bytes say, so `merged` is strict:

* footers are those of one Arrow writer and equal but for counts, sizes, places and statistics; column chunks have one data page
  each, whose header agrees with the footer and which fills the chunk; columns are flat, or lists of numbers;
* so a column of a file has as many values as the file has rows. How many rows the values of lists are depends on bytes in the
  page: it is compared after reading, for each file;
* their memory is bounded by the footers before anything is read, as `safety.refuse_bomb` does it.

Whatever does not fit, or raises, is left to the caller, who reads it file by file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.parquet.arrow_reading import ParquetFile, extension_failures, read_metadata, without_objects
from offline_cli.parquet.safety import MAX_BYTES, WIDTHS
from offline_cli.parquet.thrift_footers import (
    CHUNK_DATA,
    CHUNKS,
    GROUPS,
    MAGIC,
    ROWS,
    TAIL,
    Lanes,
    OddStruct,
    Path,
    Walk,
    list_head,
    padded_numbers,
    walked,
)

__all__ = ["FEWEST", "Merged", "in_one_chunk", "memory_of", "merged"]

FEWEST: Final = 4  # files for which it pays
LAYOUTS: Final = 3  # footers that differ, of files that are merged at a time
LONGEST: Final = 64 << 10  # bytes of a footer
WRITER: Final = b"parquet-cpp-arrow"
# Fields of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData and PageHeader in parquet.thrift
CREATED_BY: Final = (6,)
GROUP: Final = (*GROUPS, 0)
COLUMNS, GROUP_ROWS = (*GROUP, CHUNKS), (*GROUP, 3)
KIND, CODEC, VALUES, PLAIN, PACKED, DATA, DICTIONARY = 1, 4, 5, 6, 7, 9, 11
NEEDED: Final = (KIND, CODEC, VALUES, PLAIN, PACKED, DATA)
FREE: Final = frozenset((VALUES, PLAIN, PACKED, DATA, DICTIONARY, 10, 12, 14, 15, 16))  # 12, 16: statistics
KNOWN: Final = {1: range(1, 8), 3: range(1, 8), 5: range(2, 8), 6: range(1, 17)}  # fields, by length of their path
PAGE_KIND, PAGE_PACKED, PAGE_VALUES, PAGE_STATISTICS = (1,), (3,), (5, 1), (5, 5)
FREE_IN_PAGE: Final = frozenset(((2,), (3,), (4,), PAGE_VALUES, (7, 1)))  # sizes, checksum, counts
DATA_PAGE, DICTIONARY_PAGE = 0, 2 << 1  # zigzag


@dataclass(frozen=True, slots=True)
class Merged:
    """The rows of files that follow each other."""

    first: int  # number of the first of these
    rows: list[int]  # of each
    table: pa.Table  # in one chunk


def merged(data: Sequence[bytes], columns: Collection[str] | None, *, room: int) -> list[Merged]:
    """What those of the files, given as their bytes, hold that can be read together; the others are not mentioned.

    `columns`: top-level names that are read, where a file has them; None: all. `room`: bytes that all of it may take, about.
    """
    found: list[Merged] = []
    left = [number for number, one in enumerate(data) if one[:4] == one[-4:] == MAGIC and len(one) > 2 * TAIL]
    for _ in range(LAYOUTS):
        if len(left) < FEWEST or room <= 0:
            break
        try:
            with extension_failures():
                alike = _Alike.of([data[number] for number in left], columns)
                for chosen in alike.parts(room):
                    room -= int(alike.plain[chosen].sum())
                    found += alike.read(chosen, np.array(left)[chosen], columns)
                left = [number for number, is_ok in zip(left, alike.ok.tolist(), strict=True) if not is_ok]
        except OddStruct:  # the first of them, which the others were to be like
            left = left[1:]
        except (pa.ArrowException, OSError, UnicodeDecodeError):  # one of them is damaged: which one shows when each is read
            break
    return found


# ---- which files are alike ----


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A stored column, in N files."""

    packing: bytes  # its physical type, encodings, path and codec as they stand in a footer
    numbers: Mapping[int, NDArray[np.int64]]  # (N,) by field of ColumnMetaData


@dataclass(frozen=True, slots=True)
class _Alike:
    """N files, of which those that are `ok` may be read together."""

    data: Sequence[bytes]
    ok: NDArray[np.bool_]  # (N,)
    plain: NDArray[np.int64]  # (N,) bytes in memory, texts that repeat counted once
    most: NDArray[np.int64]  # (N,) bytes of memory that they cannot exceed
    rows: NDArray[np.int64]  # (N,)
    leaves: Sequence[_Leaf]
    lists: Mapping[str, NDArray[np.int64]]  # (N,) values of top-level columns whose lists may be of any length
    before: bytes  # of a footer: what comes before its number of rows,
    after: bytes  # and after its row groups

    @classmethod
    def of(cls, data: Sequence[bytes], columns: Collection[str] | None) -> _Alike:
        """Files that are like the first one. Raises OddStruct where that is not to be merged, and what Arrow raises of it."""
        schema = read_metadata(pa.BufferReader(data[0])).schema
        lanes = Lanes(data)
        lengths = lanes.bytes[(lanes.ends - TAIL)[:, None] + np.arange(4)].view("<u4")[:, 0].astype(np.int64)
        ok = (lengths <= LONGEST) & (lengths + TAIL + len(MAGIC) <= lanes.sizes)
        stops = lanes.sizes - TAIL - lengths  # where pages end
        walk = walked(data[0], int(stops[0]), len(data[0]) - TAIL, _is_free)
        _check(walk, data[0])
        lanes.go_to(stops, ok)
        numbers = lanes.follow(walk, ok)
        rows = numbers[ROWS]
        ok &= (lanes.at == lanes.ends - TAIL) & (rows > 0) & (rows == numbers[GROUP_ROWS])
        leaves = list(_leaves(walk, numbers, data[0]))
        for values in (values for leaf in leaves for values in leaf.numbers.values()):
            ok &= values >= 0
        plain, texts = np.zeros((2, len(data)), np.int64)
        lists = dict[str, NDArray[np.int64]]()
        for number, (name, values_per_row) in enumerate(_columns(schema.to_arrow_schema(), len(leaves))):
            if columns is not None and name not in columns:
                continue
            leaf = leaves[number]
            _check_pages(leaf, lanes, stops, ok)
            _add_memory(leaf, rows, schema.column(number), plain, texts)
            if values_per_row is None:
                lists[name] = leaf.numbers[VALUES]
            else:
                ok &= leaf.numbers[VALUES] == values_per_row * rows
        begin, end = walk.spans[()]
        before, after = data[0][begin : walk.spans[ROWS][0]], data[0][walk.spans[GROUPS][1] : end]
        return cls(data, ok, plain, plain + texts, rows, leaves, lists, before, after)

    def parts(self, room: int) -> Iterator[NDArray[np.int64]]:
        """The numbers of those that are read at a time: as many as have `room` in all, and cannot exceed `MAX_BYTES`."""
        left = np.flatnonzero(self.ok)
        left = left[np.cumsum(self.plain[left]) <= room]
        while len(left):
            count = max(1, int(np.searchsorted(np.cumsum(self.most[left]), MAX_BYTES, side="right")))
            if count >= FEWEST:
                yield left[:count]
            left = left[count:]

    def read(self, chosen: NDArray[np.int64], numbers: NDArray[np.int64], columns: Collection[str] | None) -> Iterator[Merged]:
        """The rows of the `chosen` files, which the caller calls by these `numbers`. Raises what Arrow raises of damage."""
        parquet = ParquetFile(pa.BufferReader(self._file(chosen)), page_checksum_verification=True, pre_buffer=False)
        wanted = None if columns is None else [name for name in parquet.schema_arrow.names if name in columns]
        table = in_one_chunk(parquet.read(columns=wanted, use_threads=False))
        table.validate(full=True)
        rows = self.rows[chosen]
        ends = np.cumsum([0, *rows])
        if table.num_rows != ends[-1]:
            raise pa.ArrowInvalid("not as many rows as the files have")
        for name, values in self.lists.items():
            column = table.column(name).chunk(0)
            offsets = (column.storage if isinstance(column, pa.ExtensionArray) else column).offsets.to_numpy()
            if not np.array_equal(np.diff(offsets[ends]), values[chosen]):
                raise pa.ArrowInvalid(f"lists in {name} that end where no file does")
        table = without_objects(table)
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        for part in np.split(np.arange(len(numbers)), breaks):
            first, last = part[0], part[-1]
            here = table.slice(ends[first], ends[last + 1] - ends[first])
            yield Merged(int(numbers[first]), rows[first : last + 1].tolist(), here)

    def _file(self, chosen: NDArray[np.int64]) -> bytes:
        """All bytes of the `chosen` files, and a footer."""
        data = [self.data[number] for number in chosen.tolist()]
        sizes = np.array([len(one) for one in data], np.int64)
        places = np.cumsum(sizes) - sizes
        rows = self.rows[chosen]
        group: list[bytes | NDArray[np.uint8]] = [b"\x19" + list_head(len(self.leaves))]  # field 1: a list of
        for leaf in self.leaves:
            told = {number: values[chosen] for number, values in leaf.numbers.items()}
            group += [b"\x26\x00\x1c" + leaf.packing]  # field 2: an integer, 0; 3: a struct, with fields 1 to 4, and then
            for number, head in (
                (VALUES, b"\x16"),
                (PLAIN, b"\x16"),
                (PACKED, b"\x16"),
                (DATA, b"\x26"),
                (DICTIONARY, b"\x26"),
            ):
                if number in told:
                    group += [head, padded_numbers(told[number] + (places if number in (DATA, DICTIONARY) else 0))]
            group += [b"\x00\x00"]
        group += [b"\x16", padded_numbers(self.plain[chosen]), b"\x16", padded_numbers(rows), b"\x00"]
        total = padded_numbers(rows.sum(keepdims=True)).tobytes()
        footer = b"".join((self.before, total, b"\x19", list_head(len(data)), _side_by_side(group, len(data)), self.after))
        return b"".join((*data, footer, len(footer).to_bytes(4, "little"), MAGIC))


def _side_by_side(parts: Sequence[bytes | NDArray[np.uint8]], count: int) -> bytes:
    """`count` structs, one after the other: of the bytes that are the same in all, and the rows of arrays (N, digits)."""
    same = (np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part for part in parts)
    return np.hstack([np.broadcast_to(part, (count, part.shape[-1])) for part in same]).tobytes()


def _is_free(path: Path) -> bool:
    """Whether the footers of files that are read together may differ there."""
    if path == ROWS:
        return True
    if path[:2] != GROUP or (len(path) > 3 and path[:3] != COLUMNS):
        return False
    return len(path) < 6 or (path[4] == CHUNK_DATA and path[5] in FREE)


def _is_free_in_page(path: Path) -> bool:
    return path in FREE_IN_PAGE or path[:2] == PAGE_STATISTICS


def _check(walk: Walk, data: bytes) -> None:
    """Raise OddStruct for a footer of another writer, of several row groups, or with what is not known here."""
    begin, end = walk.spans.get(CREATED_BY, (0, 0))
    odd = walk.spans[()][1] != len(data) - TAIL or WRITER not in data[begin:end] or (*GROUPS, 1) in walk.spans
    for path in walk.spans:
        where = path[:3] == COLUMNS if len(path) > 3 else path[:2] == GROUP or len(path) == 1
        if where and len(path) in KNOWN and (len(path) < 6 or path[4] == CHUNK_DATA) and path[-1] not in KNOWN[len(path)]:
            odd = True
    if odd or not {ROWS, GROUPS, GROUP_ROWS} <= walk.spans.keys():
        raise OddStruct


def _leaves(walk: Walk, numbers: Mapping[Path, NDArray[np.int64]], data: bytes) -> Iterator[_Leaf]:
    """The stored columns. Raises OddStruct where something is missing of one."""
    column = 0
    while (*COLUMNS, column) in walk.spans:
        meta = (*COLUMNS, column, CHUNK_DATA)
        if not all((*meta, number) in walk.numbers for number in NEEDED) or data[walk.spans[meta][0]] != 0x15:  # field 1
            raise OddStruct
        told = {number: numbers[*meta, number] for number in (*NEEDED[2:], DICTIONARY) if (*meta, number) in numbers}
        yield _Leaf(data[walk.spans[meta][0] : walk.spans[*meta, CODEC][1]], told)
        column += 1


def _columns(schema: pa.Schema, count: int) -> Iterator[tuple[str, int | None]]:
    """Of each of the `count` stored columns: the top-level column that it belongs to, and how many values each row has in it
    (None: any number). Raises OddStruct for columns that are neither flat nor lists of flat values.
    """
    found = [(field.name, values) for field in schema for values in _values_per_row(field.type)]
    if len(found) != count or len(set(schema.names)) < len(schema):
        raise OddStruct
    yield from found


def _values_per_row(kind: pa.DataType) -> list[int | None]:
    """Of each stored column."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _values_per_row(kind.storage_type)
    if types.is_struct(kind):
        inner = [values for field in kind for values in _values_per_row(field.type)]
        if any(values != 1 for values in inner):
            raise OddStruct
        return inner
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        if types.is_nested(kind.value_type) or isinstance(kind.value_type, pa.BaseExtensionType):
            raise OddStruct
        return [kind.list_size if types.is_fixed_size_list(kind) else None]
    if types.is_nested(kind) or types.is_dictionary(kind):
        raise OddStruct
    return [1]


def _check_pages(leaf: _Leaf, lanes: Lanes, stops: NDArray[np.int64], ok: NDArray[np.bool_]) -> None:
    """Let files be `ok` only where the chunk has one data page, at most a dictionary before it, and nothing else."""
    numbers = leaf.numbers
    place = numbers.get(DICTIONARY, numbers[DATA])
    end = place + numbers[PACKED]
    ok &= (place >= len(MAGIC)) & (end <= stops)
    for kind in (DICTIONARY_PAGE, DATA_PAGE) if DICTIONARY in numbers else (DATA_PAGE,):
        if not ok[0]:
            raise OddStruct
        header = walked(lanes.data[0], int(place[0]), int(stops[0]), _is_free_in_page)
        if (
            header.numbers.get(PAGE_KIND) != kind
            or not {PAGE_PACKED, PAGE_VALUES if kind == DATA_PAGE else (7, 1)} <= header.spans.keys()
        ):
            raise OddStruct
        lanes.go_to(place, ok)
        found = lanes.follow(header, ok)
        place = lanes.at - lanes.starts + found[PAGE_PACKED]
        ok &= (found[PAGE_PACKED] >= 0) & (place <= end)
        if kind == DATA_PAGE:
            ok &= (place == end) & (found[PAGE_VALUES] == numbers[VALUES])
        else:
            ok &= place == numbers[DATA]


def _add_memory(leaf: _Leaf, rows: NDArray[np.int64], column: Any, plain: NDArray[np.int64], texts: NDArray[np.int64]) -> None:
    """Add the bytes that a column takes in memory, as `safety.refuse_bomb` counts them; `texts`: what they may be more."""
    values, packed = np.maximum(leaf.numbers[VALUES], rows), leaf.numbers[PLAIN]
    width = WIDTHS.get(column.physical_type) or max(1, column.length)
    plain += np.maximum(packed, values * width)
    if column.physical_type == "BYTE_ARRAY":
        texts += leaf.numbers[VALUES] * packed


# ---- what rows take in memory ----


def in_one_chunk(table: pa.Table) -> pa.Table:
    """The same rows; a table without rows may have no chunks."""
    return table.combine_chunks() if any(column.num_chunks > 1 for column in table.columns) else table


def memory_of(table: pa.Table, starts: NDArray[np.int64]) -> list[int]:
    """Bytes in memory of the rows of each of F files, which are rows starts[f]:starts[f+1] of a table in one chunk.

    What the values take, and no more: however rows came to be in one table, the figure is the same.
    """
    ends = np.zeros(len(starts), np.int64)
    for column in table.columns:
        for chunk in column.chunks:
            ends += _bytes_before(chunk, starts)
    return [int(size) for size in np.diff(ends)]


def _bytes_before(array: pa.Array, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """(F,) bytes of the values before each of `rows`."""
    kind, types = array.type, pa.types
    if not len(array):  # which may have no buffers
        return np.zeros(len(rows), np.int64)
    if isinstance(kind, pa.BaseExtensionType):
        return _bytes_before(array.storage, rows)
    if types.is_struct(kind):
        children = [_bytes_before(child, rows) for child in array.flatten()]
        return sum(children, np.zeros(len(rows), np.int64))
    if types.is_fixed_size_list(kind):
        return _bytes_before(array.values, (rows + array.offset) * kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        width = 8 if types.is_large_list(kind) else 4
        return _bytes_before(array.values, array.offsets.to_numpy()[rows].astype(np.int64)) + rows * width
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        width = 8 if types.is_large_string(kind) or types.is_large_binary(kind) else 4
        offsets = np.frombuffer(array.buffers()[1], f"<i{width}", len(array) + 1, width * array.offset)
        ends: NDArray[np.int64] = offsets[rows].astype(np.int64) + rows * width
    elif types.is_primitive(kind):
        ends = rows * max(1, kind.bit_width // 8)
    else:
        ends = rows * int(array.nbytes) // len(array)
    return ends
