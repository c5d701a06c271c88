"""The SHA-256 of a file, found while somebody else reads the file; refuses to read it a second time where that can be helped.

* A file of this machine is hashed by a thread, from the same open file: hashlib and the system let go of Python's lock, and the
  disk is asked once, because whoever comes second finds the bytes in the system's memory.
* Of a file in a bucket, the parts that come for the reader are hashed on their way; what lies between them, and after the last,
  is fetched at the end.
* Any other file, and a small one, is read again, through the same open file.
"""

from __future__ import annotations

import hashlib
import os
import threading
from types import TracebackType
from typing import BinaryIO, Final, Self

from offline_cli.storage.failures import storage_failures
from offline_cli.storage.locations import Location
from offline_cli.storage.remote_files import PartsInOrder, follow, rest_of

__all__ = ["Hashing", "fingerprint"]

CHUNK: Final = 4 << 20  # bytes
SMALL: Final = 256 << 10  # bytes of a file that are hashed sooner than a thread begins


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


class Hashing:
    """The hash of a file that is open, from entering it on; its end as a context manager is the end of hashing.

    One that is dropped does nothing: its thread ends with the file's last byte.
    """

    def __init__(self, stream: BinaryIO, location: Location) -> None:
        """`stream`: the file at `location`, opened, and not closed before the end of this."""
        self._stream, self._location = stream, location
        self._thread: _Thread | None = None
        self._parts: PartsInOrder | None = None

    def __enter__(self) -> Self:
        if self._location.is_local and hasattr(os, "preadv"):
            handle = self._stream.fileno()
            if os.fstat(handle).st_size > SMALL:
                self._thread = _Thread(handle)
        elif self._location.is_in_bucket:
            self._parts = follow(self._stream)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._thread is not None:
            self._thread.stop()

    @property
    def is_begun(self) -> bool:
        """Whether waiting for `digest` is sooner than to read the file again."""
        return self._parts is None

    def digest(self) -> str:
        """The sha256 (hex), waited for. Raises StorageError."""
        with storage_failures(self._location.url, "reading it"):
            if self._thread is not None:
                return self._thread.outcome()
            if self._parts is not None:
                return rest_of(self._stream, self._parts)
            before = self._stream.tell()
            self._stream.seek(0)
            found = _read_through(self._stream)[1]
            self._stream.seek(before)
            return found


class _Thread:
    """Hashes a file of this machine in a thread that nobody waits for at the end of the process."""

    def __init__(self, handle: int) -> None:
        self._digest = hashlib.sha256()
        self._error: Exception | None = None
        self._stop = threading.Event()
        self._is_done = threading.Event()
        own = os.dup(handle)  # whoever reads the file may close it sooner
        try:
            threading.Thread(target=self._hash, args=(own,), name="offline-cli-hashing", daemon=True).start()
        except BaseException:
            os.close(own)
            raise

    def _hash(self, handle: int) -> None:
        try:
            buffer, at = memoryview(bytearray(CHUNK)), 0
            while not self._stop.is_set() and (size := os.preadv(handle, [buffer], at)):
                self._digest.update(buffer[:size])
                at += size
        except Exception as error:  # noqa: BLE001  raised where the hash is asked for
            self._error = error
        finally:
            os.close(handle)
            self._is_done.set()

    def stop(self) -> None:
        self._stop.set()

    def outcome(self) -> str:
        self._is_done.wait()
        assert not self._stop.is_set(), "asked for within the `with`"
        if self._error is not None:
            raise self._error
        return self._digest.hexdigest()
