"""Places by URL: their contents and bytes, and folders created and removed.

Failures raise StorageError, missing places StorageNotFound; a failure is never taken for "no such file", as the clients' own
`exists`, `isfile` and `isdir` do. Every request goes through `Location.ask`. Local paths are shown as the user wrote them.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO, Final, TypeAlias, TypeVar

from fsspec.core import url_to_fs
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from offline_cli.errors import StorageError, StorageNotFound, UsageError
from offline_cli.storage.blanking import blanked
from offline_cli.storage.failures import REQUEST_BYTES, SECONDS, asked, no_bucket, storage_failures
from offline_cli.storage.filesystems import LocalCopies, cache_of, filesystem_at, place_in
from offline_cli.storage.local_files import SIGNS, open_plain, sync_names
from offline_cli.storage.providers import TIME_LIMIT, Provider, options_for, provider_of

BLOCK: Final = 8 << 20  # bytes of a request, and as many that are read ahead
BUFFER, SMALL_BUFFER = 1 << 20, 1 << 14  # bytes
T = TypeVar("T")
Sources: TypeAlias = "str | os.PathLike[str] | Location | Iterable[str | os.PathLike[str] | Location]"


@dataclass(frozen=True, slots=True)
class Location:
    """One file or folder, existing or not."""

    fs: Any  # fsspec.AbstractFileSystem, which has no types
    path: str  # as `fs` spells it
    url: str  # as people read it
    time_limit: float = field(default=SECONDS, compare=False, repr=False)  # seconds that a request may take
    cache: LocalCopies | None = field(default=None, compare=False, repr=False)  # of files read from it
    record: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)  # of a listed remote file

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def join(self, *parts: str) -> Location:
        """The location below this one."""
        tail = "/".join(part.strip("/") for part in parts)
        return replace(self, path=f"{self.path.rstrip('/')}/{tail}", url=self._url_below(tail), record=None)

    def parent(self) -> Location | None:
        """The folder that this is in; None: it is the root, or the bucket itself."""
        above = self.path.rstrip("/").rpartition("/")[0]
        return replace(self, path=above, url=self._url_of(above), record=None) if above else None

    def _url_below(self, tail: str) -> str:
        named = tail.replace("%", "%25") if self.url.startswith("file:/") else tail  # which is decoded again
        return f"{self.url.rstrip('/')}/{named}"

    def _url_of(self, path: str) -> str:
        """The URL of another path of this filesystem, with the scheme that this place was named by: az, not abfs."""
        if self.is_local:
            return path
        name = str(self.fs.unstrip_protocol(path)).partition("://")[2]
        return blanked(f"{self.url.partition('://')[0]}://{name}")

    # ---- kinds of storage ----

    @property
    def is_local(self) -> bool:
        """Whether this is a path of this machine."""
        return isinstance(self.fs, LocalFileSystem)

    @property
    def is_memory(self) -> bool:
        """Whether this is in the memory of this process."""
        return isinstance(self.fs, MemoryFileSystem)

    @property
    def is_arrow(self) -> bool:
        """Whether this is in a filesystem of `pyarrow.fs`, which has none of the abilities of fsspec's clients."""
        return isinstance(self.fs, ArrowFSWrapper)

    @property
    def is_in_bucket(self) -> bool:
        """Whether this is an object store of buckets, by a client that answers for ranges of bytes."""
        return not self.is_local and self.provider.serves_ranges

    @property
    def has_folders(self) -> bool:
        """Whether folders exist by themselves here; in object stores they are only prefixes of names."""
        return self.is_local or self.provider.has_folders

    @property
    def provider(self) -> Provider:
        """What is known of the storage that this place is in."""
        protocol = self.fs.protocol
        return provider_of(protocol if isinstance(protocol, str) else protocol[0])

    # ---- questions ----

    def ask(self, doing: str, request: Callable[[], T], *, moving: int = 0) -> T:
        """What `request()` returns, which asks the filesystem of this place one thing. `moving`: bytes, where these are many.

        Raises StorageError, naming this place, where it fails or takes too long; StorageNotFound; UsageError for an option
        that the client does not take.
        """
        if self.is_local or self.is_memory:
            with storage_failures(self.url, doing):
                return request()
        return asked(request, self.url, doing, self.time_limit * max(1.0, moving / REQUEST_BYTES))

    def _info(self) -> Mapping[str, Any] | None:
        """The filesystem's record of this place; None where nothing is here."""

        def request() -> Any:
            self._forget()
            try:
                return self.fs.info(self.path)
            except FileNotFoundError:
                return None
            except Exception as error:
                if self.provider.container and not isinstance(error, (ConnectionError, TimeoutError)):
                    self.fs.ls(self.path.partition("/")[0], refresh=True)  # answers to HEAD have no body: this may say why
                raise

        found: Mapping[str, Any] | None = self.record or self.ask("looking it up", request)
        return found

    def _forget(self) -> None:
        """Drop listings that cloud clients keep: another process may have written since. What is pinned stays as it is."""
        if self.provider.pin is None:
            self.fs.invalidate_cache()

    def exists(self) -> bool:
        """Whether a file or folder is here."""
        return os.path.exists(self.path) if self.is_local else replace(self, record=None)._info() is not None

    def is_dir(self) -> bool:
        """Whether a folder is here."""
        return os.path.isdir(self.path) if self.is_local else (self._info() or {}).get("type") == "directory"

    def is_file(self) -> bool:
        """Whether a file is here."""
        return os.path.isfile(self.path) if self.is_local else (self._info() or {}).get("type") == "file"

    def size(self) -> int:
        """Bytes in this file. Raises StorageNotFound."""
        if self.is_local:
            return self.ask("asking for its size", lambda: os.stat(self.path).st_size)
        found = self._info()
        if found is None:
            raise self.missing()
        return int(found["size"] or 0)

    def missing(self) -> StorageNotFound:
        """The error of this place when nothing is here: of its bucket, where that is missing too."""
        if self._has_no_bucket():
            return no_bucket(self.url)
        fix = f"check the path{self.provider.unseen}"
        return StorageNotFound(f"{self.url} does not exist", where=self.url, fix=fix)

    def _has_no_bucket(self) -> bool:
        """Whether the bucket is missing; False too where the store does not say."""
        try:
            has_bucket = self.is_in_bucket and self.provider.container
            return bool(has_bucket) and not replace(self, path=self.path.partition("/")[0]).exists()
        except StorageError as err:
            return isinstance(err, StorageNotFound)

    # ---- folders ----

    def files(self) -> list[Location]:
        """Every file below this folder, however deep, sorted by path; a file lists itself. Raises StorageNotFound.

        What a listing says of a remote file (its size, its version) is not asked for again when that is read.
        """
        found = self._listed("find", **({"on_error": "raise"} if self.is_local else {"detail": True}))
        if not found and not self.exists():
            raise self.missing()
        cut = len(self.path.rstrip("/")) + 1
        return [replace(one, url=self.url if one.path == self.path else self._url_below(one.path[cut:])) for one in found]

    def children(self) -> list[Location]:
        """The files and folders right in this folder, sorted; none where nothing is here."""
        root = self.path.rstrip("/")
        found = [one.path for one in self._listed("ls", detail=False) if one.path.rstrip("/") != root]
        return [self.join(path.removeprefix(root)) for path in found]

    def matches(self) -> list[Location]:
        """The places that match this one's path as a pattern, sorted. Raises StorageNotFound where there is none."""
        found = self._listed("glob", detail=not self.is_local)
        if not found:
            if self._has_no_bucket():  # which clients take for an empty listing
                raise no_bucket(self.url)
            fix = "check the pattern; quote it so that the shell does not expand it"
            raise StorageNotFound(f"nothing matches {self.url}", where=self.url, fix=fix)
        return [replace(one, url=self._url_of(one.path)) for one in found]

    def _listed(self, method: str, **how: Any) -> list[Location]:
        """What a method of the filesystem lists, sorted by path, with its records where it gives them."""

        def request() -> Any:
            self._forget()
            try:
                return getattr(self.fs, method)(self.path, **how)
            except FileNotFoundError:  # some clients say so of a missing bucket or folder, some list nothing
                if method == "find":
                    raise
                return []

        found = self.ask("listing it", request)
        records = found if isinstance(found, Mapping) else {}
        return [replace(self, path=path, record=records.get(path)) for path in sorted(found)]

    def make_folder(self) -> list[Location]:
        """Make this folder and those above it, and sync their names to disk.

        Gives the ones that were not there before, outermost first (none in object stores).
        """
        if not self.has_folders:
            return []
        made: list[Location] = []
        here: Location | None = self
        while here is not None and not here.exists():
            made.insert(0, here)
            here = here.parent()

        def request() -> None:
            self.fs.makedirs(self.path, exist_ok=True)
            for folder in made if self.is_local else ():
                sync_names(os.path.dirname(folder.path))

        self.ask("making the folder", request)
        return made

    def check_writable(self) -> None:
        """Raise StorageError where this folder of this machine could not be made, or nothing in it; others are not asked.

        Raises UsageError for storage that is only read.
        """
        self.refuse_read_only()
        here = self.path
        while self.is_local and not os.path.lexists(here):
            here = os.path.dirname(here) or os.curdir
        if self.is_local and not (os.path.isdir(here) and os.access(here, os.W_OK | os.X_OK)):
            what = f"nothing can be written there: {here} is no folder, or its permissions do not allow it"
            raise StorageError(what, where=self.url, fix="check the permissions, or name another folder")

    def refuse_read_only(self) -> None:
        """Raise UsageError for storage that is only read."""
        if self.provider.read_only:
            fix = "write to a folder or a bucket, and then offline-cli publish D --to hf://datasets/OWNER/NAME"
            raise UsageError("nothing is written to the Hub file by file", where=self.url, fix=fix)

    def remove_empty_folder(self) -> None:
        """Remove this folder if it is there and empty."""

        def request() -> None:
            if self.fs.isdir(self.path) and not self.fs.ls(self.path, detail=False):
                self.fs.rmdir(self.path)

        if self.has_folders:
            self.ask("removing the empty folder", request)

    def remove(self) -> None:
        """Remove this file; one that is gone already is no error."""
        if self.exists():
            self.ask("removing it", lambda: self.fs.rm_file(self.path))

    # ---- bytes ----

    def open(self, *, ahead: bool = True) -> BinaryIO:
        """This file, opened for reading and seeking. `ahead`: a remote one is read in large blocks, from front to back.

        Raises StorageNotFound, StorageError; BadData for a pipe or a device.
        """
        if self.is_local:
            return self.ask("opening it", lambda: open_plain(self.path, shown=self.url))
        if self.is_memory:  # its own files share one position between all readers
            return io.BytesIO(self.ask("reading it", lambda: bytes(self.fs.cat_file(self.path))))
        if self.cache is not None and self.is_in_bucket and not self.is_arrow:
            return self.ask("copying it to the cache", partial(self.cache.open, self.fs, self.path), moving=self.size())

        def request() -> Any:
            if self.record is None:
                self._forget()
            block = {"block_size": BLOCK} if self.is_in_bucket else {}
            return self.fs.open(
                self.path, "rb", **block, **({} if self.is_arrow else {"cache_type": "readahead" if ahead else "none"})
            )

        return io.BufferedReader(_RemoteFile(self, self.ask("opening it", request)), BUFFER if ahead else SMALL_BUFFER)

    def read_bytes(self) -> bytes:
        """All bytes of this file, past any cache. Raises StorageNotFound, StorageError; BadData for a pipe or a device."""
        with self.without_cache.open() as file, storage_failures(self.url, "reading it"):
            return file.read()

    def start(self, most: int) -> tuple[bytes, int]:
        """The first `most` bytes of this file, and how many it has. Raises as `read_bytes` does."""
        if self.is_local:
            with self.open() as file:
                return file.read(most), os.fstat(file.fileno()).st_size
        size, how = self.size(), {"seekable": True} if self.is_arrow else {}  # else its stream knows no position
        if not size:
            return b"", 0
        return self.ask("reading it", lambda: bytes(self.fs.cat_file(self.path, end=most, **how))), size

    @property
    def without_cache(self) -> Location:
        """The same place, read from where it is."""
        return replace(self, cache=None, record=None)


