"""Room in the folder of a cache: the blocks that have not been used for longest go; refuses to wait for another process at it.

Looking takes a listing of the folder, so it is done when a share of the bound has been written since, and leaves as much room:
one process never goes beyond the bound, and several together by little.

The folder is one that the user names, and may hold more. What goes has the name of a block in the place of one, ends as blocks
do, and is a file. Links are not followed, and what does not end so stays.
"""

from __future__ import annotations

import os
import re
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

__all__ = ["MAGIC", "Room"]

SHARE: Final = 32  # of the bound, that may be written before somebody looks again
MAGIC: Final = b"ocb1"  # before the CRC-32 at the end of a block
NAMES: Final = tuple(re.compile(name, re.ASCII) for name in ("[0-9a-f]{2}", "[0-9a-f]{62}", "[0-9]{1,12}"))
"""Of a block, and of the folders that it lies in."""
UNFINISHED: Final = re.compile(r"[0-9]+(-[0-9]+){2,3}", re.ASCII)
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
            if not _is_block(block):
                continue
            with suppress(OSError):
                os.unlink(block)
            total -= size
            with suppress(OSError):  # unless it was the last of its file
                os.rmdir(os.path.dirname(block))

    def _sweep(self) -> None:
        """Remove what processes that died left unfinished."""
        if os.path.islink(self._unfinished):
            return
        with suppress(OSError), os.scandir(self._unfinished) as entries:
            for entry in entries:
                with suppress(OSError):
                    ours = UNFINISHED.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
                    if ours and time.time() - entry.stat(follow_symlinks=False).st_mtime > LEFT_AFTER:
                        os.unlink(entry.path)


def _blocks(folder: Path | str, level: int = 0) -> Iterator[tuple[float, int, str]]:
    """(last use, bytes, path) of each file with the name of a block; those that go meanwhile are left out."""
    if os.path.islink(folder):
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if not NAMES[level].fullmatch(entry.name):
                    continue
                if level + 1 < len(NAMES):
                    yield from _blocks(entry.path, level + 1)
                elif entry.is_file(follow_symlinks=False):
                    told = entry.stat(follow_symlinks=False)
                    yield told.st_mtime, told.st_size, entry.path


def _is_block(path: str) -> bool:
    """Whether the file ends as a block does."""
    try:
        with open(path, "rb") as file:
            file.seek(-2 * len(MAGIC), os.SEEK_END)
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


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
