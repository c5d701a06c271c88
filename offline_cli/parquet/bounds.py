"""Bounds what a Parquet file may unfold to in memory, before it is read.

Parquet run-length encodes equal values and replaces a repeated text by a number: 800 bytes can stand for 200 MiB, and the sizes
in the file (of encoded pages) do not show it. Here numbers are counted at their size in memory, and texts of a dictionary at
its longest entry. Files of strangers that may unfold to much are read in batches of few rows; of our own datasets each row
group has to fit into the memory limit.

Arrow's Python asks for a column chunk (`row_group.column(i)`, and all that is built on it) without catching C++ exceptions: one
changed byte in a footer, a histogram of the wrong length for instance, aborts the process. Arrow's reader builds the same
chunks where it does catch. So `check_footer` gives it a file that claims to be long and ends at its first byte: it goes through
all chunks, and finds no page in any of them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from offline_cli.byte_sizes import byte_size
from offline_cli.choices import TABLE_MEMORY_LIMIT
from offline_cli.parquet.extension_types import ParquetFile

__all__ = ["MEMORY_LIMIT", "READING", "check_footer", "chunks_of", "most_bytes"]

MEMORY_LIMIT: Final = byte_size(TABLE_MEMORY_LIMIT, option="--memory-limit")  # bytes that reading may take by default
READING: Final = 3  # times what a row group takes once read: texts are collected in memory that doubles while they are copied
PAGE: Final = 1 << 20  # bytes read at a time where the first ones are enough
TEXT: Final = "BYTE_ARRAY"
WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, TEXT: 5}
"""Bytes that a value takes in memory at least; 5: the place of a text, and whether it is null."""
SIZE: Final = 1 << 40  # bytes that the file without bytes claims to have: more than any real offset


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


def most_bytes(
    opening: Callable[[], AbstractContextManager[Any]],
    metadata: Any,
    columns: Collection[str] | None,
    groups: Iterable[int],
    *,
    enough: int,
    exact: bool = False,
) -> int:
    """Bytes that `columns` (None: all) of some row groups take in memory at most; a rough bound where that is within `enough`.

    `exact`: beyond it, texts are added up, which takes longer than to read them. `opening` gives the file, `metadata` its
    checked footer. Raises what Arrow raises.
    """
    lengths = {metadata.schema.column(i).path: metadata.schema.column(i).length for i in range(metadata.num_columns)}
    total, texts = 0, []
    for group, chunk in chunks_of(metadata, columns, groups):
        width = WIDTHS.get(chunk.physical_type) or max(1, lengths[chunk.path_in_schema])
        packed, rows = chunk.total_uncompressed_size, max(chunk.num_values, metadata.row_group(group).num_rows)
        total += max(packed, rows * width)
        if chunk.physical_type == TEXT and chunk.has_dictionary_page:
            texts.append((chunk.num_values * packed, group, chunk))  # at most: all of its bytes one text that repeats
    for count in (_by_longest, _added_up) if exact else (_by_longest,):
        if total + sum(worst for worst, _, _ in texts) <= enough:
            break
        for number, (worst, group, chunk) in enumerate(texts):
            with opening() as stream:
                texts[number] = (min(worst, count(stream, metadata, group, chunk, worst)), group, chunk)
    return int(total + sum(worst for worst, _, _ in texts))


def _by_longest(stream: Any, metadata: Any, group: int, chunk: Any, worst: int) -> int:
    """Bytes that the texts of a chunk cannot exceed, by the longest entry of its dictionary, which comes with the first row.

    That row alone, where it stands outside of the dictionary, is a dictionary of one entry: two entries are the chunk's own.
    """
    batch = next(_numbered(stream, metadata, group, chunk, rows=1, buffer_size=PAGE), None)
    column = None if batch is None else batch.column(0)
    if column is None or not pa.types.is_dictionary(column.type) or len(column.dictionary) < 2:
        return worst
    return int(chunk.num_values * (pc.max(pc.binary_length(column.dictionary)).as_py() or 0))


def _added_up(stream: Any, metadata: Any, group: int, chunk: Any, worst: int) -> int:
    """Bytes of the texts of a chunk; `worst` of texts within lists and structs."""
    found = 0
    for batch in _numbered(stream, metadata, group, chunk, rows=1 << 16):
        column = batch.column(0)
        if not pa.types.is_dictionary(column.type):
            return worst
        sizes = pc.cast(pc.binary_length(column.dictionary), pa.int64())
        found += pc.sum(sizes.take(column.indices)).as_py() or 0
    return found


def _numbered(stream: Any, metadata: Any, group: int, chunk: Any, *, rows: int, **options: Any) -> Any:
    """Batches of a column of texts, read as a dictionary and numbers."""
    path = chunk.path_in_schema
    parquet = ParquetFile(stream, metadata=metadata, read_dictionary=[path], pre_buffer=False, **options)
    return parquet.iter_batches(batch_size=rows, row_groups=[group], columns=[path], use_threads=False)
