"""What is known of a file while a source is read: of a remote one its size and version, asked once; the bytes of a small one.

Small remote files that were listed together are prefetched, `FILES_AHEAD` at a time, once two of them were read in the
listing's order. Bytes are kept as long as the place that they belong to, up to `KEPT` bytes in a process. Bytes that do not
fit stay until other files were read; after that, a reader reads them again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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

    def add(self, info: FileInfo, size: int, gone: Callable[[int], None]) -> None:
        """`gone`: is called with its number once it is no more."""
        number = id(info)
        self.leave(number)
        self._files[number] = ref(info, lambda _: gone(number)), size
        self.left -= size

    def leave(self, number: int) -> None:
        _, size = self._files.pop(number, (None, 0))
        self.left += size

    def drop_oldest(self) -> None:
        if not self._files:  # it went with its last reader
            return
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
                self._first.add(info, size, self.leave)
                return
            self._last.add(info, size, self.leave)
            while self._last.left < 0 and len(self._last) > 1:
                self._last.drop_oldest()

    def leave(self, number: int) -> None:
        """The file with this number is gone."""
        with self._lock:
            self._first.leave(number)
            self._last.leave(number)


def _are_listed_together(one: FileInfo, other: FileInfo | None) -> bool:
    return other is not None and one.listing is not None and one.listing is other.listing


_room = _Room()


@dataclass(slots=True, weakref_slot=True, eq=False)
class FileInfo:
    """One file or folder; shared by every place that stands for it in the reading of one source."""

    found: Mapping[str, Any] | None = None  # the filesystem's record: `size`, `type`, and more by client; None: not asked yet
    size: int | None = field(default=None, init=False)  # bytes of a file of this machine; None: not asked yet
    inside: Mapping[str, Mapping[str, Any]] | None = field(default=None, init=False)  # of all in a folder without folders
    listing: Listing | None = field(default=None, init=False)
    index: int = field(default=0, init=False)  # in the listing
    _coming: Coming | None = field(default=None, init=False)
    _data: bytes | None = field(default=None, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileInfo, (self.found,)

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


def list_together(paths: Sequence[str], found: Any) -> list[FileInfo]:
    """What is known of files that were listed, in this order; `found`: their records by path, or no mapping."""
    infos = [FileInfo(found[path] if isinstance(found, Mapping) else None) for path in paths]
    listing = Listing(paths, infos)
    for index, info in enumerate(infos):
        info.listing, info.index = listing, index
    return infos
