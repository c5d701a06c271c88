"""What a Parquet footer says: whether its column chunks can be looked at without ending the process, and where they lie.

Arrow's Python asks for a column chunk (`row_group.column(i)`, and all that is built on it) without catching what C++ throws
there: one changed byte in a footer, a histogram of the wrong length for instance, and the process is aborted. Arrow's reader
builds the same chunks where it does catch. So it is set to read from a file without bytes: it goes through all chunks before it
asks for the first byte, and 30,000 of them take 50 ms.

That file has no bytes to give, and does not raise: Arrow never lets go of what Python raises in a read of this kind, and would
keep with it all frames above, and their shard, in memory for good.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from offline_cli.storage.arrow_reading import let_go

__all__ = ["check_footer", "chosen_columns", "chunk_ranges", "file_ranges", "with_ends"]

NEAR: Final = 256 << 10  # bytes that are rather fetched than left out
SIZE: Final = 1 << 62  # of the file without bytes: more than any offset that is meant seriously


def check_footer(metadata: pq.FileMetaData) -> None:
    """Raise what Arrow raises of a broken file (OSError without a number, ArrowException) where one of its chunks cannot be."""
    reads: list[int] = []
    empty = _NoBytes(reads)
    gone = weakref.ref(empty)
    reader = pq.ParquetFile(pa.PythonFile(empty, mode="r"), metadata=metadata, pre_buffer=True)  # looks up all chunks first
    del empty
    try:
        next(reader.iter_batches(row_groups=range(metadata.num_row_groups), use_threads=False), None)
    except (OSError, pa.ArrowException):
        if not reads:
            raise
    finally:
        del reader
        let_go(gone)  # all chunks are asked for at once, by threads that go on after the first answer


class _NoBytes(io.RawIOBase):
    """A file that has a size and nothing else."""

    def __init__(self, reads: list[int]) -> None:
        """`reads` gets where the file is read: once it is, the footer was gone through."""
        super().__init__()
        self._reads = reads
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: SIZE}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        self._reads.append(self._at)
        return b""


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
