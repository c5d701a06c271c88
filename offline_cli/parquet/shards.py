"""One Parquet file, read row group by row group (`writing.py` writes them).

Every page carries a checksum, which reading verifies: without it, one byte in four could change in a shard and be read as
another value. Whatever the Parquet reader raises on a broken or hostile file becomes BadData that names the shard. The sha256
that a manifest has is compared by `validate` and `repair` alone: page checksums do not tell two whole shards apart that changed
places.

Arrow's own threads, which fetch column chunks and decode them, release a Python file some time after the caller has its result.
A thread that does so while the interpreter shuts down is killed in the middle of C++, and that aborts the process (`terminate
called without an active exception`). So Arrow opens files of this machine itself (`arrow_file`), and reads any other without
its threads. Of a remote shard the client reads ahead.
"""

from __future__ import annotations

import hashlib
import io
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Any, BinaryIO, Final

import pyarrow as pa

from offline_cli.errors import BadData, MemoryLimitExceeded, StorageNotFound
from offline_cli.parquet.opening import (
    MEMORY_LIMIT,
    READING,
    ParquetFile,
    check_footer,
    extension_failures,
    most_bytes,
    without_objects,
)
from offline_cli.storage.failures import storage_failures
from offline_cli.storage.locations import Location

__all__ = ["OTHER_SHARD", "OpenShard", "arrow_file", "dropping", "fingerprint", "opened", "read_row_groups", "threads_may_read"]

FIX: Final = "restore the file from a copy, or write the dataset again from its source"
OTHER_SHARD: Final = "shard-hash"  # the code of the problem
SMALL: Final = 8 << 20  # bytes of a remote file that is fetched at once
CHUNK: Final = 4 << 20  # bytes that are hashed at once


# ---- opening ----


class OpenShard(ParquetFile):
    """A Parquet file, and the stream that it is read from. Raises what Arrow raises."""

    def __init__(self, stream: BinaryIO, source: Any) -> None:
        """`source`: what Arrow reads in place of `stream` (`arrow_file`)."""
        self.stream = stream
        self.size = stream.seek(0, io.SEEK_END)  # bytes
        self.is_threaded = threads_may_read(source)
        super().__init__(source, pre_buffer=self.is_threaded)
        check_footer(self.metadata)


class opened:  # noqa: N801  reads as what it gives, as in contextlib
    """The Parquet file at a location, closed at the end; a context manager that does nothing when it is dropped.

    Entering it raises BadData where the shard is missing, has another size, or is not Parquet.
    """

    def __init__(self, location: Location, *, size: int | None = None) -> None:
        """`size`: the bytes it must have; None: any."""
        self._location, self._size, self._files = location, size, ExitStack()

    def __enter__(self) -> OpenShard:
        with ExitStack() as stack:
            try:
                stream = stack.enter_context(self._location.open())
            except StorageNotFound as err:
                raise _bad("the shard is missing", self._location) from err
            have = stream.seek(0, io.SEEK_END)
            if self._size is not None and have != self._size:
                raise _bad(f"the shard has {have} bytes, its manifest says {self._size}", self._location)
            stream.seek(0)
            if not self._location.is_local and have <= SMALL:
                stream = stack.enter_context(io.BytesIO(stream.read()))
            with _parquet_failures(self._location):
                shard = OpenShard(stream, stack.enter_context(arrow_file(stream)))
            self._files = stack.pop_all()
        return shard

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._files.close()


def arrow_file(stream: Any) -> AbstractContextManager[Any]:
    """What Arrow should read in place of `stream`, an open file: the same bytes, opened by Arrow; or `stream`."""
    if isinstance(stream, io.BytesIO):
        return pa.BufferReader(stream.getvalue())  # type: ignore[no-any-return]  # pyarrow has no types
    if os.name == "posix" and isinstance(getattr(stream, "raw", None), io.FileIO):
        try:
            return pa.OSFile(f"/dev/fd/{stream.fileno()}")  # type: ignore[no-any-return]
        except OSError:  # no /dev here
            pass
    return nullcontext(stream)


def threads_may_read(source: Any) -> bool:
    """Whether Arrow's threads may read `source`."""
    return isinstance(source, (pa.OSFile, pa.BufferReader))


# ---- reading ----


def read_row_groups(
    file: OpenShard,
    location: Location,
    *,
    columns: Sequence[str] | None = None,
    memory_limit: int = MEMORY_LIMIT,
    groups: Sequence[int] | None = None,
) -> Iterator[Any]:
    """The pa.Table of each row group of an opened shard of ours, in order; None: of all. Raises BadData, StorageError,
    MemoryLimitExceeded.
    """

    def read(group: int) -> Any:
        with _parquet_failures(location):
            source, enough = nullcontext(file.stream), memory_limit // READING
            taken = READING * most_bytes(lambda: source, file.metadata, columns, [group], enough=enough, exact=True)
            if taken > memory_limit:
                needs, limit = f"{taken / 2**20:,.1f} MiB", f"{memory_limit / 2**20:,.1f} MiB"
                what = f"reading row group {group} may take {needs}, more than the memory limit of {limit}"
                raise MemoryLimitExceeded(what, where=location.url, fix="raise --memory-limit")
            return without_objects(file.read_row_groups([group], columns=columns, use_threads=file.is_threaded))

    return map(read, range(file.num_row_groups) if groups is None else groups)


@contextmanager
def _parquet_failures(location: Location) -> Iterator[None]:
    """Within it, errors of Arrow about the bytes raise BadData, errors of storage StorageError."""
    try:
        with storage_failures(location.url, "reading it"):
            try:
                with extension_failures():
                    yield
            except OSError as err:
                if err.errno is not None:  # Arrow's own complaints about bytes are OSErrors without a number
                    raise
                raise _bad(f"the shard cannot be read as Parquet: {err}", location) from err
    except (pa.ArrowException, UnicodeDecodeError) as err:  # names of columns are text, or should be
        raise _bad(f"the shard cannot be read as Parquet: {err}", location) from err


def _bad(what: str, location: Location) -> BadData:
    return BadData(what, where=location.url, fix=f"{FIX}; or leave it out: {dropping(location)}")


def dropping(shard: Location) -> str:
    """The command that leaves out the broken shards of the dataset that `shard` is one of."""
    folder = shard.url.rpartition("/data/")[0]
    return f"offline-cli repair {shlex.quote(folder) if folder else 'D'} --drop-broken"


def fingerprint(location: Location) -> tuple[int, str]:
    """Bytes and sha256 (hex) of a file, as its storage has them, past any cache. Raises StorageNotFound, StorageError."""
    digest, size = hashlib.sha256(), 0
    with location.without_cache.open() as file, storage_failures(location.url, "reading it"):
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()
