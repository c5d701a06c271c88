"""Whether a Parquet file would unfold beyond reason; refuses one that would, before any of its rows is read.

Parquet writes a run of equal values as one, and a text that repeats as a number: 800 bytes can stand for 200 MiB, and what
the file says of its sizes (of encoded pages) does not show it. Here numbers are counted as they will be in memory, and texts
that a dictionary may repeat are added up by its entries, which takes no more than these. Files may unfold to `MAX_BYTES`
whatever their size, and to `MAX_RATIO` times their own bytes: a column that never changes takes nearly nothing, and is no
bomb.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from offline_cli.errors import PROBLEM, UnsafeData

__all__ = ["bytes_in_memory", "refuse_bomb"]

Opening = Callable[[], AbstractContextManager[Any]]

MAX_BYTES: Final = 64 << 20
MAX_RATIO: Final = 1000
WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 5}
"""Bytes that a value takes in memory at least; 5: the place of a text, and whether it is null."""


def refuse_bomb(
    opening: Opening,
    metadata: Any,
    size: Callable[[], int],
    *,
    where: str,
    columns: Collection[str] | None = None,
    group: int | None = None,
) -> int:
    """Raise UnsafeData where the `columns` (top-level names; None: all) of a file of `size()` bytes are a bomb.

    `opening` gives the file, and `size` its bytes as stored, if they have to be looked at. `metadata`: its footer. `group`:
    look at that row group alone, for readers that hold no more. Gives the bytes that their values take in memory at least,
    texts that repeat counted once. Arrow's errors go to the caller.
    """
    chunks = _chunks(metadata, columns, range(metadata.num_row_groups) if group is None else [group])
    plain = sum(chunk.memory for chunk in chunks)
    if _unfolded(opening, metadata, plain, chunks, MAX_BYTES) <= MAX_BYTES:
        return plain
    limit = max(MAX_BYTES, MAX_RATIO * size())
    total = _unfolded(opening, metadata, plain, chunks, limit)
    if total > limit:
        what = f"{size()} bytes of Parquet that unfold to at least {total >> 20} MiB"
        fix = "write the file again from its source"
        raise UnsafeData(what, where=where, fix=fix, details={PROBLEM: "unreadable-file"})
    return plain


def bytes_in_memory(metadata: Any, columns: Collection[str] | None = None) -> int:
    """What the values take at least, texts that repeat counted once."""
    return sum(chunk.memory for chunk in _chunks(metadata, columns, range(metadata.num_row_groups)))


class _Chunk(NamedTuple):
    """One column of one row group."""

    group: int
    told: Any  # by the footer
    memory: int  # bytes


def _chunks(metadata: Any, columns: Collection[str] | None, groups: Iterable[int]) -> list[_Chunk]:
    """Each fact is asked for once: small files come by the thousand."""
    chosen = _chosen(metadata, columns)
    found = []
    for group in groups:
        row_group = metadata.row_group(group)
        for column in chosen:
            told = row_group.column(column)
            width = WIDTHS.get(told.physical_type) or max(1, metadata.schema.column(column).length)
            found.append(_Chunk(group, told, max(told.total_uncompressed_size, told.num_values * width)))
    return found


def _chosen(metadata: Any, columns: Collection[str] | None) -> Collection[int]:
    if columns is None:
        return range(metadata.num_columns)
    wanted = tuple(f"{name}." for name in columns)  # a name may hold dots itself
    paths = (metadata.schema.column(i).path for i in range(metadata.num_columns))
    return [i for i, path in enumerate(paths) if f"{path}.".startswith(wanted)]


def _unfolded(opening: Opening, metadata: Any, plain: int, chunks: Collection[_Chunk], limit: int) -> int:
    """Bytes in memory of the column chunks, counted until they are more than `limit`; `plain`: without texts that repeat."""
    total, texts = plain, 0
    for group, told, _ in chunks if plain <= limit else ():
        if told.physical_type != "BYTE_ARRAY" or told.num_values * told.total_uncompressed_size <= limit:
            continue
        if told.has_dictionary_page:  # it could be a bomb by itself
            with opening() as stream:
                texts += _text_bytes(stream, metadata, group, told.path_in_schema)
        total = plain + texts
        if texts > limit:
            break
    return total


def _text_bytes(stream: Any, metadata: Any, group: int, path: str) -> int:
    """Of one column's texts, read as a dictionary and numbers; nested ones are read as they are, in small batches."""
    parquet = pq.ParquetFile(stream, metadata=metadata, read_dictionary=[path])
    batches = parquet.iter_batches(batch_size=1 << 16, row_groups=[group], columns=[path], use_threads=False)
    return sum(_lengths(column) for batch in batches for column in batch.columns)


def _lengths(array: pa.Array) -> int:
    if not pa.types.is_dictionary(array.type):
        return int(array.nbytes)
    lengths = pc.binary_length(array.dictionary)
    return int(pc.sum(pc.cast(lengths, pa.int64()).take(array.indices)).as_py() or 0)
