"""Room in the folder of a cache: the blocks that have not been used for longest go; refuses to wait for another process at it.

Looking takes a listing of the folder, so it is done when a share of the bound has been written since, and leaves as much room:
one process never goes beyond the bound, and several together by little.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Room"]

SHARE: Final = 32  # of the bound, that may be written before somebody looks again
LEFT_AFTER: Final = 3600.0  # seconds, after which a block that nobody finished is taken for left behind


class Room:
    """Bytes in a folder of blocks, kept below `size`."""

    def __init__(self, folder: Path, blocks: Path, unfinished: Path, size: int) -> None:
        self._folder, self._blocks, self._unfinished, self._size = folder, blocks, unfinished, size
        self._lock = threading.Lock()
        self._taken = size  # so that the first to write looks

    def make_for(self, size: int) -> None:
        """Make room for `size` bytes that are about to be added, if it is time to look."""
        with self._lock:
            self._taken += size
            if self._taken <= self._size // SHARE:
                return
            self._taken = 0
        with _alone(self._folder / "lock") as alone:
            if alone:
                self._sweep()
                self._make(size)

    def _make(self, size: int) -> None:
        """Remove the least recently used blocks until `size` bytes and a share of the bound are free."""
        found = sorted(_blocks(self._blocks))
        most = self._size - self._size // SHARE - size
        total = sum(size for _, size, _ in found)
        for _, size, block in found:
            if total <= most:
                return
            with suppress(OSError):
                os.unlink(block)
            total -= size
            with suppress(OSError):  # unless it was the last of its file
                os.rmdir(os.path.dirname(block))

    def _sweep(self) -> None:
        """Remove what processes that died left unfinished."""
        with suppress(OSError), os.scandir(self._unfinished) as entries:
            for entry in entries:
                with suppress(OSError):
                    if time.time() - entry.stat().st_mtime > LEFT_AFTER:
                        os.unlink(entry.path)


def _blocks(folder: Path | str, depth: int = 3) -> Iterator[tuple[float, int, str]]:
    """(last use, bytes, path) of each block; those that go meanwhile are left out."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if depth > 1:
                    yield from _blocks(entry.path, depth - 1)
                else:
                    told = entry.stat()
                    yield told.st_mtime, told.st_size, entry.path


@contextmanager
def _alone(place: Path) -> Iterator[bool]:
    """Whether no other process is in here; where nobody can know, all may be: they remove the same blocks."""
    try:
        handle = os.open(place, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        yield True
        return
    try:
        yield _locked(handle)
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a network disk without locks
            return True
    return True
