"""What is known of a file while a source is read: of a remote one its size and version, asked once; the bytes of a small one.

Small remote files that were listed together are prefetched, `FILES_AHEAD` at a time, once two of them were read in the
listing's order. Bytes are kept as long as the place that they belong to, up to `KEPT` bytes in a process. Bytes that do not
fit stay until other files were read; after that, a reader reads them again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias
from weakref import ref

from offline_cli.files.prefetch import Coming

__all__ = ["FILES_AHEAD", "KEPT", "FileInfo", "Listing", "list_together"]

KEPT: Final = 32 << 20  # bytes of small files that are kept until their place goes
KEPT_LAST: Final = 8 << 20  # bytes of those read last, where these have no room
FILES_AHEAD: Final = 8  # small files under way at once: more than clients have connections for would only queue

Fetch: TypeAlias = "Callable[[str, FileInfo], Coming]"
"""Begins to fetch all of the file that has this name in the listing."""


class _Held:
    """Files that keep their bytes, the oldest first; at most `limit` bytes, unless it is one file."""

    def __init__(self, limit: int) -> None:
        self.left = limit
        self._files: OrderedDict[int, tuple[ref[FileInfo], int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    @property
    def oldest(self) -> FileInfo | None:
        return next(iter(self._files.values()))[0]()

    def add(self, info: FileInfo, size: int) -> None:
        self.leave(info)
        self._files[id(info)] = ref(info), size
        self.left -= size

    def leave(self, info: FileInfo) -> None:
        _, size = self._files.pop(id(info), (None, 0))
        self.left += size

    def drop_oldest(self) -> None:
        _, (oldest, size) = self._files.popitem(last=False)
        self.left += size
        info = oldest()
        if info is not None:
            info.drop()


class _Room:
    """Which small files keep their bytes: the first ones of a listing, as it may be read again, and those read last."""

    def __init__(self) -> None:
        self._first, self._last = _Held(KEPT), _Held(KEPT_LAST)
        self._lock = threading.RLock()  # the garbage collector may come in the middle of anything

    def take(self, info: FileInfo, size: int) -> None:
        """Let `info` keep its `size` bytes; others may have to drop theirs."""
        with self._lock:
            while self._first.left < size and len(self._first) and not _are_listed_together(info, self._first.oldest):
                self._first.drop_oldest()
            if self._first.left >= size:
                self._first.add(info, size)
                return
            self._last.add(info, size)
            while self._last.left < 0 and len(self._last) > 1:
                self._last.drop_oldest()

    def leave(self, info: FileInfo) -> None:
        """`info` is gone."""
        with self._lock:
            self._first.leave(info)
            self._last.leave(info)


def _are_listed_together(one: FileInfo, other: FileInfo | None) -> bool:
    return other is not None and one.listing is not None and one.listing is other.listing


_room = _Room()


class FileInfo:
    """One file or folder; shared by every place that stands for it in the reading of one source."""

    __slots__ = ("__weakref__", "_coming", "_data", "_lock", "found", "index", "inside", "listing", "size")

    def __init__(self, found: Mapping[str, Any] | None = None) -> None:
        self.found = found  # the filesystem's record: `size`, `type`, and more by client; None: not asked yet
        self.size: int | None = None  # bytes of a file of this machine; None: not asked yet
        self.inside: Mapping[str, Mapping[str, Any]] | None = None  # records of all files of a folder that has no other folders
        self.listing: Listing | None = None
        self.index = 0  # in the listing
        self._coming: Coming | None = None
        self._data: bytes | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return FileInfo, (self.found,)

    def __del__(self) -> None:
        if self._data is not None:
            _room.leave(self)

    def drop(self) -> None:
        """Keep the bytes no longer."""
        self._data = None

    def bytes_by(self, fetch: Callable[[], bytes]) -> bytes:
        """All bytes of this file: kept, under way, or by `fetch`. Raises what fetching raises."""
        with self._lock:
            kept = self._data  # which another thread may drop at any time
            if kept is not None:
                return kept
            coming, self._coming = self._coming, None
            self._data = data = fetch() if coming is None else coming.outcome()
            _room.take(self, len(data))
            return data

    def begin(self, fetch: Callable[[], Coming]) -> None:
        """Prefetch it, unless it is here, under way, or being waited for."""
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
        self._infos = [ref(info) for info in infos]  # the listing does not keep unread files alive
        self._last = -1
        self._lock = threading.Lock()

    def read(self, index: int, is_small: Callable[[FileInfo], bool], fetch: Fetch) -> None:
        """Record that a file is read now; those that follow are prefetched if it followed another."""
        with self._lock:
            goes_on, self._last = 0 < index == self._last + 1, index
        for i in range(index + 1, min(index + 1 + FILES_AHEAD, len(self._infos))) if goes_on else ():
            info = self._infos[i]()
            if info is not None and is_small(info):
                info.begin(lambda name=self._names[i], info=info: fetch(name, info))  # type: ignore[misc]  # mypy infers no lambda's defaults


def list_together(found: Mapping[str, Mapping[str, Any] | None]) -> list[FileInfo]:
    """What is known of files that were listed, in this order."""
    infos = [FileInfo(entry) for entry in found.values()]
    listing = Listing(list(found), infos)
    for index, info in enumerate(infos):
        info.listing, info.index = listing, index
    return infos
