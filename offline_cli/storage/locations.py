"""Places by URL: a path, `memory://`, `s3://`, `gs://`, `az://` or whatever fsspec knows; refuses places that do not exist.

The URL chooses the filesystem, and nothing above this module asks which one it is. Local paths are shown as the user
wrote them. Failures are StorageError, missing places StorageNotFound, an unknown scheme UsageError.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeAlias

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from offline_cli.errors import MissingPackage, StorageNotFound, UsageError
from offline_cli.storage.failures import storage_failures
from offline_cli.storage.options import options_for, quiet_clients

__all__ = ["Location", "Sources", "expand", "open_location"]

EXTRAS = {"az": "azure", "abfs": "azure", "abfss": "azure", "adl": "azure"}  # protocol -> our extra that brings its client
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "obs", "http", "https"})


@dataclass(frozen=True, slots=True)
class Location:
    """One file or folder, existing or not."""

    fs: Any  # fsspec.AbstractFileSystem, which has no types
    path: str  # as `fs` spells it
    url: str  # as people read it

    # ---- names ----

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def join(self, *parts: str) -> Location:
        """The location below this one."""
        tail = "/".join(part.strip("/") for part in parts)
        head, chain, rest = self.url.partition("::")  # zip://folder::file.zip: the folder grows, not the archive's name
        return Location(self.fs, f"{self.path.rstrip('/')}/{tail}", f"{head.rstrip('/')}/{tail}{chain}{rest}")

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
        protocol = self.fs.protocol
        return OBJECT_STORES.isdisjoint({protocol} if isinstance(protocol, str) else set(protocol))

    def __str__(self) -> str:
        return self.url

    # ---- questions ----

    def exists(self) -> bool:
        """Whether a file or folder is here."""
        with storage_failures(self.url, "looking it up"):
            self._forget_listings()
            return bool(self.fs.exists(self.path))

    def is_dir(self) -> bool:
        """Whether a folder is here."""
        with storage_failures(self.url, "looking it up"):
            return bool(self.fs.isdir(self.path))

    def is_file(self) -> bool:
        """Whether a file is here."""
        with storage_failures(self.url, "looking it up"):
            return bool(self.fs.isfile(self.path))

    def size(self) -> int:
        """Bytes in this file. Raises StorageNotFound."""
        with storage_failures(self.url, "asking for its size"):
            return int(self.fs.size(self.path))

    def files(self) -> list[Location]:
        """Every file below this folder, however deep, sorted by path; a file lists itself. Raises StorageNotFound."""
        with storage_failures(self.url, "listing it"):
            self._forget_listings()
            found = sorted(self.fs.find(self.path))
            if not found and not self.fs.exists(self.path):
                raise FileNotFoundError(self.path)
        return [self._below(path) for path in found]

    def children(self) -> list[Location]:
        """The files and folders right in this folder, sorted; none where nothing is here."""
        with storage_failures(self.url, "listing it"):
            self._forget_listings()
            found = sorted(self.fs.ls(self.path, detail=False)) if self.fs.exists(self.path) else []
        return [self._below(path) for path in found if path.rstrip("/") != self.path.rstrip("/")]

    def _below(self, path: str) -> Location:
        root = self.path.rstrip("/")
        return self if path == self.path else self.join(path.removeprefix(root))

    def _forget_listings(self) -> None:
        self.fs.invalidate_cache()  # cloud clients remember listings, and somebody else may have written since

    # ---- bytes ----

    def open(self) -> BinaryIO:
        """This file, opened for reading and seeking. Raises StorageNotFound, StorageError."""
        with storage_failures(self.url, "opening it"):
            if self.is_local:
                return open(self.path, "rb")
            if self.is_memory:  # its own files share one position between all who read them
                return io.BytesIO(self.fs.cat_file(self.path))
            handle: BinaryIO = self.fs.open(self.path, "rb", cache_type="readahead")
            return handle

    def read_bytes(self) -> bytes:
        """All bytes of this file. Raises StorageNotFound, StorageError."""
        with storage_failures(self.url, "reading it"):
            return bytes(self.fs.cat_file(self.path))

    def remove(self) -> None:
        """Remove this file; one that is gone already is no error."""
        with storage_failures(self.url, "removing it"):
            self._forget_listings()
            if self.fs.exists(self.path):
                self.fs.rm_file(self.path)

    # ---- folders ----

    def make_folder(self) -> list[Location]:
        """Make this folder and those above it; the ones that were not there before, outermost first (none in object stores)."""
        if not self.has_folders:
            return []
        with storage_failures(self.url, "making the folder"):
            made: list[Location] = []
            here: Location | None = self
            while here is not None and not self.fs.exists(here.path):
                made.insert(0, here)
                here = here._parent()
            self.fs.makedirs(self.path, exist_ok=True)
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
        return Location(self.fs, above, above if self.is_local else self.fs.unstrip_protocol(above)) if above else None


Sources: TypeAlias = "str | os.PathLike[str] | Location | Iterable[str | os.PathLike[str] | Location]"


def open_location(
    url: str | os.PathLike[str] | Location, storage_options: Mapping[str, Any] | None = None, *, beside: Sources = ()
) -> Location:
    """The place that `url` names, which need not exist.

    `beside`: other places that the same options are for. Raises UsageError for a scheme that nobody knows and for an option
    that none of these places takes, MissingPackage where a client is not installed, StorageError where it cannot be set up.
    """
    if isinstance(url, Location):
        return url
    text = os.fspath(url)
    if not text:
        raise UsageError("an empty path", where="the path given", fix="name a folder, a file or a URL")
    scheme = fsspec.utils.get_protocol(text)
    options = options_for(text, storage_options, beside=_urls(beside))
    if scheme not in ("file", "local", "memory"):
        quiet_clients()
    try:
        with storage_failures(text, "opening the storage"):
            fs, path = url_to_fs(text, **options)
    except ImportError as err:
        extra = EXTRAS.get(scheme)
        fix = f"pip install 'offline-cli[{extra}]'" if extra else str(err)
        raise MissingPackage(f"no client for {scheme}:// is installed", where=text, fix=fix) from err
    except ValueError as err:
        fix = "use a local path, s3://, gs://, az:// or memory://"
        raise UsageError(f"{scheme}:// is not a scheme that can be opened: {err}", where=text, fix=fix) from err
    return Location(fs, str(path), text)


def _listed(sources: Sources) -> list[str | os.PathLike[str] | Location]:
    return [sources] if isinstance(sources, (str, os.PathLike, Location)) else list(sources)


def _urls(sources: Sources) -> list[str]:
    return [source.url if isinstance(source, Location) else os.fspath(source) for source in _listed(sources)]


def expand(sources: Sources, storage_options: Mapping[str, Any] | None = None, *, beside: Sources = ()) -> list[Location]:
    """Every place that `sources` names, in the order given and sorted within a glob; each exists.

    A source is a path, a URL or a glob (`*`, `?`, `[...]`, `**`); something that exists under its literal name is never taken
    for a glob. Folders stay folders: what is in them is for their readers to say. `beside`: other places that the same options
    are for. Raises StorageNotFound by name, UsageError as `open_location` does.
    """
    listed = _listed(sources)
    others = [*listed, *_listed(beside)]
    opened = [open_location(source, storage_options, beside=others) for source in listed]
    return [found for location in opened for found in _expand_one(location)]


def _expand_one(location: Location) -> list[Location]:
    if location.exists():
        return [location]
    if not any(sign in location.path for sign in "*?["):
        raise StorageNotFound(f"{location.url} does not exist", where=location.url, fix="check the path, or the bucket's name")
    with storage_failures(location.url, "looking for matches"):
        paths = sorted(location.fs.glob(location.path))
    if not paths:
        fix = "check the pattern; quote it so that the shell does not expand it"
        raise StorageNotFound(f"nothing matches {location.url}", where=location.url, fix=fix)
    chain = "".join(location.url.partition("::")[1:])
    urls = paths if location.is_local else [location.fs.unstrip_protocol(path) + chain for path in paths]
    return [Location(location.fs, path, url) for path, url in zip(paths, urls, strict=True)]
