"""From a URL, or a filesystem object that a program hands over, to an fsspec filesystem and a path in it; and `--cache DIR`.

URLs that cannot be meant are refused before a client is made: clients take what stands before `@` for a part of the bucket's
name and repeat it in their errors, list every bucket where none is named, and take `s3:/bucket` for a folder of this machine.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final
from urllib.parse import unquote

import fsspec
from filelock import FileLock
from fsspec.core import url_to_fs
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.cached import WholeFileCacheFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import get_protocol
from pyarrow import fs as arrow_fs

from offline_cli.errors import MissingPackage, UsageError
from offline_cli.storage.blanking import BLANK, blanked
from offline_cli.storage.failures import asked, storage_failures
from offline_cli.storage.providers import BUCKETS, CACHE, CACHE_SIZE, HERE, PROVIDERS, options_for, provider_of

ONE_SLASH: Final = re.compile(rf"({'|'.join(sorted(BUCKETS))}|https?):/?(?!/).*", re.DOTALL)
FILE: Final = re.compile(r"file:(?://([^/]*))?(/.*)", re.DOTALL)
COPY: Final = re.compile(r"[0-9a-f]{64}")  # the name of a file in the cache
SIZE: Final = 10 << 30  # bytes that copies may take by default


def filesystem_at(
    text: str, options: Mapping[str, Any] | None, *, beside: list[str], time_limit: float
) -> tuple[Any, str, str]:
    """The filesystem of a URL, the path in it, and the URL for people to read. Raises as `open_location` does."""
    if not text:
        raise UsageError("an empty path", where="the path given", fix="name a folder, a file or a URL")
    check_url(text)
    scheme, shown, links = get_protocol(text), blanked(text), text.split("::")
    for link in links:
        provider_of(get_protocol(link)).prepare(options or {})
    own, plain = options_for(text, options, beside=beside), "::".join(map(_decoded, links))
    if scheme not in HERE:
        quiet_clients()
    try:
        fsspec.get_filesystem_class(scheme)
        # Google's and Azure's look for credentials, on the network too
        fs, path = asked(lambda: url_to_fs(plain, **own), shown, "opening the storage", time_limit)
    except ImportError as err:
        extra = provider_of(scheme).extra
        fix = f"pip install 'offline-cli[{extra}]'" if extra else str(err)
        raise MissingPackage(f"no client for {scheme}:// is installed", where=shown, fix=fix) from err
    except ValueError as err:
        fix = "use a local path, s3://, gs:// or az://"
        raise UsageError(f"{scheme}:// is not a scheme that can be opened: {err}", where=shown, fix=fix) from err
    return fs, str(path), shown


def check_url(text: str) -> None:
    """Raise UsageError for a URL that must be a mistake; of a chain (`zip://a::s3://...`), for any link of it."""
    for link in text.split("::"):
        scheme, mark, rest = link.partition("://")
        if mark and (noun := provider_of(scheme).container):
            bucket = rest.partition("/")[0]
            has_at = "@" in bucket and not provider_of(scheme).account_after_at
            if not bucket or has_at or (":" in bucket and not bucket.startswith("arn:")):
                what = f"a URL of {scheme}:// begins with the name of a {noun}: no user, password or port goes there"
                fix = f"{scheme}://{noun}/path, and for credentials set {provider_of(scheme).set_up}"
                raise UsageError(what, where=f"{scheme}://{BLANK}", fix=fix)
        elif match := ONE_SLASH.fullmatch(link):
            fix = f"{match[1]}:// with two slashes, or ./{match[1]}:... for a place of this machine"
            raise UsageError(f"{match[1]}:// has lost a slash: this is no URL", where=blanked(text), fix=fix)


def _decoded(link: str) -> str:
    """A link of a chain as clients take it, who do not decode file URLs (RFC 8089). Raises UsageError for another machine's."""
    if not (match := FILE.fullmatch(link)):
        return link
    host = (match[1] or "").rpartition("@")[2]
    if host.lower() not in ("", "localhost"):
        fix = f"file:///{host}{match[2]} with three slashes, or the place's path on this machine"
        raise UsageError(f"a file of another machine: this URL names the host {host}", where=blanked(link), fix=fix)
    return f"file://{unquote(match[2], errors='surrogateescape')}"


def quiet_clients() -> None:
    """Keep what clients log off stderr, including tracebacks of every retry, unless logging is configured.

    Without any handler Python writes warnings to stderr; handlers that a program installs get the records as usual.
    """
    for log in map(logging.getLogger, {"asyncio"}.union(*(one.client for one in PROVIDERS))):
        if not any(isinstance(handler, logging.NullHandler) for handler in log.handlers):
            log.addHandler(logging.NullHandler())


# ---- filesystem objects ----


