"""Checks a shard's bytes against the SHA-256 in its manifest, where possible while somebody else reads the file.

Two shards of the same size that changed places, or a shard that another write put there, look whole in every other way. A file
is read a second time only where that cannot be avoided:

* A file of this machine of some MiB is read into memory, from where one thread hashes and another decodes it.
* A thread hashes a larger file of this machine, from the same open file: hashlib and the system release Python's lock, and the
  disk is read once, because the second reader finds the bytes in the system's memory. Where there are few processors, it gives
  way to decoding that takes all of them.
* Of a file in a bucket, the parts that the reader fetches are hashed on their way; what lies between them, and after the last,
  is fetched at the end.
* Any other file, and a small one, is read again, through the same open file.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

import numpy as np
import pyarrow as pa

from offline_cli.errors import PROBLEM, BadData
from offline_cli.files.failures import storage_failures
from offline_cli.files.locations import Location
from offline_cli.files.remote_files import PartsInOrder, follow, rest_of
from offline_cli.files.timeouts import in_daemon_thread, processors
from offline_cli.parquet.safety import MEMORY_LIMIT

__all__ = ["OTHER_SHARD", "Hashing", "Trust", "dropping", "fingerprint"]

OTHER_SHARD: Final = "shard-hash"  # the code of the problem
THREAD: Final = "offline-cli-hashing"
CHUNK: Final = 4 << 20  # bytes
SMALL: Final = 256 << 10  # bytes of a file that is hashed before it is read
WHOLE: Final = 8 << 20  # bytes of a file that is held in memory while it is read
BESIDE: Final = 3 << 19  # bytes of a file from which on a thread hashes it: hashing fewer takes less time than starting one
BUFFER: Final = 8 << 20  # bytes that the thread reads at a time; after each it may wait 5 ms for Python's lock, twice
PART: Final = 2 << 20  # the same where it gives way: about a millisecond
FEW: Final = 4  # processors up to which it gives way
PATIENCE: Final = 0.02  # seconds that a part waits at most


def dropping(shard: Location) -> str:
    """The command that leaves out the broken shards of the dataset that `shard` is one of."""
    folder = shard.url.rpartition("/data/")[0]
    return f"offline-cli repair {shlex.quote(folder) if folder else 'D'} --drop-broken"


class Trust:
    """The manifest's entry for one shard: where it matches, the shard is the writer's own, however well it is packed."""

    def __init__(self, sha256: str, memory_limit: int = MEMORY_LIMIT, *, found: str | None = None) -> None:
        """`sha256`: hex. `memory_limit`: bytes that reading a row group may take nevertheless: a manifest can be hostile too.

        `found`: the sha256 that the shard has, if that is known.
        """
        self.sha256 = sha256
        self.memory_limit = memory_limit
        self._is_true = None if found is None else found == sha256
        self._beside: Hashing | None = None
        self._content: Any = None  # pa.Buffer of the shard, where it is in memory

    @property
    def is_known(self) -> bool:
        """Whether it has been compared."""
        return self._is_true is not None

    def beside(self, stream: BinaryIO, location: Location) -> AbstractContextManager[object]:
        """A context manager within which the shard, opened as `stream`, is hashed while it is read."""
        if self._is_true is not None:
            return nullcontext()
        if self._content is None or self._beside is None:  # else it hashes what is in memory, whatever is open
            self._beside = Hashing(stream, location)
        return self._beside

    def decoding(self) -> AbstractContextManager[object]:
        """A context manager within which several threads decode the shard: hashing waits, where they take all processors."""
        return nullcontext() if self._beside is None or processors() > FEW else self._beside.giving_way()

    def content(self, stream: BinaryIO, location: Location) -> Any:
        """The bytes of a file of this machine, open as `stream`, a pa.Buffer to read; None: it is not held whole.

        They are in memory of Arrow's own, which its threads may let go of at any time. A thread hashes them, if they are many.
        """
        if self._content is None and self._is_true is None and location.is_local:
            size = os.fstat(stream.fileno()).st_size
            if 0 < size <= WHOLE:
                with storage_failures(location.url, "reading it"):
                    stream.seek(0)
                    buffer = pa.allocate_buffer(size)
                    count = stream.readinto(memoryview(buffer))  # type: ignore[attr-defined]  # files of this machine have it
                    stream.seek(0)
                self._content = buffer.slice(0, count)
                self._beside = Hashing(stream, location, self._content)
                self._beside.begin()
        return self._content

    def is_true_at_once(self, stream: BinaryIO, location: Location) -> bool:
        """Whether a small file of this machine, open as `stream`, is the one that is trusted; False of any other file.

        It is hashed before anything is made of its bytes: those of the writer's own file need no other check.
        """
        content = self.content(stream, location)
        if self._is_true is None and content is not None and content.size <= SMALL and _sha256(content) == self.sha256:
            self._is_true = True
        return self._is_true is True

    def is_true_of(self, location: Location) -> bool:
        """Whether the shard there is the one that is trusted; its bytes are read the first time alone. Raises StorageError."""
        if self._is_true is None:
            hashing = self._beside
            digest = hashing.digest() if hashing is not None and hashing.is_begun else fingerprint(location)[1]
            self._is_true = digest == self.sha256
        return self._is_true

    def check(self, location: Location) -> None:
        """Raise BadData unless the shard there, which has been read to its end, is the one that is trusted; StorageError."""
        if self._is_true is None and self._beside is not None:
            self._is_true = self._beside.digest() == self.sha256
        if not self.is_true_of(location):
            what = "the shard has other content than its manifest says: its sha256 is another one"
            fix = "offline-cli validate names every shard that differs; restore them from a copy, or leave them out: "
            raise BadData(what, where=location.url, fix=fix + dropping(location), details={PROBLEM: OTHER_SHARD})


def fingerprint(location: Location) -> tuple[int, str]:
    """Bytes and sha256 (hex) of a file, as its storage has them, past any cache. Raises StorageNotFound, StorageError."""
    with location.without_cache.open() as file, storage_failures(location.url, "reading it"):
        return _read_through(file)


def _read_through(file: BinaryIO) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def _sha256(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()


class Hashing:
    """The hash of a file that is open, from entering it on; its end as a context manager is the end of hashing.

    Dropping it does nothing: its thread ends with the file's last byte.
    """

    def __init__(self, stream: BinaryIO, location: Location, content: Any = None) -> None:
        """`stream`: the file at `location`, opened, not closed before the end of this. `content`: its bytes, a pa.Buffer."""
        self._stream, self._location, self._content = stream, location, content
        self._stop, self._is_free = threading.Event(), threading.Event()
        self._is_free.set()
        self._part = BUFFER if content is None else PART
        self._whole: Future[str] | None = None
        self._parts: PartsInOrder | None = None

    def __enter__(self) -> Self:
        self.begin()
        return self

    def begin(self) -> None:
        """As entering it, which may follow."""
        if self._whole is not None or self._parts is not None:
            return
        if self._content is not None:
            if self._content.size > BESIDE:
                self._whole = in_daemon_thread(THREAD, self._hash, self._content_parts())
        elif self._location.is_local and hasattr(os, "preadv"):
            handle = self._stream.fileno()
            if (size := os.fstat(handle).st_size) > BESIDE:
                own = open(os.dup(handle), "rb", buffering=0)  # noqa: SIM115  `_file_parts` closes it; the reader may close its own sooner
                try:
                    self._whole = in_daemon_thread(THREAD, self._hash, self._file_parts(own, size))
                except BaseException:
                    own.close()
                    raise
        elif self._location.is_in_bucket:
            self._parts = follow(self._stream)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._is_free.set()

    @contextmanager
    def giving_way(self) -> Iterator[None]:
        """Within it no further part is hashed, for PATIENCE seconds."""
        self._part = PART
        self._is_free.clear()
        try:
            yield
        finally:
            self._is_free.set()

    def _hash(self, parts: Iterator[Any]) -> str:
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
            self._is_free.wait(PATIENCE)
            if self._stop.is_set():
                break
        return digest.hexdigest()

    def _content_parts(self) -> Iterator[Any]:
        at, whole = 0, memoryview(self._content)
        while at < len(whole):
            part = whole[at : at + self._part]
            yield part
            at += len(part)

    def _file_parts(self, file: BinaryIO, size: int) -> Iterator[Any]:
        at, buffer = 0, np.empty(min(BUFFER, size), np.uint8).data
        with file:
            while at < size and (count := os.preadv(file.fileno(), [buffer[: self._part]], at)):
                yield buffer[:count]
                at += count

    @property
    def is_begun(self) -> bool:
        """Whether waiting for `digest` is faster than reading the file again."""
        return self._parts is None

    def digest(self) -> str:
        """The sha256 (hex), waited for. Raises StorageError."""
        with storage_failures(self._location.url, "reading it"):
            if self._whole is not None:
                assert not self._stop.is_set(), "asked for within the `with`"
                return self._whole.result()
            if self._parts is not None:
                return rest_of(self._stream, self._parts)
            if self._content is not None:
                return _sha256(self._content)
            before = self._stream.tell()
            self._stream.seek(0)
            found = _read_through(self._stream)[1]
            self._stream.seek(before)
            return found
