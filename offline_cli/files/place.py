"""The name of a place and what is there, asked of its filesystem; a failure is never taken for "no such file".

Every request to a remote filesystem goes through `Place.ask`: under the watchdog (`timeouts.py`), and with failures translated
(`failures.py`). Only `info` is used to ask what a place is: the clients' own `exists`, `isfile` and `isdir` turn any failure
into False.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Self, TypeVar

from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from offline_cli.errors import StorageError, StorageNotFound
from offline_cli.files.cache import RemoteCache
from offline_cli.files.clients import refused_inner_option
from offline_cli.files.failures import from_a_client, has_code, no_bucket, storage_failures
from offline_cli.files.file_info import FileInfo
from offline_cli.files.local_files import dangling_link
from offline_cli.files.providers import Provider, provider_of
from offline_cli.files.timeouts import Patience, Pending

__all__ = ["Asked", "Place"]

LOCAL: Final = Patience()  # which local requests do not need

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked(Generic[T]):
    """A request to a remote filesystem, under way."""

    url: str
    doing: str
    pending: Pending[T]

    @property
    def is_done(self) -> bool:
        """Whether the answer has come, or a failure."""
        return self.pending.is_done

    def outcome(self) -> T:
        """The answer; to be called once. Raises StorageError, StorageNotFound."""
        with storage_failures(self.url, self.doing):
            return self.pending.outcome()


@dataclass(frozen=True, slots=True)
class Place:
    """A name in a filesystem, whatever is there."""

    fs: Any  # fsspec.AbstractFileSystem, which has no types
    path: str  # as `fs` spells it
    url: str  # as people read it
    patience: Patience = field(default=LOCAL, compare=False, repr=False)  # with each request to it, if it is remote
    cache: RemoteCache | None = field(default=None, compare=False, repr=False)  # for files read from it
    known: FileInfo | None = field(default=None, compare=False, repr=False)  # of a source that is read: asked once, not anew

    # ---- names ----

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def join(self, *parts: str) -> Self:
        """The location below this one."""
        tail = "/".join(part.strip("/") for part in parts)
        head, chain, rest = self.url.partition("::")  # zip://folder::file.zip: the folder grows, not the archive's name
        url = f"{head.rstrip('/')}/{tail}{chain}{rest}"
        return replace(self, path=f"{self.path.rstrip('/')}/{tail}", url=url, known=None)

    @property
    def is_local(self) -> bool:
        """Whether this is a path of this machine."""
        return isinstance(self.fs, LocalFileSystem)

    @property
    def is_memory(self) -> bool:
        """Whether this is in the memory of this process."""
        return isinstance(self.fs, MemoryFileSystem)

    @property
    def has_folders(self) -> bool:
        """Whether folders exist by themselves here; in object stores they are only prefixes of names."""
        return self.is_local or self.provider.has_folders

    @property
    def is_in_bucket(self) -> bool:
        """Whether this is an object store of buckets, by a client that answers for ranges of bytes."""
        return not self.is_local and self.provider.serves_ranges

    @property
    def forgets_uploads(self) -> bool:
        """Whether this store drops uploads that were never completed by itself, within a week."""
        return self.provider.forgets_uploads

    @property
    def provider(self) -> Provider:
        """What is known of the storage that this place is in. Raises BadConfig, MissingPackage for a package's broken one."""
        protocol = self.fs.protocol
        return provider_of(protocol if isinstance(protocol, str) else protocol[0])

    @property
    def protocols(self) -> set[str]:
        """The schemes that its filesystem goes by."""
        protocol = self.fs.protocol
        return {protocol} if isinstance(protocol, str) else set(protocol)

    def __str__(self) -> str:
        return self.url

    # ---- questions ----

    def begin(self, doing: str, request: Callable[[], T]) -> Asked[T]:
        """As `ask`, for a remote filesystem, without waiting: `outcome()` does, and raises what `ask` raises."""
        return Asked(self.url, doing, self.patience.begin(request, self.url))

    def ask(self, doing: str, request: Callable[[], T]) -> T:
        """What `request()` returns, which asks the filesystem of this place one thing.

        Raises StorageError, naming this place, where it fails or takes too long; StorageNotFound; BadConfig where its client
        cannot use what inner options say.
        """
        with storage_failures(self.url, doing):
            if self.is_local or self.is_memory:
                return request()
            try:
                return self.patience.wait_for(request, self.url)
            except (TypeError, AttributeError) as err:
                refused = refused_inner_option(getattr(self.fs, "storage_options", None), err, self.url)
                if refused is None or not from_a_client(err):
                    raise
                raise refused from err

    def _info(self, doing: str) -> Mapping[str, Any] | None:
        """The filesystem's record of this place, or the one it gave the reader of this source; None where nothing is here."""
        if self.known is not None and self.known.found is not None:
            return self.known.found

        def request() -> Any:
            self._forget_listings()
            try:
                return self.fs.info(self.path)
            except FileNotFoundError as err:
                if has_code(err):  # no bucket
                    raise
                return None
            except Exception as err:
                self._ask_for_a_reason(err)
                raise

        found: Mapping[str, Any] | None = self.ask(doing, request)
        if self.known is not None:
            self.known.found = found
        return found

    def _ask_for_a_reason(self, refused: Exception) -> None:
        """Raise why a question about an object was `refused`, if the store gives the reason: answers to HEAD have no body."""
        if self.is_in_bucket and not has_code(refused):
            self.fs.ls(self.path.partition("/")[0], refresh=True)

    def exists(self) -> bool:
        """Whether a file or folder is here. Raises StorageNotFound where the bucket is missing, if the store reports it."""
        return bool(self.fs.exists(self.path)) if self.is_local else self._info("looking it up") is not None

    def is_dir(self) -> bool:
        """Whether a folder is here."""
        return bool(self.fs.isdir(self.path)) if self.is_local else self._is("directory")

    def is_file(self) -> bool:
        """Whether a file is here."""
        return bool(self.fs.isfile(self.path)) if self.is_local else self._is("file")

    def _is(self, kind: str) -> bool:
        found = self._info("looking it up")
        return found is not None and found["type"] == kind

    def size(self) -> int:
        """Bytes in this file. Raises StorageNotFound."""
        if self.is_local:  # fsspec asks for ten things more, and there may be 100,000 files
            return self.ask("asking for its size", lambda: os.stat(self.path).st_size)
        return int(self.stored("asking for its size")["size"] or 0)

    def missing(self) -> StorageNotFound:
        """The error of this place when nothing is here: of its bucket, where that is missing too."""
        if self._has_no_bucket():
            return no_bucket(self.url)
        nothing = StorageNotFound(f"{self.url} does not exist", where=self.url, fix="check the path")
        return (dangling_link(self.path, shown=self.url) if self.is_local else None) or nothing

    def _has_no_bucket(self) -> bool:
        """Whether the bucket is missing; False too where the store does not say."""
        if not self.is_in_bucket:
            return False
        try:
            return not replace(self, path=self.path.partition("/")[0], known=None).exists()
        except StorageNotFound:
            return True
        except StorageError:
            return False

    def stored(self, doing: str = "opening it") -> Mapping[str, Any]:
        """The filesystem's record of this file: `size`, and more by client. Raises StorageNotFound."""
        found = self._info(doing)
        if found is None:
            raise self.missing()
        return found

    def _forget_listings(self) -> None:
        self.fs.invalidate_cache()  # cloud clients cache listings, and another process may have written since