class _RemoteFile(io.RawIOBase):
    """A client's open file, each read of which is one bounded request."""

    def __init__(self, place: Location, raw: Any) -> None:
        super().__init__()
        self._place, self._raw = place, raw
        self._size: int | None = getattr(raw, "size", None)  # None: a server that says nothing of sizes
        self.seek, self.tell, self.seekable = raw.seek, raw.tell, raw.seekable  # type: ignore[method-assign]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer).cast("B")
        wanted = min(len(into), BLOCK if self._size is None else max(0, min(BLOCK, self._size - self._raw.tell())))
        data = self._place.ask("reading it", lambda: bytes(self._raw.read(wanted))) if wanted else b""
        if len(data) != wanted and self._size is not None:
            what = f"the file changed while it was read: {len(data)} bytes came where {wanted} were asked for"
            raise StorageError(what, where=self._place.url, fix="run the command again once nobody writes there")
        into[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self.read(BLOCK) or b"", b""))

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._raw.close()


# ---- by URL ----


def open_location(
    url: str | os.PathLike[str] | Location,
    storage_options: Mapping[str, Any] | None = None,
    *,
    beside: Sources = (),
    filesystem: Any = None,
) -> Location:
    """The place that `url` names, which need not exist.

    `beside`: other places that the same options are for. `filesystem`: one of fsspec or `pyarrow.fs`, in which `url` is a path;
    of the options it takes only `time_limit`, `cache`, `cache_size`. Raises UsageError for an unknown scheme and for an
    option that none of these places takes, MissingPackage where a client is not installed, StorageError where it cannot be
    set up.
    """
    if isinstance(url, Location):
        return url
    if not isinstance(url, (str, os.PathLike)) or not os.fspath(url):
        fix = "name a folder, a file or a URL"
        raise UsageError(f"a place is a path or a URL, not {url!r}", where="the path given", fix=fix)
    text = os.fspath(url)
    if filesystem is None and not storage_options and not any(sign in text for sign in SIGNS):  # a plain path
        fs, path = url_to_fs(text)
        return Location(fs, str(path), text)
    seconds, cache = (storage_options or {}).get(TIME_LIMIT, SECONDS), cache_of(storage_options)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        fix = f"a number of seconds, such as {TIME_LIMIT}=300"
        raise UsageError(f"{seconds!r} is not a time limit", where=f"--storage-option {TIME_LIMIT}", fix=fix)
    if filesystem is not None:
        options_for("memory://", storage_options)  # refuses what could only be for a client to be made
        return Location(*place_in(filesystem, text), float(seconds), cache)
    places = [one.url if isinstance(one, Location) else os.fspath(one) for one in _sequence(beside)]
    return Location(*filesystem_at(text, storage_options, beside=places, time_limit=seconds), float(seconds), cache)


def _sequence(sources: Sources) -> list[str | os.PathLike[str] | Location]:
    return [sources] if isinstance(sources, (str, os.PathLike, Location)) else list(sources)


def expand(sources: Sources, storage_options: Mapping[str, Any] | None = None, *, beside: Sources = ()) -> list[Location]:
    """Every place that `sources` names, in the order given and sorted within a glob; each exists.

    A source is a path, a URL or a glob (`*`, `?`, `[...]`, `**`); something that exists under its literal name is never taken
    for a glob. Folders stay folders: what is in them is for their readers to say. `beside`: other places that the same options
    are for. Raises StorageNotFound by name, UsageError as `open_location` does.
    """
    listed, found = _sequence(sources), list[Location]()
    for source in listed:
        place = open_location(source, storage_options, beside=[*listed, *_sequence(beside)])
        is_web = place.path.startswith(("http://", "https://"))  # where a query follows `?`, signatures among it
        path, signs = (place.path.partition("?")[0], "*[") if is_web else (place.path, "*?[")
        if place.exists():
            found.append(place)
        elif any(sign in path for sign in signs):
            found += place.matches()
        else:
            raise place.missing()
    return found
