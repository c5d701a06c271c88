"""What is known of a remote file while a source is read: its size and version, asked once, and the bytes of a small one.

Small files that were listed together are fetched ahead of their reader, `FILES_AHEAD` at a time, once two of them were read in
the listing's order. Bytes are kept as long as the place that they belong to, up to `KEPT` bytes in a process; what finds no
room is fetched again by who reads it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias
from weakref import ref

from offline_cli.storage.ahead import Coming

__all__ = ["FILES_AHEAD", "KEPT", "FileInfo", "Listing", "list_together"]

KEPT: Final = 32 << 20  # bytes of small files that are kept
FILES_AHEAD: Final = 8  # small files under way at once: more than clients have connections for would only queue

Fetch: TypeAlias = "Callable[[str, FileInfo], Coming]"
"""Begins to fetch all of the file that a listing calls so."""


class _Room:
    """Bytes that may still be kept."""

    def __init__(self, left: int) -> None:
        self._left = left
        self._lock = threading.RLock()  # the garbage collector may give back in the middle of anything

    def take(self, count: int) -> bool:
        with self._lock:
            if count > self._left:
                return False
            self._left -= count
            return True

    def give_back(self, count: int) -> None:
        with self._lock:
            self._left += count


_room = _Room(KEPT)


class FileInfo:
    """One file or folder; shared by every place that stands for it in the reading of one source."""

    __slots__ = ("__weakref__", "_coming", "_data", "_lock", "found", "index", "listing")

    def __init__(self, found: Mapping[str, Any] | None = None) -> None:
        self.found = found  # what the filesystem says: `size`, `type`, and more by client; None: not asked yet
        self.listing: Listing | None = None
        self.index = 0  # in the listing
        self._coming: Coming | None = None
        self._data: bytes | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return FileInfo, (self.found,)

    def __del__(self) -> None:
        if self._data is not None:
            _room.give_back(len(self._data))

    def bytes_by(self, fetch: Callable[[], Coming]) -> bytes:
        """All bytes of this file: kept, under way, or by `fetch`. Raises what fetching raises."""
        with self._lock:
            if self._data is not None:
                return self._data
            coming, self._coming = self._coming or fetch(), None
            data = coming.outcome()
            if _room.take(len(data)):
                self._data = data
            return data

    def begin(self, fetch: Callable[[], Coming]) -> None:
        """Have it fetched beforehand, unless it is here, under way, or being waited for."""
        if self._lock.acquire(blocking=False):
            try:
                if self._data is None and self._coming is None:
                    self._coming = fetch()
            finally:
                self._lock.release()


class Listing:
    """Files in the order in which they were listed, which is that in which they are read."""

    def __init__(self, names: Sequence[str], infos: Sequence[FileInfo]) -> None:
        self._names = names
        self._infos = [ref(info) for info in infos]  # the listing does not keep what nobody reads
        self._last = -1
        self._lock = threading.Lock()

    def read(self, index: int, is_small: Callable[[FileInfo], bool], fetch: Fetch) -> None:
        """Take note that a file is read now; those that follow are fetched if it followed another."""
        with self._lock:
            goes_on, self._last = 0 < index == self._last + 1, index
        for i in range(index + 1, min(index + 1 + FILES_AHEAD, len(self._infos))) if goes_on else ():
            info = self._infos[i]()
            if info is not None and is_small(info):
                info.begin(lambda name=self._names[i], info=info: fetch(name, info))  # type: ignore[misc]  # mypy infers no lambda's defaults


def list_together(found: Mapping[str, Mapping[str, Any]]) -> list[FileInfo]:
    """What is known of files that were listed, in this order."""
    infos = [FileInfo(entry) for entry in found.values()]
    listing = Listing(list(found), infos)
    for index, info in enumerate(infos):
        info.listing, info.index = listing, index
    return infos
