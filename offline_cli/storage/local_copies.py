"""`--cache DIR`: fsspec's copies of remote files in a folder of this machine, for the next run.

A copy belongs to the version of the file that the storage reports (ETag, generation), which is asked each time.
One process at a time looks up or makes a copy, as fsspec writes them under their final names. The folder may hold other files,
which are left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from fsspec.implementations.cached import WholeFileCacheFileSystem

from offline_cli.errors import UsageError
from offline_cli.storage.clients import CACHE, CACHE_SIZE
from offline_cli.storage.failures import storage_failures

__all__ = ["LocalCopies", "cache_of"]

SIZE: Final = 10 << 30  # bytes that the copies may take by default
COPY: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class LocalCopies:
    """The folder, and the bytes that copies may take there."""

    folder: str
    size: int

    def open(self, filesystem: Any, path: str) -> BinaryIO:
        """The copy of a file of `filesystem`, made where there is none of its version. Raises what clients raise, OSError."""
        from filelock import FileLock

        copies = WholeFileCacheFileSystem(fs=filesystem, cache_storage=self.folder, check_files=True, expiry_time=None)
        with FileLock(os.path.join(self.folder, "lock")):
            copies.load_cache()
            self._make_room(filesystem.info(path)["size"])
            found: BinaryIO = copies.open(path, "rb")
        os.utime(found.name)
        return found

    def _make_room(self, size: int) -> None:
        """Remove the least recently used copies, so that `size` bytes more fit."""
        with os.scandir(self.folder) as entries:
            copies = [entry for entry in entries if COPY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)]
        found = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in copies)
        excess = sum(size for _, size, _ in found) + size - self.size
        for _, freed, copy in found:
            if excess > 0:
                os.remove(copy)
                excess -= freed


def cache_of(options: Mapping[str, Any] | None) -> LocalCopies | None:
    """Where copies of remote files are kept, by storage options; None: nowhere.

    Raises UsageError for a value that is not a local folder or a number of bytes, StorageError where the folder cannot be made.
    """
    folder, size = (options or {}).get(CACHE), (options or {}).get(CACHE_SIZE, SIZE)
    if folder is None:
        return None
    if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder) or "://" in str(folder):
        fix = "a folder of this machine, such as ~/.cache/offline-cli"
        raise UsageError(f"{folder!r} is not a local folder", where="--cache", fix=fix)
    if isinstance(size, bool) or not isinstance(size, int) or size <= 0:
        raise UsageError(f"{size!r} is not a number of bytes", where="--cache-size", fix="for example --cache-size 50GiB")
    place = os.path.abspath(os.path.expanduser(folder))
    with storage_failures(place, "making the cache"):
        os.makedirs(place, exist_ok=True)
    return LocalCopies(place, size)
