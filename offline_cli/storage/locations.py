"""Files and folders by URL: list, read, create and remove.

Failures raise StorageError, missing files StorageNotFound; unlike in the clients' `exists`, `isfile` and `isdir`, a failure
never counts as "no such file". Every request goes through `Location.ask`. Messages show local paths as the user wrote them.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Final, TypeAlias, TypeVar

from fsspec.core import url_to_fs
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from offline_cli.errors import StorageError, StorageNotFound, UsageError
from offline_cli.storage.blanking import blanked
from offline_cli.storage.failures import REQUEST_BYTES, SECONDS, asked, no_bucket, storage_failures
from offline_cli.storage.filesystems import filesystem_at, place_in
from offline_cli.storage.local_files import SIGNS, open_plain, sync_names
from offline_cli.storage.providers import TIME_LIMIT, Provider, provider_of

BLOCK: Final = 8 << 20  # bytes per request, and of read-ahead
BUFFER, SMALL_BUFFER = 1 << 20, 1 << 14  # bytes
T = TypeVar("T")
Sources: TypeAlias = "str | os.PathLike[str] | Location | Iterable[str | os.PathLike[str] | Location]"


@dataclass(frozen=True, slots=True)
class Location:
    """One file or folder, existing or not."""

    fs: Any  # fsspec.AbstractFileSystem, which has no types
    path: str  # as `fs` spells it
    url: str  # for messages
    time_limit: float = field(default=SECONDS, compare=False, repr=False)  # of a request, in seconds
    record: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)  # a remote file's entry in a listing

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def join(self, *parts: str) -> Location:
        """The location below this one."""
        tail = "/".join(part.strip("/") for part in parts)
        return replace(self, path=f"{self.path.rstrip('/')}/{tail}", url=self._url_below(tail), record=None)

    def parent(self) -> Location | None:
        """The parent folder; None for the root or a bucket."""
        above = self.path.rstrip("/").rpartition("/")[0]
        return replace(self, path=above, url=self._url_of(above), record=None) if above else None

    def _url_below(self, tail: str) -> str:
        named = tail.replace("%", "%25") if self.url.startswith("file:/") else tail  # file URLs are decoded
        return f"{self.url.rstrip('/')}/{named}"

    def _url_of(self, path: str) -> str:
        """The URL of another path of this filesystem, with the user's scheme: az, not abfs."""
        if self.is_local:
            return path
        name = str(self.fs.unstrip_protocol(path)).partition("://")[2]
        return blanked(f"{self.url.partition('://')[0]}://{name}")

    def is_at(self, other: Location) -> bool:
        """Whether this is the same place, or below it, whatever symbolic links lead there."""
        if self.fs != other.fs:
            return False
        here, there = (os.path.realpath(one.path) if one.is_local else one.path.rstrip("/") for one in (self, other))
        return f"{here}/".startswith(f"{there.rstrip('/')}/")

    # ---- kinds of storage ----

    @property
    def is_local(self) -> bool:
        """Whether this is a local path."""
        return isinstance(self.fs, LocalFileSystem)

    @property
    def is_memory(self) -> bool:
        """Whether this is in memory:// storage."""
        return isinstance(self.fs, MemoryFileSystem)

    @property
    def is_arrow(self) -> bool:
        """Whether this is in a `pyarrow.fs` filesystem, which lacks the features of fsspec's clients."""
        return isinstance(self.fs, ArrowFSWrapper)

    @property
    def is_in_bucket(self) -> bool:
        """Whether this is in an object store whose client supports byte ranges."""
        return not self.is_local and self.provider.serves_ranges

    @property
    def has_folders(self) -> bool:
        """Whether folders exist by themselves; in object stores they are only name prefixes."""
        return self.is_local or self.provider.has_folders

    @property
    def provider(self) -> Provider:
        """The record of the storage provider."""
        protocol = self.fs.protocol
        return provider_of(protocol if isinstance(protocol, str) else protocol[0])

    # ---- requests ----

    def ask(self, doing: str, request: Callable[[], T], *, moving: int = 0) -> T:
        """Run one filesystem request and return its result. `moving`: bytes to transfer, which extend the time limit.

        Raises StorageError, naming this location, if it fails or times out; StorageNotFound; UsageError for an option that the
        client does not accept.
        """
        if self.is_local or self.is_memory:
            with storage_failures(self.url, doing):
                return request()
        return asked(request, self.url, doing, self.time_limit * max(1.0, moving / REQUEST_BYTES))

    def _info(self) -> Mapping[str, Any] | None:
        """The filesystem's entry for this location; None if nothing exists here."""

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
        """Whether a file or folder exists here."""
        return os.path.exists(self.path) if self.is_local else replace(self, record=None)._info() is not None

    def is_dir(self) -> bool:
        """Whether this is a folder."""
        return os.path.isdir(self.path) if self.is_local else (self._info() or {}).get("type") == "directory"

    def is_file(self) -> bool:
        """Whether this is a file."""
        return os.path.isfile(self.path) if self.is_local else (self._info() or {}).get("type") == "file"

    def size(self) -> int:
        """Size of this file in bytes. Raises StorageNotFound."""
        if self.is_local:
            return self.ask("asking for its size", lambda: os.stat(self.path).st_size)
        found = self._info()
        if found is None:
            raise self.missing()
        return int(found["size"] or 0)

    def missing(self) -> StorageNotFound:
        """The error for a missing file or folder, or for its bucket if that is missing."""
        if self._has_no_bucket():
            return no_bucket(self.url)
        fix = f"check the path{self.provider.unseen}"
        return StorageNotFound(f"{self.url} does not exist", where=self.url, fix=fix)

    def _has_no_bucket(self) -> bool:
        """Whether the bucket is missing; False if the store does not tell."""
        try:
            has_bucket = self.is_in_bucket and self.provider.container
            return bool(has_bucket) and not replace(self, path=self.path.partition("/")[0]).exists()
        except StorageError as err:
            return isinstance(err, StorageNotFound)

    # ---- folders ----

    def files(self) -> list[Location]:
        """All files below this folder, recursively, sorted by path; a file lists itself. Raises StorageNotFound.

        Remote files keep their entry of the listing (size, version), so that reading them does not request it again.
        """
        found = self._listed("find", **({"on_error": "raise"} if self.is_local else {"detail": True}))
        if not found and not self.exists():
            raise self.missing()
        cut = len(self.path.rstrip("/")) + 1
        return [replace(one, url=self.url if one.path == self.path else self._url_below(one.path[cut:])) for one in found]

    def children(self) -> list[Location]:
        """The files and folders directly in this folder, sorted; empty if it does not exist."""
        root = self.path.rstrip("/")
        found = [one.path for one in self._listed("ls", detail=False) if one.path.rstrip("/") != root]
        return [self.join(path.removeprefix(root)) for path in found]

    def matches(self) -> list[Location]:
        """The locations that match this path as a glob pattern, sorted. Raises StorageNotFound if there are none."""
        found = self._listed("glob", detail=not self.is_local)
        if not found:
            if self._has_no_bucket():  # clients return an empty listing for it
                raise no_bucket(self.url)
            fix = "check the pattern, and quote it for the shell"
            raise StorageNotFound(f"nothing matches {self.url}", where=self.url, fix=fix)
        return [replace(one, url=self._url_of(one.path)) for one in found]

    def _listed(self, method: str, **how: Any) -> list[Location]:
        """The result of a listing method of the filesystem, sorted by path, with entries if it returns them."""

        def request() -> Any:
            self._forget()
            try:
                return getattr(self.fs, method)(self.path, **how)
            except FileNotFoundError:  # for a missing bucket or folder some clients raise, others list nothing
                if method == "find":
                    raise
                return []

        found = self.ask("listing it", request)
        records = found if isinstance(found, Mapping) else {}
        return [replace(self, path=path, record=records.get(path)) for path in sorted(found)]

    def make_folder(self) -> list[Location]:
        """Create this folder and its parents, and fsync them.

        Returns the new ones, outermost first (none in object stores).
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

        self.ask("creating the folder", request)
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
            what = f"the folder is not writable: {here} is no folder, or lacks write permission"
            raise StorageError(what, where=self.url, fix="check the permissions, or name another folder")

    def refuse_read_only(self) -> None:
        """Raise UsageError for storage that is only read."""
        if self.provider.read_only:
            fix = "write to a folder or a bucket, and then offline-cli publish D --to hf://datasets/OWNER/NAME"
            raise UsageError("nothing is written to the Hub file by file", where=self.url, fix=fix)

    def remove_empty_folder(self) -> None:
        """Remove this folder if it exists and is empty."""

        def request() -> None:
            if self.fs.isdir(self.path) and not self.fs.ls(self.path, detail=False):
                self.fs.rmdir(self.path)

        if self.has_folders:
            self.ask("removing the empty folder", request)

    def remove(self) -> None:
        """Remove this file if it exists."""
        if self.exists():
            self.ask("removing it", lambda: self.fs.rm_file(self.path))

    # ---- bytes ----

    def open(self, *, ahead: bool = True) -> BinaryIO:
        """Open this file for reading and seeking. `ahead`: read a remote file sequentially in large blocks.

        Raises StorageNotFound, StorageError; BadData for a pipe or a device.
        """
        if self.is_local:
            return self.ask("opening it", lambda: open_plain(self.path, shown=self.url))
        if self.is_memory:  # fsspec's memory files share one position between readers
            return io.BytesIO(self.ask("reading it", lambda: bytes(self.fs.cat_file(self.path))))

        def request() -> Any:
            if self.record is None:
                self._forget()
            block = {"block_size": BLOCK} if self.is_in_bucket else {}
            return self.fs.open(
                self.path, "rb", **block, **({} if self.is_arrow else {"cache_type": "readahead" if ahead else "none"})
            )

        return io.BufferedReader(_RemoteFile(self, self.ask("opening it", request)), BUFFER if ahead else SMALL_BUFFER)

    def read_bytes(self) -> bytes:
        """Read this whole file. Raises StorageNotFound, StorageError; BadData for a pipe or a device."""
        with self.open() as file, storage_failures(self.url, "reading it"):
            return file.read()

    def start(self, most: int) -> tuple[bytes, int]:
        """The first `most` bytes of this file, and its size. Raises as `read_bytes` does."""
        if self.is_local:
            with self.open() as file:
                return file.read(most), os.fstat(file.fileno()).st_size
        size, how = self.size(), {"seekable": True} if self.is_arrow else {}  # otherwise its stream has no position
        if not size:
            return b"", 0
        return self.ask("reading it", lambda: bytes(self.fs.cat_file(self.path, end=most, **how))), size


class _RemoteFile(io.RawIOBase):
    """A client's open file; each read is one bounded request."""

    def __init__(self, place: Location, raw: Any) -> None:
        super().__init__()
        self._place, self._raw = place, raw
        self._size: int | None = getattr(raw, "size", None)  # None: the server does not report it
        self.seek, self.tell, self.seekable = raw.seek, raw.tell, raw.seekable  # type: ignore[method-assign]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer).cast("B")
        wanted = min(len(into), BLOCK if self._size is None else max(0, min(BLOCK, self._size - self._raw.tell())))
        data = self._place.ask("reading it", lambda: bytes(self._raw.read(wanted))) if wanted else b""
        if len(data) != wanted and self._size is not None:
            what = f"the file changed while it was read: got {len(data)} of {wanted} bytes"
            raise StorageError(what, where=self._place.url, fix="run the command again when nobody writes to the file")
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
    filesystem: Any = None,
) -> Location:
    """The location of `url`, which need not exist.

    `filesystem`: an fsspec or `pyarrow.fs` filesystem in which `url` is a path; of the options it uses `time_limit` alone.
    Raises UsageError for an unknown scheme, MissingPackage if a client is not installed, StorageError if it cannot be set up.
    """
    if isinstance(url, Location):
        return url
    if not isinstance(url, (str, os.PathLike)) or not os.fspath(url):
        what = f"{url!r} is not a path or URL" if isinstance(url, str) else f"a {type(url).__name__} is not a path or URL"
        fix = "give a folder, a file or a URL; for an open dataset, dataset.location"
        raise UsageError(what, where="the path given", fix=fix)
    text = os.fspath(url)
    if filesystem is None and not any(sign in text for sign in SIGNS):  # a plain path
        fs, path = url_to_fs(text)
        return Location(fs, str(path), text)
    seconds = (storage_options or {}).get(TIME_LIMIT, SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        fix = f"give a number of seconds, such as {TIME_LIMIT}=300"
        raise UsageError(f"{seconds!r} is not a time limit", where=f"--storage-option {TIME_LIMIT}", fix=fix)
    if filesystem is not None:
        return Location(*place_in(filesystem, text), float(seconds))
    return Location(*filesystem_at(text, storage_options, time_limit=seconds), float(seconds))


def expand(sources: Sources, storage_options: Mapping[str, Any] | None = None) -> list[Location]:
    """The existing locations that `sources` name, in the given order, sorted within a glob.

    A source is a path, a URL or a glob (`*`, `?`, `[...]`, `**`); a literal name that exists is never expanded. Folders are not
    expanded: their readers decide. Raises StorageNotFound by name, UsageError as `open_location` does.
    """
    found = list[Location]()
    for source in [sources] if isinstance(sources, (str, os.PathLike, Location)) else sources:
        place = open_location(source, storage_options)
        is_web = place.path.startswith(("http://", "https://"))  # `?` starts a query, which may hold a signature
        path, signs = (place.path.partition("?")[0], "*[") if is_web else (place.path, "*?[")
        if place.exists():
            found.append(place)
        elif any(sign in path for sign in signs):
            found += place.matches()
        else:
            raise place.missing()
    return found
