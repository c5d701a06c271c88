"""Bounds what a Parquet file may unfold to in memory, before it is read.

Parquet run-length encodes equal values and replaces a repeated text by a number: 800 bytes can stand for 200 MiB, and the sizes
in the file (of encoded pages) do not show it. Here numbers are counted at their size in memory, and texts that a dictionary may
repeat by its entries. A file may unfold to `MAX_BYTES` whatever its size, and to `MAX_RATIO` times its own bytes: a column that
never changes takes nearly nothing, and is no bomb. Of our own datasets each row group has to fit into the memory limit.

Arrow's Python asks for a column chunk (`row_group.column(i)`, and all that is built on it) without catching C++ exceptions: one
changed byte in a footer, a histogram of the wrong length for instance, aborts the process. Arrow's reader builds the same
chunks where it does catch. So `check_footer` gives it a file that claims to be long and ends at its first byte: it goes through
all chunks, and finds no page in any of them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from offline_cli.byte_sizes import byte_size
from offline_cli.choices import TABLE_MEMORY_LIMIT
from offline_cli.errors import PROBLEM, MemoryLimitExceeded, UnsafeData
from offline_cli.parquet.extension_types import ParquetFile

__all__ = ["MAX_BYTES", "MAX_RATIO", "MEMORY_LIMIT", "READING", "Unfolded", "check_bound", "check_footer", "chunks_of"]

Opening = Callable[[], AbstractContextManager[Any]]

MEMORY_LIMIT: Final = byte_size(TABLE_MEMORY_LIMIT, option="--memory-limit")  # bytes that reading may take by default
MAX_BYTES: Final = 64 << 20
MAX_RATIO: Final = 1000
READING: Final = 3  # times what a row group takes once read: texts are collected in memory that doubles while they are copied
PAGE: Final = 1 << 20  # bytes read at a time where the first ones are enough
TEXT: Final = "BYTE_ARRAY"
WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, TEXT: 5}
"""Bytes that a value takes in memory at least; 5: the place of a text, and whether it is null."""
SIZE: Final = 1 << 40  # bytes that the file without bytes claims to have: more than any real offset


class Unfolded(NamedTuple):
    """The memory that the checked columns of a file take."""

    nbytes: int  # at least; texts that repeat are counted once, unless `apart`
    apart: bool  # whether row groups have to be held one at a time: the file is ours, and beyond the bound


# ---- footers ----


def check_footer(metadata: pq.FileMetaData) -> None:
    """Raise what Arrow raises of a broken file (OSError without a number, ArrowException) where one of its chunks cannot be.

    Nothing is checked where the system has no such file (`_cut_file`).
    """
    empty = _cut_file()
    several = metadata.num_row_groups > 1  # whose chunks are all looked up at once only where they are fetched at once
    try:
        if empty is not None:
            buffer = 0 if several else 1 << 10  # bytes of a chunk that are read at once
            reader = pq.ParquetFile(empty, metadata=metadata, pre_buffer=several, buffer_size=buffer)
            next(reader.iter_batches(row_groups=range(metadata.num_row_groups), use_threads=False), None)
    except OSError as error:
        if not (several and str(error).startswith("File too short")):
            raise
    finally:
        reader = empty = None  # the traceback of what is raised refers to this frame


@cache
def _cut_file() -> Any:
    """A file that had `SIZE` bytes when Arrow opened it, and has none: a read ends at once, and is no error to Arrow.

    None where the system has no such files.
    """
    try:
        with open(os.memfd_create("cut"), "r+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile() as file:
            file.truncate(SIZE)
            opened = pa.OSFile(f"/dev/fd/{file.fileno()}")
            file.truncate(0)
    except OSError:  # no /dev here, or a limit to the size of files
        return None
    return opened


def chunks_of(metadata: Any, columns: Collection[str] | None, groups: Iterable[int]) -> list[tuple[int, Any]]:
    """(row group, column chunk's metadata) of `columns`, top-level names; None: of all. The footer has been checked."""
    wanted = None if columns is None else tuple(f"{name}." for name in columns)  # a name may hold dots itself
    paths = [f"{metadata.schema.column(number).path}." for number in range(metadata.num_columns)]
    chosen = [number for number, path in enumerate(paths) if wanted is None or path.startswith(wanted)]
    return [(group, found.column(number)) for group in groups for found in [metadata.row_group(group)] for number in chosen]


# ---- what a file unfolds to ----


def check_bound(
    location: object,
    opening: Opening,
    metadata: Any,
    *,
    size: int,
    columns: Sequence[str] | None = None,
    group: int | None = None,
    memory_limit: int | None = None,
) -> Unfolded:
    """Refuse a file of `size` bytes at `location`, or one `group` of it, whose `columns` (None: all) unfold to too much.

    `opening` gives the file, `metadata` its checked footer. `memory_limit`: of a shard of ours, the bytes that reading a row
    group may take, however well it is packed; None: it is not ours. Raises UnsafeData, MemoryLimitExceeded; Arrow's errors go
    to the caller.
    """
    groups = range(metadata.num_row_groups) if group is None else [group]
    limit = max(MAX_BYTES, MAX_RATIO * size)
    once, total = _unfolded(opening, metadata, columns, groups, limit)
    if total <= limit:
        return Unfolded(once, apart=False)
    if memory_limit is None:
        what = f"{size} bytes of Parquet that unfold to at least {total >> 20} MiB"
        fix = "write the file again from its source"
        raise UnsafeData(what, where=str(location), fix=fix, details={PROBLEM: "unreadable-file"})
    whole = 0
    for number in groups:
        unfolded = _unfolded(opening, metadata, columns, [number], memory_limit // READING)[1]
        if READING * unfolded > memory_limit:
            needs, most = READING * unfolded >> 20, memory_limit >> 20
            what = f"reading row group {number} may take {needs} MiB, more than the memory limit of {most} MiB"
            raise MemoryLimitExceeded(what, where=str(location), fix="raise --memory-limit")
        whole += unfolded
    return Unfolded(whole, apart=True)


def _unfolded(
    opening: Opening, metadata: Any, columns: Collection[str] | None, groups: Iterable[int], limit: int
) -> tuple[int, int]:
    """Bytes in memory of the chosen columns: texts that repeat counted once, and as often as they do.

    The second is an upper bound where that is within `limit`: to add texts up takes longer than to read them, to look at the
    longest entry of a dictionary next to nothing.
    """
    once, repeating = 0, []
    for group, chunk in chunks_of(metadata, columns, groups):
        kind, packed = chunk.physical_type, chunk.total_uncompressed_size
        width = WIDTHS.get(kind) or max(1, metadata.schema.column(_number_of(metadata, chunk)).length)
        once += max(packed, max(chunk.num_values, metadata.row_group(group).num_rows) * width)  # as many are read as rows
        if kind == TEXT and chunk.has_dictionary_page:
            repeating.append((chunk.num_values * packed, group, chunk))  # at most: all of its bytes one text that repeats
    repeating.sort(key=lambda one: one[0], reverse=True)
    total = once + sum(worst for worst, _, _ in repeating)
    for count in (_bounded, _added_up):
        for number, (worst, group, chunk) in enumerate(repeating):
            if once > limit or total <= limit:
                return once, min(once, total) if once > limit else total
            with opening() as stream:
                better = min(worst, count(stream, metadata, group, chunk))
            total += better - worst
            repeating[number] = (better, group, chunk)
    return once, total


def _number_of(metadata: Any, chunk: Any) -> int:
    return next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path == chunk.path_in_schema)


def _bounded(stream: Any, metadata: Any, group: int, chunk: Any) -> int:
    """Bytes that the texts of a chunk cannot exceed, by the longest entry of its dictionary, which comes with the first row.

    That row alone, where it stands outside of the dictionary, is a dictionary of one entry: two entries are the chunk's own.
    """
    batch = next(_numbered(stream, metadata, group, chunk, rows=1, buffer_size=PAGE), None)
    column = None if batch is None else batch.column(0)
    if column is None or not pa.types.is_dictionary(column.type) or len(column.dictionary) < 2:
        return int(chunk.num_values * chunk.total_uncompressed_size)
    longest = pc.max(pc.binary_length(column.dictionary)).as_py() or 0
    return int(chunk.num_values * longest + chunk.total_uncompressed_size)


def _added_up(stream: Any, metadata: Any, group: int, chunk: Any) -> int:
    """Bytes of the texts of a chunk."""
    batches = _numbered(stream, metadata, group, chunk, rows=1 << 16)
    return sum(_lengths(column) for batch in batches for column in batch.columns)


def _numbered(stream: Any, metadata: Any, group: int, chunk: Any, *, rows: int, **options: Any) -> Any:
    """Batches of a column of texts, read as a dictionary and numbers."""
    path = chunk.path_in_schema
    parquet = ParquetFile(stream, metadata=metadata, read_dictionary=[path], pre_buffer=False, **options)
    return parquet.iter_batches(batch_size=rows, row_groups=[group], columns=[path], use_threads=False)


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
