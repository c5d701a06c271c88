"""One version of a file in a bucket, opened for reading, with or without a cache: complete, and never bytes of two versions.

The store is asked once more at the end, unless all bytes came in one answer: a file may be replaced by one of the same size.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from offline_cli.errors import StorageError
from offline_cli.files.cache import BLOCK, CachedFile
from offline_cli.files.file_info import FileInfo
from offline_cli.files.place import Asked, Place
from offline_cli.files.prefetch import Ahead
from offline_cli.files.remote_files import SMALL_FILE, buffered_reader

__all__ = ["StoredVersion"]


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A file as it is in its store at one moment."""

    place: Place
    size: int
    tag: str  # empty: the store does not report it, and nothing is cached

    @classmethod
    def of(cls, place: Place) -> StoredVersion:
        """What is at `place` now. Raises StorageNotFound, StorageError."""
        found = place.stored()
        return cls(place, int(found["size"] or 0), _tag(place, found))

    def open(self, ahead: Ahead) -> BinaryIO:
        """Its bytes, seekable. Closing it raises StorageError where they may be of two versions."""
        return self._open_whole() if self._is_kept else self._open_by_ranges(ahead)

    @property
    def _is_kept(self) -> bool:
        """Whether all of it is fetched at once, and kept for who reads it again."""
        return self.place.known is not None and self.size <= SMALL_FILE

    def _open_whole(self) -> BinaryIO:
        known = self.place.known
        assert known is not None, "only such files are kept"

        def fetch(start: int, end: int) -> bytes:
            if known.listing is not None:
                known.listing.read(known.index, self._is_small, self._begin_next)
            return known.bytes_by(lambda: self._begin().outcome())[start:end]

        return buffered_reader(fetch, self.size)

    def _begin(self) -> Asked[bytes]:
        return self.place.begin("reading it", self._whole)

    @staticmethod
    def _is_small(info: FileInfo) -> bool:
        return info.found is not None and info.found["type"] == "file" and 0 < int(info.found["size"] or 0) <= SMALL_FILE

    def _begin_next(self, path: str, info: FileInfo) -> Asked[bytes]:
        """Begin to fetch another file of the same listing."""
        url = self.place.url.removesuffix(self.place.path) + path
        return StoredVersion.of(replace(self.place, path=path, url=url, known=info))._begin()

    def _whole(self) -> bytes:
        """All of it, in one answer; to be asked for within a request."""
        cached = self._cached()
        if cached is None:
            data = bytes(self.place.fs.cat_file(self.place.path, start=0, end=self.size + 1))  # one more: of a file that grew
            if len(data) != self.size:
                raise self._changed(f"{len(data)} bytes or more came where {self.size} were listed")
            return data
        try:
            data = cached.get(0, self.size)
        except BaseException:
            cached.discard()
            raise
        self._check(cached.close(self._is_there))
        return data

    def _open_by_ranges(self, ahead: Ahead) -> BinaryIO:
        place, cached = self.place, self._cached()
        requests: list[int] = []

        def get(start: int, end: int) -> bytes:
            requests.append(start)
            return self._get(start, end) if cached is None else cached.get(start, end)

        def closed(failed: bool) -> None:
            if cached is not None:
                self._end(cached, failed)
            elif self.tag and len(requests) > 1 and not failed:  # one answer is of one version
                self._check(place.ask("asking whether it changed", self._is_there))

        return buffered_reader(
            lambda start, end: place.ask("reading it", lambda: get(start, end)),
            self.size,
            begin=lambda start, end: place.begin("reading it", lambda: get(start, end)),
            ahead=ahead,
            align=1 if cached is None else BLOCK,
            on_close=closed,
        )

    def _get(self, start: int, end: int) -> bytes:
        data = bytes(self.place.fs.cat_file(self.place.path, start=start, end=end))
        if len(data) != end - start:
            raise self._changed(f"{len(data)} bytes came where {end - start} were asked for")
        return data

    def _changed(self, what: str) -> StorageError:
        fix = "run the command again once nobody writes there"
        return StorageError(f"{what}: the file changed while it was read", where=self.place.url, fix=fix)

    def _cached(self) -> CachedFile | None:
        cache = self.place.cache
        if cache is None or not self.tag:
            return None
        return cache.file(_address(self.place), self.tag, self.size, self._get, self._is_there)

    def _is_there(self) -> bool:
        """Whether the store still has this version; to be asked within a request."""
        self.place.fs.invalidate_cache()
        found = self.place.fs.info(self.place.path)
        return (int(found["size"] or 0), _tag(self.place, found)) == (self.size, self.tag)

    def _end(self, cached: CachedFile, failed: bool) -> None:
        if failed:
            cached.discard()
        else:
            self._check(cached.close(lambda: self.place.ask("asking whether it changed", self._is_there)))

    def _check(self, is_there: bool) -> None:
        if not is_there:
            raise self._changed("another version is there")


def _tag(place: Place, found: Mapping[str, Any]) -> str:
    return str(next((found[name] for name in place.provider.version_tags if found.get(name)), ""))


def _address(place: Place) -> list[str]:
    """What distinguishes a file from those of the same name elsewhere; no credentials."""
    endpoints = [os.environ.get(name, "") for name in place.provider.endpoints]
    said = [getattr(place.fs, name, None) for name in place.provider.endpoint_attributes]
    return [*sorted(place.protocols), *endpoints, *(str(name or "") for name in said), place.path]
