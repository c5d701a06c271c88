"""Write a Parquet shard atomically.

A thread encodes and compresses a table while the caller prepares the next; its exceptions are raised by a later call. Floats
are stored plain, text and integers with a dictionary, except `item` and infos. Every page carries a checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from offline_cli.choices import Compression
from offline_cli.columns import Columns
from offline_cli.errors import UsageError
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import StagedFile

BLOCK_BYTES: Final = 8 << 20  # approximate raw bytes of a row group
COMPRESSIONS: Final[tuple[str, ...]] = get_args(Compression)
LONG: Final = (Columns.ITEM, Columns.INFOS, Columns.RESET_INFOS)  # texts and bytes that rarely repeat
BUFFER: Final = 4 << 20  # bytes per write: writing page by page would wait for the GIL each time


def check_compression(name: str) -> str:
    """Return `name`, or raise UsageError if Parquet has no such compression."""
    if name not in COMPRESSIONS:
        raise UsageError(f"unknown compression {name!r}", where="--compression", fix=f"use one of {', '.join(COMPRESSIONS)}")
    return name


class ShardWriter:
    """Writes one shard; call exactly one of `commit` and `discard`. StorageErrors may be raised some tables later."""

    def __init__(self, target: Location, schema: Any, *, folder: Location, compression: str) -> None:
        """`schema`: a pa.Schema. `folder`: the dataset folder."""
        self.target = target
        self.rows = 0
        self._schema = schema
        self._pool = ThreadPoolExecutor(1, "offline-cli")
        self._coming: Future[None] | None = None
        self._file = StagedFile(target, folder=folder)
        try:
            self._sink = pa.BufferedOutputStream(pa.PythonFile(self._file, mode="w"), BUFFER)
            self._parquet = pq.ParquetWriter(self._sink, schema, **_options(schema, compression))
        except BaseException:
            self._file.discard()
            raise

    def write(self, table: Any) -> None:
        """Append a pa.Table of the schema, in row groups of about BLOCK_BYTES."""
        assert table.schema.equals(self._schema), "the file has one schema"
        self.settle()
        self.rows += table.num_rows
        self._coming = self._pool.submit(self._append, [table])

    def _append(self, tables: list[Any]) -> None:
        """Write the only pa.Table in `tables`, combined into one chunk: pages depend on chunks. Drops the reference to it."""
        table = tables.pop().combine_chunks()
        is_small = table.nbytes <= 2 * BLOCK_BYTES  # unlike a single long episode, or images
        rows = table.num_rows if is_small else int(table.num_rows * BLOCK_BYTES / table.nbytes)
        self._parquet.write_table(table, row_group_size=max(1, rows))
        self._sink.flush()

    def settle(self) -> None:
        """Wait until all tables are written, so that `commit` is quick. Raises the errors of writing them."""
        if self._coming is not None:
            self._coming.result()  # kept if it failed, or on an interrupt
            self._coming = None

    def commit(self) -> tuple[int, str]:
        """Write the footer and publish the shard; return its size and sha256."""
        self.settle()
        self._pool.shutdown(cancel_futures=True)
        self._close()
        self._file.commit()
        return self._file.bytes, self._file.sha256

    def discard(self) -> None:
        """Discard the shard."""
        try:
            self._pool.shutdown(cancel_futures=True)
        finally:  # also on a second Ctrl-C
            self._file.discard()
            with suppress(pa.ArrowException, OSError):  # may raise again after a failed write
                self._close()

    def _close(self) -> None:
        """Write the footer."""
        self._parquet.close()
        self._sink.flush()


def _options(schema: Any, compression: str) -> dict[str, Any]:
    """Options of pq.ParquetWriter for a pa.Schema."""
    return {
        "compression": compression,
        "use_dictionary": [path for field in schema for path in _repeating(field.type, field.name) if path not in LONG],
        "write_statistics": [name for name in schema.names if name != Columns.ITEM] if Columns.ITEM in schema.names else True,
        "write_batch_size": 1 << 20,
        "write_page_checksum": True,
    }


def _repeating(kind: Any, path: str) -> Iterator[str]:
    """Paths of Parquet columns to dictionary-encode: text and integers, at any depth.

    Parquet has no 8-bit integers: a pixel takes 4 bytes, as an index into a dictionary only one.
    """
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _repeating(kind.field(index).type, f"{path}.{kind.field(index).name}")
    elif pa.types.is_fixed_size_list(kind):
        yield from _repeating(kind.value_type, f"{path}.list.element")
    elif pa.types.is_string(kind) or pa.types.is_integer(kind):
        yield path
