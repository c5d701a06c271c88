"""Places by URL: their contents and bytes, and folders created and removed.

The URL chooses the filesystem: a path, or any provider known to us, to other packages or to fsspec. No module above this one
asks what kind of filesystem it is. Failures raise StorageError, missing places StorageNotFound. Local paths are shown as the
user wrote them.

An unknown scheme is UsageError, and so is a URL that carries a password, names no bucket or has lost a slash: clients take what
stands before `@` for a part of the bucket's name and repeat it in their errors, list every bucket where none is named, and take
`s3:/bucket` for a folder of this machine.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO, Final, TypeAlias
from urllib.parse import unquote

import fsspec
from fsspec.core import url_to_fs

from offline_cli.errors import MissingPackage, StorageNotFound, UsageError
from offline_cli.files.blanking import BLANK, blanked
from offline_cli.files.clients import cache_of, check_inner_options, client_for, options_for, patience_of, quiet_clients
from offline_cli.files.failures import has_code, no_bucket, storage_failures
from offline_cli.files.file_info import FileInfo, list_together
from offline_cli.files.local_files import SIGNS, open_plain, read_plain, read_start, sync_names
from offline_cli.files.place import Place, StoredVersion
from offline_cli.files.prefetch import Ahead
from offline_cli.files.providers import HERE, buckets, provider_of
from offline_cli.files.remote_files import SMALL_FILE

__all__ = ["Location", "Sources", "check_url", "expand", "is_of_bucket", "is_web", "open_location"]

_ONE_SLASH: Final = re.compile(rf"({'|'.join(sorted(buckets()))}|https?):/?(?!/).*", re.DOTALL)
_WEB: Final = re.compile(r"https?://")
_FILE: Final = re.compile(r"file:(?://([^/]*))?(/.*)", re.DOTALL)

Sources: TypeAlias = "str | os.PathLike[str] | Location | Iterable[str | os.PathLike[str] | Location]"


@dataclass(frozen=True, slots=True)
class Location(Place):
    """One file or folder, existing or not."""

    # ---- folders ----

    def files(self) -> list[Location]:
        """Every file below this folder, however deep, sorted by path; a file lists itself. Raises StorageNotFound."""

        def request() -> Any:
            self._forget_listings()
            return self.fs.find(self.path, detail=self._keeps_records)

        inside: Any = self._files_here() if self.known is None or self.is_local else self.known.inside
        found = self.ask("listing it", request) if inside is None else inside
        if not found and not self.exists():
            raise self.missing()
        cut = len(self.path.rstrip("/")) + 1
        return self._listed(found, lambda path: self.url if path == self.path else self._url_below(path[cut:]))

    def children(self) -> list[Location]:
        """The files and folders right in this folder, sorted; none where nothing is here."""

        def request() -> list[Any]:
            self._forget_listings()
            try:
                return list(self.fs.ls(self.path, detail=self._keeps_records))
            except FileNotFoundError as err:
                if has_code(err):
                    raise
                return []

        found = self.ask("listing it", request)
        if self._keeps_records:
            records = {entry["name"]: entry for entry in found}
            if self.known is not None and records and all(self._is_file_inside(entry) for entry in found):
                self.known.inside = records  # so that `files` need not ask
            found = list(records)
        return [self._below(path) for path in sorted(found) if path.rstrip("/") != self.path.rstrip("/")]

    @property
    def _keeps_records(self) -> bool:
        """Whether a listing's records are worth more than its names; of 100,000 files here they would be 100 MB."""
        return self.known is not None and not self.is_local

    def _is_file_inside(self, entry: Mapping[str, Any]) -> bool:
        return bool(entry["type"] == "file" and entry["name"].rpartition("/")[0] == self.path.rstrip("/"))

    def matches(self) -> list[Location]:
        """The places that match this one's path as a pattern, sorted. Raises StorageNotFound where there is none."""

        def request() -> Any:
            self._forget_listings()
            try:
                return self.fs.glob(self.path, detail=self._keeps_records)
            except FileNotFoundError:  # some clients say so of a missing bucket, some say that nothing matches
                return []

        found = self._matches_here() or self.ask("looking for matches", request)
        if not found:
            if self._has_no_bucket():  # which clients take for an empty listing
                raise no_bucket(self.url)
            fix = "check the pattern; quote it so that the shell does not expand it"
            raise StorageNotFound(f"nothing matches {self.url}", where=self.url, fix=fix)
        return self._listed(found, self._url_of)

    def _listed(self, found: Any, url_of: Callable[[str], str]) -> list[Location]:
        """The places at the paths of `found`, sorted; of a source, with what is said of them if it maps paths to that."""
        paths = sorted(found)
        known = [None] * len(paths) if self.known is None else list_together(paths, found)
        at = partial(Location, self.fs, patience=self.patience, cache=self.cache)
        return [at(path, url_of(path), known=info) for path, info in zip(paths, known, strict=True)]

    @property
    def as_source(self) -> Location:
        """The same place for a reader of a source: small files are read once, and facts in buckets are not asked again.

        A change in the middle of reading is an error, or is not seen.
        """
        if self.known is not None or not (self.is_local or self.is_in_bucket):
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

        `ahead`: of files that are read one after the other; it bounds what is prefetched of them.
        """
        if self.is_local:
            small = self._small_here()
            return io.BytesIO(small) if small else self.ask("opening it", lambda: open_plain(self.path, shown=self.url))
        if self.is_memory:  # its own files share one position between all readers
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

    def start(self, most: int) -> tuple[bytes, int]:
        """The first `most` bytes of this file, and how many it has. Raises as `read_bytes` does."""
        if self.is_local:
            small = self._small_here()
            return (small[:most], len(small)) if small else self._start_here(most)
        with self.open() as file:
            return file.read(most), file.seek(0, io.SEEK_END)

    def _small_here(self) -> bytes:
        """All bytes of a small file of this machine that is a source's: read once, and kept. Of any other: none."""
        known = self.known
        if known is None or not 0 < self.size() <= SMALL_FILE:  # 0: of a pipe too
            return b""
        return known.bytes_by(lambda: self._start_here(sys.maxsize)[0])

    def _start_here(self, most: int) -> tuple[bytes, int]:
        return self.ask("opening it", lambda: read_start(self.path, most, shown=self.url))

    @property
    def without_cache(self) -> Location:
        """The same place, read from where it is."""
        return self if self.cache is None and self.known is None else replace(self, cache=None, known=None)

    def remove(self) -> None:
        """Remove this file; one that is gone already is no error."""
        if self.exists():
            self.ask("removing it", lambda: self.fs.rm_file(self.path))

    def make_folder(self) -> list[Location]:
        """Make this folder and those above it, and sync their names to disk.

        Gives the ones that were not there before, outermost first (none in object stores).
        """
        if not self.has_folders:
            return []
        with storage_failures(self.url, "making the folder"):
            made: list[Location] = []
            here: Location | None = self
            while here is not None and not here.exists():
                made.insert(0, here)
                here = here.parent()
            self.fs.makedirs(self.path, exist_ok=True)
            for folder in made if self.is_local else ():
                sync_names(os.path.dirname(folder.path))
            return made

    def check_writable(self) -> None:
        """Raise StorageError where this folder could not be made, or nothing in it; of this machine alone, where that is known
        without trying.
        """
        if not self.is_local:
            return
        with storage_failures(self.url, "writing there"):
            here = self.path
            while not os.path.lexists(here):
                here = os.path.dirname(here) or os.curdir
            if not os.path.isdir(here):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), here)  # a file, or a link to nothing
            if not os.access(here, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), here)

    def remove_empty_folder(self) -> None:
        """Remove this folder if it is there and empty."""
        if not self.has_folders:
            return
        with storage_failures(self.url, "removing the empty folder"):
            if self.fs.isdir(self.path) and not self.fs.ls(self.path, detail=False):
                self.fs.rmdir(self.path)

    def parent(self) -> Location | None:
        """The folder that this is in; None: it is the root, or the container itself."""
        above = self.path.rstrip("/").rpartition("/")[0]
        return replace(self, path=above, url=self._url_of(above), known=None) if above else None


