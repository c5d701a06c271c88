"""Tables put aside on disk, in one file without a name; refuses to leave it behind, however the process ends.

The file is deleted as soon as it is open (Windows: when it is closed), so that not even a killed process leaves bytes behind.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from offline_cli.errors import StorageError, StorageNotFound

__all__ = ["TempBlock", "TempBlocks"]

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
WORTHWHILE: Final = 0.9  # of a table's bytes
OPTION: Final = "--temp-dir"


@dataclass(frozen=True, slots=True)
class TempBlock:
    """Where one table stands in the file."""

    offset: int
    size: int


class TempBlocks:
    """Tables that are written once and read in any order; a context manager. Raises StorageError throughout."""

    def __init__(self, folder: str | None) -> None:
        """`folder`: where the file is made; None: the system's place for temporary files. Nothing is made before `with`."""
        self._folder = folder or tempfile.gettempdir()
        self._end = 0
        self._compression: str | None = "lz4"
        self._file: Any = None

    def __enter__(self) -> Self:
        with self._failures("making a temporary file"):
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def append(self, table: pa.Table) -> TempBlock:
        """Write the rows of `table`, compressed unless that was found to be of no use."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=self._compression)) as stream:
            stream.write_table(table)
        data = memoryview(sink.getvalue())
        block = TempBlock(self._end, len(data))
        if block.size > WORTHWHILE * table.nbytes:
            self._compression = None
        with self._failures("writing rows to a temporary file"):
            while len(data):
                data = data[self._file.write(data) :]
        self._end += block.size
        return block

    def read(self, block: TempBlock) -> pa.Table:
        """The table that was written as `block`."""
        with self._failures("reading rows of a temporary file"):
            self._file.seek(block.offset)
            data = self._file.read(block.size)
        return pa.ipc.open_stream(data).read_all()

    @contextmanager
    def _failures(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as err:
            what = f"the folder for temporary files does not exist: {self._folder}"
            raise StorageNotFound(what, where=self._folder, fix=f"make it, or name another with {OPTION}") from err
        except OSError as err:
            if err.errno in FULL:
                what = f"{doing} failed after {self._end / 1e6:,.0f} MB: no space left"
                fix = f"name a folder with more space with {OPTION} (the rows take about their size in memory)"
                raise StorageError(what, where=self._folder, fix=fix) from err
            fix = f"name a folder that can be written to with {OPTION}"
            raise StorageError(f"{doing} failed: {err.strerror or err}", where=self._folder, fix=fix) from err
