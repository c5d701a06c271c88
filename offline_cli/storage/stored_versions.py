"""One version of a file in a bucket, opened for reading, through a cache or not: never bytes of two, all that were asked for.

The store is asked once more at the end, unless all bytes came in one answer: a file may be replaced by one of the same size.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from offline_cli.errors import StorageError
from offline_cli.storage.ahead import Ahead
from offline_cli.storage.cache import BLOCK, CachedFile
from offline_cli.storage.place import Place
from offline_cli.storage.remote_files import buffered_reader

__all__ = ["StoredVersion"]


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A file as it is in its store at one moment."""

    place: Place
    size: int
    tag: str  # empty: the store does not say, and nothing of it is kept

    @classmethod
    def of(cls, place: Place) -> StoredVersion:
        """What is at `place` now. Raises StorageNotFound, StorageError."""
        found = place.stored()
        return cls(place, int(found["size"] or 0), _tag(place, found))

    def open(self, ahead: Ahead) -> BinaryIO:
        """Its bytes, seekable. Closing it raises StorageError where they may be of two versions."""
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
    """What tells a file from those of the same name elsewhere; no credentials."""
    endpoints = [os.environ.get(name, "") for name in place.provider.endpoints]
    said = [getattr(place.fs, name, None) for name in place.provider.endpoint_attributes]
    return [*sorted(place.protocols), *endpoints, *(str(name or "") for name in said), place.path]
