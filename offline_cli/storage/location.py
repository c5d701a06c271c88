"""One file or folder, wherever it is: what is in it, its bytes, folders made and removed.

Nothing above this module asks what kind of filesystem it is. Failures are StorageError, missing places StorageNotFound.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from offline_cli.errors import StorageNotFound
from offline_cli.storage.blanking import blanked
from offline_cli.storage.failures import has_code, no_bucket, storage_failures
from offline_cli.storage.file_info import FileInfo, list_together
from offline_cli.storage.local_files import open_plain, read_plain, sync_names
from offline_cli.storage.place import Place
from offline_cli.storage.prefetch import Ahead
from offline_cli.storage.stored_versions import StoredVersion

__all__ = ["Location"]


@dataclass(frozen=True, slots=True)
class Location(Place):
    """One file or folder, existing or not."""

    # ---- folders ----

    def files(self) -> list[Location]:
        """Every file below this folder, however deep, sorted by path; a file lists itself. Raises StorageNotFound."""

        def request() -> Any:
            self._forget_listings()
            return self.fs.find(self.path, detail=self.known is not None)

        found = self.ask("listing it", request)
        if not found and not self.exists():
            raise self.missing()
        return self._listed(found, self._below)

    def children(self) -> list[Location]:
        """The files and folders right in this folder, sorted; none where nothing is here."""

        def request() -> list[str]:
            self._forget_listings()
            try:
                return sorted(self.fs.ls(self.path, detail=False))
            except FileNotFoundError as err:
                if has_code(err):
                    raise
                return []

        found = self.ask("listing it", request)
        return [self._below(path) for path in found if path.rstrip("/") != self.path.rstrip("/")]

    def matches(self) -> list[Location]:
        """The places that match this one's path as a pattern, sorted. Raises StorageNotFound where there is none."""

        def request() -> Any:
            self._forget_listings()
            try:
                return self.fs.glob(self.path, detail=self.known is not None)
            except FileNotFoundError:  # some clients say so of a missing bucket, some say that nothing matches
                return []

        found = self.ask("looking for matches", request)
        if not found:
            if self._has_no_bucket():  # which clients take for an empty one
                raise no_bucket(self.url)
            fix = "check the pattern; quote it so that the shell does not expand it"
            raise StorageNotFound(f"nothing matches {self.url}", where=self.url, fix=fix)
        return self._listed(found, lambda path: replace(self, path=path, url=self._url_of(path)))

    def _listed(self, found: Any, at: Callable[[str], Location]) -> list[Location]:
        """The places `at` the paths of `found`, sorted, with what is said of them if it maps paths to that."""
        if not isinstance(found, Mapping):
            return [at(path) for path in sorted(found)]
        known = list_together({path: found[path] for path in sorted(found)})
        return [replace(at(path), known=info) for path, info in zip(sorted(found), known, strict=True)]

    @property
    def as_source(self) -> Location:
        """The same place for who reads it as a source: what has been said of it is not asked again, small files come once.

        Only stores of buckets are remembered so; a change in the middle of reading is an error, or is not seen.
        """
        if self.known is not None or self.is_local or not self.is_in_bucket:
            return self
        return replace(self, known=FileInfo())

    def _url_of(self, path: str) -> str:
        """The URL of another path of this filesystem, with the scheme that this place was named by: az, not abfs."""
        if self.is_local:
            return path
        scheme, mark, chain = self.url.partition("::")
        name = str(self.fs.unstrip_protocol(path)).partition("://")[2]
        return blanked(f"{scheme.partition('://')[0]}://{name}{mark}{chain}")

    def _below(self, path: str) -> Location:
        root = self.path.rstrip("/")
        return self if path == self.path else self.join(path.removeprefix(root))

    # ---- bytes ----

    def open(self, ahead: Ahead | None = None) -> BinaryIO:
        """This file, opened for reading and seeking. Raises StorageNotFound, StorageError; BadData for a pipe or a device.

        `ahead`: of files that are read one after the other; it bounds what is fetched of them beforehand.
        """
        if self.is_local:
            return self.ask("opening it", lambda: open_plain(self.path, shown=self.url))
        if self.is_memory:  # its own files share one position between all who read them
            return io.BytesIO(self.read_bytes())
        if self.is_in_bucket:
            return StoredVersion.of(self).open(ahead or Ahead())
        handle: BinaryIO = self.ask("opening it", lambda: self.fs.open(self.path, "rb", cache_type="readahead"))
        return handle

    def read_bytes(self) -> bytes:
        """All bytes of this file, past any cache. Raises StorageNotFound, StorageError; BadData for a pipe or a device."""
        if self.is_in_bucket:
            with self.without_cache.open() as file:
                return file.read()
        if self.is_local:
            return self.ask("reading it", lambda: read_plain(self.path, shown=self.url))
        return self.ask("reading it", lambda: bytes(self.fs.cat_file(self.path)))

    @property
    def without_cache(self) -> Location:
        """The same place, read from where it is."""
        return self if self.cache is None and self.known is None else replace(self, cache=None, known=None)

    def remove(self) -> None:
        """Remove this file; one that is gone already is no error."""
        if self.exists():
            self.ask("removing it", lambda: self.fs.rm_file(self.path))

    def make_folder(self) -> list[Location]:
        """Make this folder and those above it, whose names a disk keeps from then on.

        Gives the ones that were not there before, outermost first (none in object stores).
        """
        if not self.has_folders:
            return []
        with storage_failures(self.url, "making the folder"):
            made: list[Location] = []
            here: Location | None = self
            while here is not None and not self.fs.exists(here.path):
                made.insert(0, here)
                here = here._parent()
            self.fs.makedirs(self.path, exist_ok=True)
            for folder in made if self.is_local else ():
                sync_names(os.path.dirname(folder.path))
            return made

    def remove_empty_folder(self) -> None:
        """Remove this folder if it is there and empty."""
        if not self.has_folders:
            return
        with storage_failures(self.url, "removing the empty folder"):
            if self.fs.isdir(self.path) and not self.fs.ls(self.path, detail=False):
                self.fs.rmdir(self.path)

    def _parent(self) -> Location | None:
        above = self.path.rstrip("/").rpartition("/")[0]
        return replace(self, path=above, url=self._url_of(above), known=None) if above else None
