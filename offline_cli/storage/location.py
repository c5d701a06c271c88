"""One file or folder, wherever it is: questions about it, its bytes, its folders; refuses to say no where it cannot know.

Nothing above this module asks what kind of filesystem it is. Failures are StorageError, missing places StorageNotFound.

Everything that is asked of a remote filesystem goes through `Location.ask`: under the watchdog (`patience.py`), and with
failures in one language (`failures.py`). What a place is, is asked by `info` alone: the clients' own `exists`, `isfile` and
`isdir` take any failure for a no.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Final, Generic, TypeVar

from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from offline_cli.errors import StorageError, StorageNotFound
from offline_cli.storage.ahead import Ahead
from offline_cli.storage.blanking import blanked
from offline_cli.storage.cache import RemoteCache
from offline_cli.storage.failures import from_a_client, storage_failures
from offline_cli.storage.fsync import sync_names
from offline_cli.storage.inner_options import refused_inner_option
from offline_cli.storage.links import dangling_link
from offline_cli.storage.patience import Patience, Pending
from offline_cli.storage.plain_files import open_plain, read_plain, read_start
from offline_cli.storage.provider_errors import has_code, no_bucket
from offline_cli.storage.stored_versions import StoredVersion
from offline_cli.storage.urls import BUCKETS

__all__ = ["Location"]

FORGETFUL: Final = BUCKETS - {"s3", "s3a"}
OBJECT_STORES: Final = BUCKETS | {"adl", "oss", "obs", "http", "https"}

LOCAL: Final = Patience()  # which asks of this machine do not need

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked(Generic[T]):
    """Something that has been asked of a remote filesystem."""

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
class Location:
    """One file or folder, existing or not."""

    fs: Any  # fsspec.AbstractFileSystem, which has no types
    path: str  # as `fs` spells it
    url: str  # as people read it
    patience: Patience = field(default=LOCAL, compare=False, repr=False)  # with each request to it, if it is remote
    cache: RemoteCache | None = field(default=None, compare=False, repr=False)  # for files read from it

    # ---- names ----

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def join(self, *parts: str) -> Location:
        """The location below this one."""
        tail = "/".join(part.strip("/") for part in parts)
        head, chain, rest = self.url.partition("::")  # zip://folder::file.zip: the folder grows, not the archive's name
        return replace(self, path=f"{self.path.rstrip('/')}/{tail}", url=f"{head.rstrip('/')}/{tail}{chain}{rest}")

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
        return OBJECT_STORES.isdisjoint(self.protocols)

    @property
    def is_in_bucket(self) -> bool:
        """Whether this is an object store of buckets, by a client that answers for ranges of bytes."""
        return not BUCKETS.isdisjoint(self.protocols)

    @property
    def forgets_uploads(self) -> bool:
        """Whether this store drops uploads that were never completed by itself, within a week."""
        return not FORGETFUL.isdisjoint(self.protocols)

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
        """What the filesystem says of this place; None where nothing is here."""

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
        return found

    def _ask_for_a_reason(self, refused: Exception) -> None:
        """Raise why a question about an object was `refused`, if the store says so: answers to HEAD have no words."""
        if self.is_in_bucket and not has_code(refused):
            self.fs.ls(self.path.partition("/")[0], refresh=True)

    def exists(self) -> bool:
        """Whether a file or folder is here. Raises StorageNotFound where the bucket is missing, if the store tells."""
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
            return not replace(self, path=self.path.partition("/")[0]).exists()
        except StorageNotFound:
            return True
        except StorageError:
            return False

    def files(self) -> list[Location]:
        """Every file below this folder, however deep, sorted by path; a file lists itself. Raises StorageNotFound."""

        def request() -> list[str]:
            self._forget_listings()
            return sorted(self.fs.find(self.path))

        found = self.ask("listing it", request)
        if not found and not self.exists():
            raise self.missing()
        return [self._below(path) for path in found]

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

        def request() -> list[str]:
            self._forget_listings()
            try:
                return sorted(self.fs.glob(self.path))
            except FileNotFoundError:  # some clients say so of a missing bucket, some say that nothing matches
                return []

        paths = self.ask("looking for matches", request)
        if not paths:
            if self._has_no_bucket():  # which clients take for an empty one
                raise no_bucket(self.url)
            fix = "check the pattern; quote it so that the shell does not expand it"
            raise StorageNotFound(f"nothing matches {self.url}", where=self.url, fix=fix)
        return [replace(self, path=path, url=self._url_of(path)) for path in paths]

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

    def _forget_listings(self) -> None:
        self.fs.invalidate_cache()  # cloud clients remember listings, and somebody else may have written since

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

    def stored(self, doing: str = "opening it") -> Mapping[str, Any]:
        """What the filesystem says of this file: `size`, and more by client. Raises StorageNotFound."""
        found = self._info(doing)
        if found is None:
            raise self.missing()
        return found

    def read_bytes(self) -> bytes:
        """All bytes of this file, past any cache. Raises StorageNotFound, StorageError; BadData for a pipe or a device."""
        if self.is_in_bucket:
            with self.without_cache.open() as file:
                return file.read()
        if self.is_local:
            return self.ask("reading it", lambda: read_plain(self.path, shown=self.url))
        return self.ask("reading it", lambda: bytes(self.fs.cat_file(self.path)))

    def start(self, most: int) -> tuple[bytes, int]:
        """The first `most` bytes of this file, and how many it has. Raises as `read_bytes` does."""
        if self.is_local:
            return self.ask("opening it", lambda: read_start(self.path, most, shown=self.url))
        with self.open() as file:
            return file.read(most), file.seek(0, io.SEEK_END)

    @property
    def without_cache(self) -> Location:
        """The same place, read from where it is."""
        return self if self.cache is None else replace(self, cache=None)

    def remove(self) -> None:
        """Remove this file; one that is gone already is no error."""
        if self.exists():
            self.ask("removing it", lambda: self.fs.rm_file(self.path))

    # ---- folders ----

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
        return replace(self, path=above, url=self._url_of(above)) if above else None
