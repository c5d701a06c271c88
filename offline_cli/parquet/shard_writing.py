"""One Parquet file, written so that it exists only when whole.

Threads encode and compress tables, each by itself, while the caller prepares the next; their row groups are written in order
(`joined_row_groups.py`), so that the file's bytes do not depend on how many threads there are. An exception in them is raised
by one of the next tables, or at the end. A writer that gives up does not wait for storage.
"""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from offline_cli.columns import Columns
from offline_cli.errors import UsageError
from offline_cli.files.locations import Location
from offline_cli.files.staging import StagedFile
from offline_cli.files.timeouts import ended_by, processors
from offline_cli.options.shared import Compression
from offline_cli.parquet.joined_row_groups import RowGroupParts
from offline_cli.parquet.row_group_cuts import BLOCK_BYTES, Held, parquet_options
from offline_cli.parquet.safety import in_memory_bytes
from offline_cli.parquet.thrift_footers import MAGIC, TAIL

__all__ = ["COMPRESSIONS", "BackgroundWriter", "ShardWriter", "check_compression"]

COMPRESSIONS: Final[tuple[str, ...]] = get_args(Compression)
BUFFER: Final = 4 << 20  # bytes of a shard that are written at once: each page by itself would wait for Python's lock
WIDE: Final = 64  # columns of Parquet
LARGE: Final = 2 * BLOCK_BYTES  # bytes of a table that is not held in memory in two forms


class BackgroundWriter:
    """Calls made by threads, one after the other; ended by exactly one of `finish` and `give_up`."""

    def __init__(self, threads: int = 1) -> None:
        """`threads`: how many calls may be prepared at a time, and wait."""
        self._threads = threads
        self._stop = threading.Event()
        self._pool: ThreadPoolExecutor | None = None  # from the first call on
        self._coming: deque[Future[None]] = deque()
        self._last: Future[None] | None = None

    def begin(self, call: Callable[..., None], *arguments: Any, first: Callable[[], Any] | None = None) -> None:
        """Queue the call after the one before it; `first` gives one more argument, and is called beside others.

        Raises what a call before raised.
        """
        while len(self._coming) >= self._threads:
            self._coming[0].result()  # which stays the first one if it failed, or if we are interrupted
            self._coming.popleft()
        self._pool = self._pool or ThreadPoolExecutor(self._threads, thread_name_prefix="offline-cli-writing")
        self._last = self._pool.submit(self._make, self._last, call, arguments, first)
        self._coming.append(self._last)

    def _make(
        self,
        before: Future[None] | None,
        call: Callable[..., None],
        arguments: tuple[Any, ...],
        first: Callable[[], Any] | None,
    ) -> None:
        try:
            with ended_by(self._stop):
                if first is not None:
                    arguments = (*arguments, first())
                if before is not None:
                    before.result()
                call(*arguments)
        finally:
            before, first, arguments = None, None, ()  # an error refers to this frame: it does not hold the table

    def wait(self) -> None:
        """Wait for all calls. Raises what the first of them raised that did."""
        while self._coming:
            self._coming[0].result()
            self._coming.popleft()

    def finish(self) -> None:
        """Wait for all calls, and make no more. Raises what one raised."""
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

    def __init__(self, target: Location, schema: Any, *, folder: Location, compression: str, is_plain: bool = False) -> None:
        """`schema`: a pa.Schema. `folder`: the dataset folder. `is_plain`: whatever `compression` says, as `Cuts` has it."""
        self.target = target
        self.is_plain = is_plain
        self._in_memory = 0  # bytes of the tables, as readers count them
        self.rows = 0
        self._schema, self._options = schema, parquet_options(schema, compression, is_plain=is_plain)
        self._file = StagedFile(target, folder=folder)
        self._parts = RowGroupParts()
        threads = _threads_for(schema)
        self._behind = BackgroundWriter(threads)
        self._whole = _Whole(self._file, schema, self._options) if threads == 1 else None  # which has no parts

    def write(self, table: Any, *, rows: Sequence[int]) -> None:
        """Append a pa.Table of the schema in row groups of so many rows."""
        assert table.schema.equals(self._schema), "the file has one schema"
        self._in_memory += in_memory_bytes(table)
        self.rows += table.num_rows
        if self._whole is not None:
            self._behind.begin(self._whole.write, [table], rows)
        elif table.nbytes > LARGE:
            self._behind.wait()  # one such table at a time
            self._behind.begin(self._stream, [table], rows)
        else:
            self._behind.begin(self._append, first=partial(self._encoded, [table], rows))

    def _encoded(self, tables: list[Any], rows: Sequence[int]) -> tuple[Any, bytes]:
        """The row groups of the one pa.Table: their bytes, and the footer of a file of them alone."""
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, self._schema, **self._options) as parquet:
            _write(parquet, tables, rows)
        whole = memoryview(sink.getvalue())
        end = len(whole) - TAIL
        begin = end - int.from_bytes(whole[end : end + 4], "little")
        return whole[len(MAGIC) : begin], bytes(whole[begin:end])

    def _append(self, part: tuple[Any, bytes]) -> None:
        groups, footer = part
        self._begin()
        at = self._file.bytes
        for first in range(0, len(groups), BUFFER):
            self._file.write(groups[first : first + BUFFER])
        self._parts.add(footer, at)

    def _stream(self, tables: list[Any], rows: Sequence[int]) -> None:
        self._begin()
        at = self._file.bytes
        through = _Through(self._file)
        sink = pa.BufferedOutputStream(pa.PythonFile(through, mode="w"), BUFFER)
        with pq.ParquetWriter(sink, self._schema, **self._options) as parquet:
            _write(parquet, tables, rows)
            sink.flush()
            through.footer = bytearray()
        sink.flush()
        self._parts.add(bytes(through.footer[:-TAIL]), at)

    def _begin(self) -> None:
        if not self._file.bytes:
            self._file.write(MAGIC)

    def held(self) -> Held:
        """What is in it, for `cuts_of`."""
        return Held(self._in_memory, self._file.bytes, self._settled_bytes)

    def _settled_bytes(self) -> int:
        self.settle()
        return self._file.bytes

    def settle(self) -> None:
        """Wait for all tables, so that `commit` takes only a moment. Raises what writing them raised."""
        self._behind.wait()

    def commit(self) -> tuple[int, str]:
        """Publish the shard under its name, footer included; its bytes and sha256."""
        self._behind.finish()
        if self._whole is not None:
            self._whole.close()
        else:
            self._file.write(self._parts.footer())
        self._file.commit()
        return self._file.bytes, self._file.sha256

    def discard(self) -> None:
        """Discard the shard."""
        try:
            self._behind.give_up()
        finally:  # a second Ctrl-C too
            self._file.discard()
            if self._whole is not None:
                with suppress(pa.ArrowException, OSError):  # after a failed write it may raise once more
                    self._whole.close()


