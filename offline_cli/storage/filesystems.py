"""Resolve a URL or a caller's filesystem object to an fsspec filesystem and a path; and `--cache DIR`.

Malformed URLs are rejected before a client is created: clients treat text before `@` as part of the bucket name and repeat it
in errors, list all buckets if none is named, and take `s3:/bucket` for a local folder.
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

ONE_SLASH: Final = re.compile(rf"({'|'.join(sorted(BUCKETS))}|hf|https?):/?(?!/).*", re.DOTALL)
FILE: Final = re.compile(r"file:(?://([^/]*))?(/.*)", re.DOTALL)
COPY: Final = re.compile(r"[0-9a-f]{64}")  # name of a cached file
SIZE: Final = 10 << 30  # default cache size in bytes


def filesystem_at(
    text: str, options: Mapping[str, Any] | None, *, beside: list[str], time_limit: float
) -> tuple[Any, str, str]:
    """The filesystem of a URL, the path in it, and the URL for messages. Raises as `open_location` does."""
    check_url(text)
    scheme, shown = get_protocol(text), blanked(text)
    provider_of(scheme).prepare(options or {})
    own = options_for(text, options, beside=beside)
    if scheme not in HERE:
        quiet_clients()
    if found := FILE.fullmatch(text):  # clients do not decode file URLs (RFC 8089)
        text = f"file://{unquote(found[2], errors='surrogateescape')}"
    try:
        fsspec.get_filesystem_class(scheme)
        # Google's and Azure's clients look for credentials, also on the network
        fs, path = asked(lambda: url_to_fs(text, **own), shown, "opening the storage", time_limit)
        if pin := provider_of(scheme).pin:
            path = asked(lambda: pin(fs, path), shown, "looking up its revision", time_limit)
            shown = f"{scheme}://{path}"
    except ImportError as err:
        extra = provider_of(scheme).extra
        fix = f"pip install 'offline-cli[{extra}]'" if extra else str(err)
        raise MissingPackage(f"no client for {scheme}:// is installed", where=shown, fix=fix) from err
    except ValueError as err:
        fix = "use a local path, s3://, gs://, az:// or hf://"
        raise UsageError(f"{scheme}:// is not a scheme that can be opened: {err}", where=shown, fix=fix) from err
    return fs, str(path), shown


def check_url(text: str) -> None:
    """Raise UsageError for malformed URLs, and for chained ones (`zip://a::s3://...`)."""
    scheme, mark, rest = text.partition("://")
    if mark and "::" in text and not rest.startswith("arn:"):
        fix = "name the file itself, or copy and unpack it first"
        raise UsageError("chained URLs (::) are not supported", where=blanked(text), fix=fix)
    provider = provider_of(scheme)
    if mark and (noun := provider.container):
        bucket = rest.partition("/")[0]
        has_at = "@" in bucket and not provider.account_after_at
        if not bucket or has_at or (":" in bucket and not bucket.startswith("arn:")):
            what = f"a {scheme}:// URL must start with the name of a {noun}, without user, password or port"
            fix = f"write {scheme}://{noun}/path; for credentials set {provider.set_up}"
            raise UsageError(what, where=f"{scheme}://{BLANK}", fix=fix)
    elif match := ONE_SLASH.fullmatch(text):
        fix = f"write {match[1]}:// with two slashes, or ./{match[1]}:... for a local path"
        raise UsageError(f"{match[1]}:// lacks a slash", where=blanked(text), fix=fix)
    elif (found := FILE.fullmatch(text)) and (host := (found[1] or "").rpartition("@")[2].lower()) not in ("", "localhost"):
        fix = f"write file:///{host}{found[2]} with three slashes, or a local path"
        raise UsageError(f"the file URL names another host, {host}", where=blanked(text), fix=fix)


def quiet_clients() -> None:
    """Keep clients' log records, such as tracebacks of retries, off stderr unless logging is configured.

    Without a handler Python writes warnings to stderr; handlers that a program installs still get the records.
    """
    for log in map(logging.getLogger, {"asyncio"}.union(*(one.client for one in PROVIDERS))):
        if not any(isinstance(handler, logging.NullHandler) for handler in log.handlers):
            log.addHandler(logging.NullHandler())


# ---- filesystem objects ----


def place_in(filesystem: Any, path: str) -> tuple[Any, str, str]:
    """Convert a caller's filesystem object: the fsspec filesystem, `path` in its spelling, and a URL for messages.

    `path` is relative to the filesystem's root, such as the base path of a `pyarrow.fs.SubTreeFileSystem`. A local disk,
    however wrapped, becomes fsspec's local filesystem: its files are written by rename, which `pyarrow.fs` does not guarantee.
    Raises UsageError for other objects.
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
    fix = "pass a filesystem of fsspec or pyarrow.fs"
    raise UsageError(f"{type(filesystem).__name__} is not a filesystem", where=path, fix=fix)


class _ArrowFiles(ArrowFSWrapper):  # type: ignore[misc]  # fsspec has no types
    """ArrowFSWrapper with listings that behave the same on every `pyarrow.fs` filesystem.

    Google's raises an OSError without errno for a missing folder, and omits folders without an object of their own; so the
    content below a folder is listed at once.
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


# ---- cache of remote files ----


@dataclass(frozen=True, slots=True)
class LocalCopies:
    """A local cache of remote files, of at most `size` bytes. Each read asks the storage for the file's version (ETag,
    generation), and uses a copy only for the same version.
    """

    folder: str
    size: int

    def open(self, filesystem: Any, path: str) -> BinaryIO:
        """Open the cached copy of a file; download it if its version is not cached. Raises the client's exceptions, OSError."""
        copies = WholeFileCacheFileSystem(fs=filesystem, cache_storage=self.folder, check_files=True, expiry_time=None)
        with FileLock(os.path.join(self.folder, "lock")):  # fsspec writes a copy directly under its final name
            copies.load_cache()
            there = (entry for entry in os.scandir(self.folder) if COPY.fullmatch(entry.name))
            kept = [(entry.stat(), entry.path) for entry in there if entry.is_file(follow_symlinks=False)]
            excess = filesystem.info(path)["size"] + sum(stat.st_size for stat, _ in kept) - self.size
            for stat, copy in sorted(kept, key=lambda one: one[0].st_mtime):  # least recently used first
                if excess > 0:
                    excess -= stat.st_size
                    os.remove(copy)
            found: BinaryIO = copies.open(path, "rb")
        os.utime(found.name)
        return found


def cache_of(options: Mapping[str, Any] | None) -> LocalCopies | None:
    """The cache set by the storage options, or None.

    Raises UsageError unless they are a local folder and a number of bytes, StorageError if the folder cannot be created.
    """
    folder, size = (options or {}).get(CACHE), (options or {}).get(CACHE_SIZE, SIZE)
    if folder is None:
        return None
    if not isinstance(folder, (str, os.PathLike)) or "://" in str(folder) or not isinstance(size, int) or size <= 0:
        fix = "give --cache a local folder, and --cache-size a size such as 50GiB"
        raise UsageError(f"invalid cache: {size!r} bytes in {folder!r}", where="--cache", fix=fix)
    place = os.path.abspath(os.path.expanduser(folder))
    with storage_failures(place, "creating the cache"):
        os.makedirs(place, exist_ok=True)
    return LocalCopies(place, size)
