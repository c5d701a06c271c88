"""Bounds what a Parquet file may unfold to in memory, and finds its column chunks, although its footer may lie.

Parquet run-length encodes equal values and replaces a repeated text by a number: 800 bytes can stand for 200 MiB, and the sizes
in the file (of encoded pages) do not show it. Here numbers are counted at their size in memory, and texts that a dictionary may
repeat are added up by its entries, which takes no more memory than these. A file may unfold to `MAX_BYTES` whatever its size,
and to `MAX_RATIO` times its own bytes: a column that never changes takes nearly nothing, and is no bomb. Datasets of ours may
go beyond that: of them each row group has to fit into the memory limit (`shards.check_bound`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from offline_cli.byte_sizes import byte_size
from offline_cli.choices import TABLE_MEMORY_LIMIT
from offline_cli.errors import PROBLEM, UnsafeData
from offline_cli.parquet.arrow_reading import ParquetFile

__all__ = [
    "MAX_BYTES",
    "MEMORY_LIMIT",
    "WIDTHS",
    "Opening",
    "Unfolded",
    "chosen_columns",
    "chunk_ranges",
    "file_ranges",
    "refuse_bomb",
    "unfolded_bytes",
]

Opening = Callable[[], AbstractContextManager[Any]]

MEMORY_LIMIT: Final = byte_size(TABLE_MEMORY_LIMIT, option="--memory-limit")  # bytes that reading may take by default
MAX_BYTES: Final = 64 << 20
MAX_RATIO: Final = 1000
SMALL: Final = 1 << 20  # bytes that the texts of a column chunk may take before its dictionary is checked
PREFIXES: Final = "DELTA_BYTE_ARRAY"
PAGE: Final = 1 << 20  # bytes read at a time where the first ones are enough
TEXT: Final = "BYTE_ARRAY"
WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, TEXT: 5}
"""Bytes that a value takes in memory at least; 5: the place of a text, and whether it is null."""


# ---- where columns lie ----


def chosen_columns(metadata: Any, columns: Collection[str] | None) -> Sequence[int]:
    """Numbers of the stored columns that belong to `columns`, top-level names; None: all."""
    if columns is None:
        return range(metadata.num_columns)
    wanted = tuple(f"{name}." for name in columns)  # a name may hold dots itself
    paths = (metadata.schema.column(i).path for i in range(metadata.num_columns))
    return [i for i, path in enumerate(paths) if f"{path}.".startswith(wanted)]


def chunk_ranges(metadata: Any, group: int, columns: Collection[str] | None = None) -> list[tuple[int, int]]:
    """From which byte to before which each column chunk of a row group lies. `columns`: top-level names; None: all.

    `metadata`: a footer, which may lie: chunks before the file or of no length are left out, ones beyond its end are not.
    """
    found = metadata.row_group(group)
    ranges = []
    for number in chosen_columns(metadata, columns):
        chunk = found.column(number)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        if start > 0 and chunk.total_compressed_size > 0:
            ranges.append((start, start + chunk.total_compressed_size))
    return ranges


def file_ranges(
    metadata: Any, columns: Collection[str] | None = None, *, groups: Iterable[int] | None = None
) -> list[tuple[int, int]]:
    """As `chunk_ranges`, of several row groups; None: of all."""
    chosen = range(metadata.num_row_groups) if groups is None else groups
    return [part for group in chosen for part in chunk_ranges(metadata, group, columns)]


# ---- bombs ----


class Unfolded(NamedTuple):
    """The memory that the checked columns of a file take."""

    nbytes: int  # at least; texts that repeat are counted once, unless `apart`
    apart: bool  # whether row groups have to be held one at a time: the file is ours, and beyond the bound
    most: int | None = None  # what they take at most, where that is known to be `MAX_BYTES` or less


def refuse_bomb(
    opening: Opening,
    metadata: Any,
    size: int,
    *,
    where: str,
    columns: Collection[str] | None = None,
    group: int | None = None,
    enough: int = MAX_BYTES,
) -> Unfolded:
    """Raise UnsafeData where the `columns` (top-level names; None: all) of a file of `size` bytes are a bomb.

    `opening` gives the file. `metadata`: its footer. `group`:
    check that row group alone, for readers that hold one at a time. `enough`: no more is looked at once they are known to take
    no more than that. Arrow's errors go to the caller.
    """
    plain, texts = _counted_chunks(metadata, columns, range(metadata.num_row_groups) if group is None else [group])
    most = _at_most(opening, metadata, plain, texts, min(enough, MAX_BYTES))
    if most <= MAX_BYTES:
        return Unfolded(plain, apart=False, most=most)
    limit = max(MAX_BYTES, MAX_RATIO * size)
    if most <= limit:
        return Unfolded(plain, apart=False)
    total = _unfolded(opening, metadata, plain, texts, limit)
    if total <= limit:
        return Unfolded(plain, apart=False)
    what = f"{size} bytes of Parquet that unfold to at least {total >> 20} MiB"
    fix = "write the file again from its source"
    raise UnsafeData(what, where=where, fix=fix, details={PROBLEM: "unreadable-file"})


def unfolded_bytes(opening: Opening, metadata: Any, *, limit: int, columns: Collection[str] | None = None, group: int) -> int:
    """Bytes in memory of the columns of one row group, texts that repeat counted; no longer exact once beyond `limit`."""
    return _unfolded(opening, metadata, *_counted_chunks(metadata, columns, [group]), limit)


class _Texts(NamedTuple):
    """A column of texts of one row group."""

    group: int
    told: Any  # by the footer

    @property
    def worst(self) -> int:
        """Bytes that they cannot exceed, were all of its bytes one text that repeats."""
        return int(self.told.num_values * self.told.total_uncompressed_size)

    @property
    def has_prefixes(self) -> bool:
        """Whether texts may be written as what they share with the one before."""
        return PREFIXES in self.told.encodings

    @property
    def may_repeat(self) -> bool:
        """Whether they may take less room in the file than in memory."""
        return self.told.has_dictionary_page or self.has_prefixes


def _counted_chunks(metadata: Any, columns: Collection[str] | None, groups: Iterable[int]) -> tuple[int, list[_Texts]]:
    """Bytes in memory of the column chunks, texts that repeat counted once; and those texts.

    There may be thousands of row groups, or of small files: each fact is looked up once, and only texts are kept.
    """
    chosen = chosen_columns(metadata, columns)
    total, texts = 0, []
    for group in groups:
        row_group = metadata.row_group(group)
        rows = row_group.num_rows
        for column in chosen:
            told = row_group.column(column)
            kind = told.physical_type
            width = WIDTHS.get(kind) or max(1, metadata.schema.column(column).length)
            total += max(told.total_uncompressed_size, max(told.num_values, rows) * width)  # as many are read as rows
            if kind == TEXT and (one := _Texts(group, told)).may_repeat:
                texts.append(one)
    return total, texts


def _at_most(opening: Opening, metadata: Any, plain: int, texts: Iterable[_Texts], enough: int) -> int:
    """Bytes in memory that the column chunks cannot exceed, by footer and dictionaries alone.

    Texts that mostly differ stand in a dictionary until it is full, and as they are after that. To add them up takes longer
    than to read them, this next to nothing. Mostly the dictionary of the largest chunk alone shows that all are within bounds.
    """
    texts = sorted(texts, key=lambda chunk: chunk.worst, reverse=True)
    total = plain + sum(chunk.worst for chunk in texts)
    for chunk in texts:
        if total <= enough or chunk.worst <= SMALL:
            break
        if chunk.has_prefixes:
            continue
        told = chunk.told
        with opening() as stream:
            longest = _longest_entry(stream, metadata, chunk.group, told.path_in_schema)
        if longest is not None:
            total += min(0, told.num_values * longest + told.total_uncompressed_size - chunk.worst)
    return total


def _longest_entry(stream: Any, metadata: Any, group: int, path: str) -> int | None:
    """Bytes of the longest text in the one dictionary that a column chunk has; None where the dictionary is not visible.

    It comes with the first row. That row alone, where it stands outside of the dictionary, is a dictionary of one entry: two
    entries are the chunk's own, and all of them.
    """
    parquet = ParquetFile(stream, metadata=metadata, read_dictionary=[path], buffer_size=PAGE, pre_buffer=False)
    batches = parquet.iter_batches(batch_size=1, row_groups=[group], columns=[path], use_threads=False)
    column = next((column for batch in batches for column in batch.columns), None)
    if column is None or not pa.types.is_dictionary(column.type) or len(column.dictionary) < 2:
        return None
    return int(pc.max(pc.binary_length(column.dictionary)).as_py() or 0)


def _unfolded(opening: Opening, metadata: Any, plain: int, texts: Iterable[_Texts], limit: int) -> int:
    """Bytes in memory of the column chunks, counted until they are more than `limit`; `plain`: without texts that repeat."""
    total, repeated = plain, 0
    for chunk in texts if plain <= limit else ():
        group, told = chunk
        if chunk.worst <= SMALL:
            continue
        with opening() as stream:
            repeated += (
                _prefixed_bytes(stream, metadata, chunk)
                if chunk.has_prefixes
                else _text_bytes(stream, metadata, group, told.path_in_schema)
            )
        total = plain + repeated
        if repeated > limit:
            break
    return total


def _text_bytes(stream: Any, metadata: Any, group: int, path: str) -> int:
    """Of one column's texts, read as a dictionary and numbers."""
    parquet = ParquetFile(stream, metadata=metadata, read_dictionary=[path], pre_buffer=False)
    batches = parquet.iter_batches(batch_size=1 << 16, row_groups=[group], columns=[path], use_threads=False)
    return sum(_lengths(column) for batch in batches for column in batch.columns)


def _prefixed_bytes(stream: Any, metadata: Any, chunk: _Texts) -> int:
    """Of one column's texts as they are: Arrow makes no dictionary of these. No text is larger than all that is written."""
    rows = max(1, MAX_BYTES // chunk.told.total_uncompressed_size)
    parquet = ParquetFile(stream, metadata=metadata, pre_buffer=False)
    path = chunk.told.path_in_schema
    batches = parquet.iter_batches(batch_size=rows, row_groups=[chunk.group], columns=[path], use_threads=False)
    return sum(int(column.nbytes) for batch in batches for column in batch.columns)


def _lengths(array: pa.Array) -> int:
    types = pa.types
    if types.is_struct(array.type):
        return sum(map(_lengths, array.flatten()))
    if any(is_of(array.type) for is_of in (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_map)):
        return _lengths(array.flatten())
    if not types.is_dictionary(array.type):
        return int(array.nbytes)
    lengths = pc.binary_length(array.dictionary)
    return int(pc.sum(pc.cast(lengths, pa.int64()).take(array.indices)).as_py() or 0)