class _Whole:
    """The file as one writer's."""

    def __init__(self, file: StagedFile, schema: Any, options: dict[str, Any]) -> None:
        try:
            self._sink = pa.BufferedOutputStream(pa.PythonFile(file, mode="w"), BUFFER)
            self._parquet = pq.ParquetWriter(self._sink, schema, **options)
        except BaseException:
            file.discard()
            raise

    def write(self, tables: list[Any], rows: Sequence[int]) -> None:
        _write(self._parquet, tables, rows)
        self._sink.flush()

    def close(self) -> None:
        """Write the footer."""
        self._parquet.close()
        self._sink.flush()


def _threads_for(schema: Any) -> int:
    """Two; one for many columns, whose footers take longer to join than the columns to encode, and on two processors for packed
    episodes: to make their bytes takes the other all its time."""
    packed = Columns.ITEM in schema.names and processors() <= 2
    return 1 if packed or sum(map(_stored_columns, schema.types)) > WIDE else 2


def _stored_columns(kind: Any) -> int:
    """How many columns of Parquet a type is stored in."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return sum(_stored_columns(kind.field(number).type) for number in range(kind.num_fields)) if kind.num_fields else 1


def _write(parquet: Any, tables: list[Any], rows: Sequence[int]) -> None:
    """The one pa.Table there, which is let go, in one chunk: pages depend on chunks."""
    table, first = tables.pop().combine_chunks(), 0
    for count in rows:
        parquet.write_table(table.slice(first, count), row_group_size=max(1, count))
        first += count


class _Through(io.RawIOBase):
    """A file for Arrow that keeps the footer and hands on what is between it and the magic number."""

    def __init__(self, file: StagedFile) -> None:
        super().__init__()
        self._file, self._skip = file, len(MAGIC)
        self.footer: bytearray | None = None  # from its beginning on

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.footer is not None:
            self.footer += view
        else:
            skipped = min(self._skip, len(view))
            self._skip -= skipped
            if len(view) > skipped:
                self._file.write(view[skipped:])
        return len(view)
