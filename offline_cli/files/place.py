"""The name of a place and what is there, asked of its filesystem; a failure is never taken for "no such file".

* `Place`: every request to a remote filesystem goes through `Place.ask`: under the watchdog (`timeouts.py`), and with failures
  translated (`failures.py`). Only `info` is used to ask what a place is: the clients' own `exists`, `isfile` and `isdir` turn
  any failure into False.
* `StoredVersion`: one version of a file in a bucket, opened for reading, with or without a cache: complete, and never bytes of
  two versions. The store is asked once more at the end, unless all bytes came in one answer: a file may be replaced by one of
  the same size.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Final, Generic, Self, TypeVar

from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from offline_cli.errors import StorageError, StorageNotFound
from offline_cli.files.cache import BLOCK, CachedFile, RemoteCache
from offline_cli.files.clients import refused_inner_option
from offline_cli.files.failures import from_a_client, has_code, no_bucket, storage_failures
from offline_cli.files.file_info import FileInfo
from offline_cli.files.local_files import dangling_link, files_below, matching_names
from offline_cli.files.prefetch import Ahead
from offline_cli.files.providers import Provider, provider_of
from offline_cli.files.remote_files import SMALL_FILE, buffered_reader
from offline_cli.files.timeouts import Patience, Pending

__all__ = ["Asked", "Place", "StoredVersion"]

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
        return replace(self, path=f"{self.path.rstrip('/')}/{tail}", url=self._url_below(tail), known=None)

    def _url_below(self, tail: str) -> str:
        head, chain, rest = self.url.partition("::")  # zip://folder::file.zip: the folder grows, not the archive's name
        named = tail.replace("%", "%25") if head.startswith("file:/") else tail  # which is decoded again
        return f"{head.rstrip('/')}/{named}{chain}{rest}"

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
    def provider(self) -> Provider:
        """What is known of the storage that this place is in. Raises BadConfig, MissingPackage for a package's broken one."""
        return provider_of(self.protocols[0])

    @property
    def protocols(self) -> tuple[str, ...]:
        """The schemes that its filesystem goes by."""
        protocol = self.fs.protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)

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
        return os.path.exists(self.path) if self.is_local else self._info("looking it up") is not None

    def is_dir(self) -> bool:
        """Whether a folder is here."""
        return self._is_dir_here() if self.is_local else self._is("directory")

    def is_file(self) -> bool:
        """Whether a file is here."""
        return os.path.isfile(self.path) if self.is_local else self._is("file")

    def _is(self, kind: str) -> bool:
        found = self._info("looking it up")
        return found is not None and found["type"] == kind

    def size(self) -> int:
        """Bytes in this file. Raises StorageNotFound."""
        if self.is_local:
            return self._size_here()
        return int(self.stored("asking for its size")["size"] or 0)

    def _files_here(self) -> list[str] | None:
        """The paths of all files below this folder of this machine; None: its filesystem is to be asked."""
        return files_below(self.path) if self.is_local else None

    def _matches_here(self) -> list[str] | None:
        """The same of those that match this pattern."""
        return matching_names(self.path) if self.is_local else None

    def _is_dir_here(self) -> bool:
        """Whether a folder is here; of a source's file the size is kept, which is asked for next."""
        try:
            found = os.stat(self.path)
        except (OSError, ValueError):
            return False
        if self.known is not None and self.known.size is None and stat.S_ISREG(found.st_mode):
            self.known.size = found.st_size
        return stat.S_ISDIR(found.st_mode)

    def _size_here(self) -> int:
        """Of a file of this machine, asked once of a source's: fsspec asks for ten things more, and files may be 100,000."""
        known = self.known
        if known is not None and known.size is not None:
            return known.size
        try:
            size = os.stat(self.path).st_size
        except OSError:  # `ask` says what that means
            size = self.ask("asking for its size", lambda: os.stat(self.path).st_size)
        if known is not None:
            known.size = size
        return size

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


# ---- bytes of one version ----


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