def check_url(text: str) -> None:
    """Raise UsageError for a URL that must be a mistake; of a chain (`zip://a::s3://...`), for any link of it."""
    for link in text.split("::"):
        scheme, mark, rest = link.partition("://")
        if mark and provider_of(scheme).container:
            _check_bucket(scheme, rest.partition("/")[0])
        elif match := _ONE_SLASH.fullmatch(link):
            name = match[1]
            fix = f"{name}:// with two slashes, or ./{name}:... for a place of this machine"
            raise UsageError(f"{name}:// has lost a slash: this is no URL", where=blanked(text), fix=fix)


def _decoded(link: str) -> str:
    """A link of a chain as clients take it, who do not decode file URLs (RFC 8089). Raises UsageError for another machine's."""
    if not (match := _FILE.fullmatch(link)):
        return link
    host, path = (match[1] or "").rpartition("@")[2], unquote(match[2], errors="surrogateescape")
    if host.lower() not in ("", "localhost"):
        fix = f"file:///{host}{match[2]} with three slashes, or the place's path on this machine"
        raise UsageError(f"a file of another machine: this URL names the host {host}", where=blanked(link), fix=fix)
    if "\0" in path or ("::" in path and "::" not in match[2]):
        raise UsageError("a file URL that decodes to what no URL here can say", where=blanked(link), fix="give the path")
    return f"file://{path}"


