"""One Parquet file, written so that it exists only when whole.

A thread encodes and compresses tables while the caller prepares the next. An exception in it is raised by one of the next
tables, or at the end. A writer that gives up does not wait for storage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from offline_cli.choices import Compression
from offline_cli.errors import UsageError
from offline_cli.files.locations import Location
from offline_cli.files.staging import StagedFile
from offline_cli.files.timeouts import ended_by
from offline_cli.parquet.encoding import parquet_options, rows_of_group

__all__ = ["COMPRESSIONS", "BackgroundWriter", "ShardWriter", "check_compression"]

COMPRESSIONS: Final[tuple[str, ...]] = get_args(Compression)
BUFFER: Final = 4 << 20  # bytes of a shard that are written at once: each page by itself would wait for Python's lock


class BackgroundWriter:
    """Calls made by a thread, one after the other; ended by exactly one of `finish` and `give_up`."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._pool: ThreadPoolExecutor | None = None  # from the first call on
        self._coming: Future[None] | None = None

    def begin(self, call: Callable[..., None], *arguments: Any) -> None:
        """Make the call once the one before it has ended. Raises what that one raised."""
        self.wait()
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="offline-cli-writing")
        self._coming = self._pool.submit(self._make, call, arguments)

    def _make(self, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        try:
            with ended_by(self._stop):
                call(*arguments)
        finally:
            arguments = ()  # an error refers to this frame: it does not hold the table

    def wait(self) -> None:
        """Wait for the last call. Raises what it raised."""
        if self._coming is not None:
            self._coming.result()  # which stays if it failed, or if we are interrupted
            self._coming = None

    def finish(self) -> None:
        """Wait for the last call, and make no more. Raises what it raised."""
        self.wait()
        self.give_up()

    def give_up(self) -> None:
        """Wait until no call is running: waits for a storage end at once, and what the calls raise is ignored."""
        self._stop.set()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def check_compression(name: str) -> str:
    """`name`, if Parquet files can be compressed that way; else raises UsageError."""
    if name not in COMPRESSIONS:
        raise UsageError(f"no compression is called {name!r}", where="--compression", fix=f"one of {', '.join(COMPRESSIONS)}")
    return name


class ShardWriter:
    """A shard being written; ended by exactly one of `commit` and `discard`. Raises StorageError, some tables later."""

    def __init__(self, target: Location, schema: Any, *, folder: Location, compression: str) -> None:
        """`schema`: a pa.Schema. `folder`: the dataset folder."""
        self.target = target
        self.rows = 0
        self._schema = schema
        self._file = StagedFile(target, folder=folder)
        self._behind = BackgroundWriter()
        try:
            self._sink = pa.BufferedOutputStream(pa.PythonFile(self._file, mode="w"), BUFFER)
            self._parquet = pq.ParquetWriter(self._sink, schema, **parquet_options(schema, compression))
        except BaseException:
            self._file.discard()
            raise

    def write(self, table: Any) -> None:
        """Append a pa.Table of the schema, in row groups of about BLOCK_BYTES."""
        assert table.schema.equals(self._schema), "the file has one schema"
        self.rows += table.num_rows
        self._behind.begin(self._append, [table])

    def _append(self, tables: list[Any]) -> None:
        """The one pa.Table there, which is let go, in one chunk: pages depend on chunks."""
        table = tables.pop().combine_chunks()
        self._parquet.write_table(table, row_group_size=rows_of_group(table))
        self._sink.flush()

    def settle(self) -> None:
        """Wait for all tables, so that `commit` takes only a moment. Raises what writing them raised."""
        self._behind.wait()

    def commit(self) -> tuple[int, str]:
        """Publish the shard under its name, footer included; its bytes and sha256."""
        self._behind.finish()
        self._close()
        self._file.commit()
        return self._file.bytes, self._file.sha256

    def discard(self) -> None:
        """Discard the shard."""
        try:
            self._behind.give_up()
        finally:  # a second Ctrl-C too
            self._file.discard()
            with suppress(pa.ArrowException, OSError):  # after a failed write it may raise once more
                self._close()

    def _close(self) -> None:
        """Write the footer."""
        self._parquet.close()
        self._sink.flush()