def place_in(filesystem: Any, path: str) -> tuple[Any, str, str]:
    """A filesystem that a program hands over as an fsspec one, `path` as it spells it, and a URL for people to read.

    `path` is relative to what the filesystem shows: to the base path of a `pyarrow.fs.SubTreeFileSystem`. A disk of this
    machine, however it is wrapped, becomes fsspec's local filesystem, whose files are written by rename, which `pyarrow.fs`
    cannot promise. Raises UsageError for other objects.
    """
    if isinstance(filesystem, arrow_fs.SubTreeFileSystem):
        return place_in(filesystem.base_fs, f"{filesystem.base_path.rstrip('/')}/{path.lstrip('/')}")
    if isinstance(filesystem, arrow_fs.PyFileSystem) and isinstance(filesystem.handler, arrow_fs.FSSpecHandler):
        return place_in(filesystem.handler.fs, path)
    if isinstance(filesystem, arrow_fs.LocalFileSystem):
        return LocalFileSystem(), os.path.abspath(path), path
    if isinstance(filesystem, arrow_fs.FileSystem):
        inner = path.strip("/")
        return _ArrowFiles(filesystem), inner, f"{filesystem.type_name}://{inner}"
    if isinstance(filesystem, fsspec.AbstractFileSystem):
        inner = str(filesystem._strip_protocol(path))
        return filesystem, inner, path if isinstance(filesystem, LocalFileSystem) else str(filesystem.unstrip_protocol(inner))
    fix = "give a filesystem of fsspec or pyarrow.fs"
    raise UsageError(f"{type(filesystem).__name__} is not a filesystem", where=path, fix=fix)


class _ArrowFiles(ArrowFSWrapper):  # type: ignore[misc]  # fsspec has no types
    """The same, with listings that every filesystem of `pyarrow.fs` answers alike.

    Of a folder that is not there Google's says so by an OSError without a number, and names no folder that has no object of
    its own: so what is below one is listed at once.
    """

    def ls(self, path: str, detail: bool = False, **_: Any) -> list[Any]:
        found = self._below(path, recursive=False) or [self.info(path)]
        return found if detail else [entry["name"] for entry in found]

    def find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any) -> Any:
        entries = self._below(path, recursive=True) or ([self.info(path)] if self.exists(path) else [])
        found = {entry["name"]: entry for entry in entries if withdirs or entry["type"] == "file"}
        return found if detail else sorted(found)

    def _below(self, path: str, *, recursive: bool) -> list[dict[str, Any]]:
        if self.fs.get_file_info(path).type is arrow_fs.FileType.File:
            return []
        selector = arrow_fs.FileSelector(path, allow_not_found=True, recursive=recursive)
        return [self._make_entry(entry) for entry in self.fs.get_file_info(selector)]


# ---- copies of remote files ----


@dataclass(frozen=True, slots=True)
class LocalCopies:
    """The folder, and the bytes that copies may take there. A copy belongs to the version of the file that the storage reports
    (ETag, generation), which is asked each time.
    """

    folder: str
    size: int

    def open(self, filesystem: Any, path: str) -> BinaryIO:
        """The copy of a file of `filesystem`, made where there is none of its version. Raises what clients raise, OSError."""
        copies = WholeFileCacheFileSystem(fs=filesystem, cache_storage=self.folder, check_files=True, expiry_time=None)
        with FileLock(os.path.join(self.folder, "lock")):  # fsspec writes a copy under its final name
            copies.load_cache()
            kept = [
                entry
                for entry in os.scandir(self.folder)
                if COPY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            ]
            excess = filesystem.info(path)["size"] + sum(entry.stat().st_size for entry in kept) - self.size
            for entry in sorted(kept, key=lambda entry: entry.stat().st_mtime):  # the least recently used first
                if excess > 0:
                    excess -= entry.stat().st_size
                    os.remove(entry.path)
            found: BinaryIO = copies.open(path, "rb")
        os.utime(found.name)
        return found


def cache_of(options: Mapping[str, Any] | None) -> LocalCopies | None:
    """Where copies of remote files are kept, by storage options; None: nowhere.

    Raises UsageError for a value that is not a local folder or a number of bytes, StorageError where the folder cannot be made.
    """
    folder, size = (options or {}).get(CACHE), (options or {}).get(CACHE_SIZE, SIZE)
    if folder is None:
        return None
    if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder) or "://" in str(folder):
        fix = "a folder of this machine, such as ~/.cache/offline-cli"
        raise UsageError(f"{folder!r} is not a local folder", where="--cache", fix=fix)
    if isinstance(size, bool) or not isinstance(size, int) or size <= 0:
        raise UsageError(f"{size!r} is not a number of bytes", where="--cache-size", fix="for example --cache-size 50GiB")
    place = os.path.abspath(os.path.expanduser(folder))
    with storage_failures(place, "making the cache"):
        os.makedirs(place, exist_ok=True)
    return LocalCopies(place, size)