def is_web(path: str) -> bool:
    """Whether this is an address of the web, where `?` begins a query."""
    return _WEB.match(path) is not None


def is_of_bucket(url: str) -> bool:
    """Whether this is, or leads through, an address in an object store."""
    return any(provider_of(link.partition("://")[0]).container for link in url.split("::") if "://" in link)


def _check_bucket(scheme: str, bucket: str) -> None:
    provider = provider_of(scheme)
    noun = provider.container
    if not bucket:
        raise UsageError(f"{scheme}:// names no {noun}", where=f"{scheme}://", fix=f"{scheme}://{noun}/path")
    has_at = "@" in bucket and not provider.account_after_at
    if has_at or (":" in bucket and not bucket.startswith("arn:")):
        what = f"a URL of {scheme}:// begins with the name of a {noun}: no user, password or port goes there"
        fix = f"{scheme}://{noun}/path, and for credentials set {provider.set_up}"
        raise UsageError(what, where=f"{scheme}://{BLANK}", fix=fix)


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
    option that none of these places takes, BadConfig for inner ones (`client_kwargs`) that its client cannot pass on,
    MissingPackage where a client is not installed, StorageError where it cannot be set up.
    """
    if isinstance(url, Location):
        return url
    if not isinstance(url, (str, os.PathLike)):
        raise UsageError(
            f"a place is a path or a URL, not {url!r}", where="the path given", fix="name a folder, a file or a URL"
        )
    text = os.fspath(url)
    if filesystem is not None:
        return _given(filesystem, text, storage_options)
    if not text:
        raise UsageError("an empty path", where="the path given", fix="name a folder, a file or a URL")
    if not storage_options and not any(sign in text for sign in SIGNS):
        fs, path = url_to_fs(text)
        return Location(fs, str(path), text)
    check_url(text)
    scheme = fsspec.utils.get_protocol(text)
    for link in text.split("::"):
        provider_of(fsspec.utils.get_protocol(link)).prepare(storage_options or {})
    _check_client(scheme, text)
    options, patience = options_for(text, storage_options, beside=_urls(beside)), patience_of(storage_options)
    remote, shown = scheme not in HERE, blanked(text)
    if remote:
        quiet_clients()
        check_inner_options(scheme, options, text)
    plain = "::".join(map(_decoded, text.split("::")))
    try:
        with storage_failures(shown, "opening the storage"):
            fs, path = client_for(plain, options, patience) if remote else url_to_fs(plain, **options)
    except ImportError as err:
        raise _missing_client(scheme, text, err) from err
    return Location(fs, str(path), shown, patience, cache_of(storage_options))


def _check_client(scheme: str, url: str) -> None:
    """Raise UsageError for an unknown scheme, MissingPackage where its client is not installed."""
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as err:
        raise _missing_client(scheme, url, err) from err
    except ValueError as err:
        fix = "use a local path, s3://, gs:// or az://"
        raise UsageError(f"{scheme}:// is not a scheme that can be opened: {err}", where=blanked(url), fix=fix) from err


def _missing_client(scheme: str, url: str, err: ImportError) -> MissingPackage:
    extra = provider_of(scheme).extra
    fix = f"pip install 'offline-cli[{extra}]'" if extra else str(err)
    return MissingPackage(f"no client for {scheme}:// is installed", where=blanked(url), fix=fix)


def _given(filesystem: Any, path: str, storage_options: Mapping[str, Any] | None) -> Location:
    from offline_cli.files.clients import place_in

    place = Location(*place_in(filesystem, path), patience_of(storage_options), cache_of(storage_options))
    options_for("memory://", storage_options)  # refuses what could only be for a client to be made
    return place


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
    return [found for location in opened for found in _expand_one(location.as_source)]


def _expand_one(location: Location) -> list[Location]:
    if location.exists():
        return [location]
    if not _is_pattern(location):
        raise location.missing()
    return location.matches()


def _is_pattern(location: Location) -> bool:
    """Whether its path has signs of a glob; what follows `?` on the web is a query, signatures among it."""
    path, signs = (location.path.partition("?")[0], "*[") if is_web(location.path) else (location.path, "*?[")
    return any(sign in path for sign in signs)
