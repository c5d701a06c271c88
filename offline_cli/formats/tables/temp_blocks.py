"""Tables put aside on disk, in one file without a name; refuses to leave it behind, however the process ends."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from offline_cli.storage.local_files import TempFile

__all__ = ["TempBlock", "TempBlocks"]

WORTHWHILE: Final = 0.9  # of a table's bytes


@dataclass(frozen=True, slots=True)
class TempBlock:
    """Where one table stands in the file."""

    offset: int
    size: int


class TempBlocks:
    """Tables that are written once and read in any order; a context manager. Raises StorageError throughout."""

    def __init__(self, folder: str | None) -> None:
        """`folder`: where the file is made; None: the system's place for temporary files. Nothing is made before `with`."""
        self._file = TempFile(folder)
        self._compression: str | None = "lz4"

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.__exit__(kind, error, trace)

    def append(self, table: pa.Table) -> TempBlock:
        """Write the rows of `table`, compressed unless that was found to be of no use."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=self._compression)) as stream:
            stream.write_table(table)
        data = sink.getvalue()
        if data.size > WORTHWHILE * table.nbytes:
            self._compression = None
        return TempBlock(self._file.append(data), data.size)

    def read(self, block: TempBlock) -> pa.Table:
        """The table that was written as `block`."""
        return pa.ipc.open_stream(self._file.read(block.offset, block.size)).read_all()
