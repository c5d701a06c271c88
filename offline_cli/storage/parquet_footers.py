"""Whether what a Parquet footer says of its column chunks can be looked at; refuses one that would end the process.

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
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from offline_cli.storage.arrow_files import let_go

__all__ = ["check_footer"]

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
