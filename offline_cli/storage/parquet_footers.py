"""Where the column chunks of a Parquet file lie, by its footer, which may lie itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

__all__ = ["chosen_columns", "chunk_ranges", "file_ranges", "with_ends"]

NEAR: Final = 256 << 10  # bytes that are rather fetched than left out


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


def with_ends(ranges: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """`ranges`, and what a file of `size` bytes has before and after them, magic and footer, where that is little."""
    first, last = min((start for start, _ in ranges), default=0), max((end for _, end in ranges), default=size)
    ends = [(start, end) for start, end in ((0, first), (last, size)) if start < end <= start + NEAR]
    return sorted([*ranges, *ends])
