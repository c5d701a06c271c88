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

ONE_SLASH: Final = re.compile(rf"({'|'.join(sorted(BUCKETS))}|hf|https?):/?(?!/).*", re.DOTALL)
FILE: Final = re.compile(r"file:(?://([^/]*))?(/.*)", re.DOTALL)
COPY: Final = re.compile(r"[0-9a-f]{64}")  # the name of a file in the cache
SIZE: Final = 10 << 30  # bytes that copies may take by default


def filesystem_at(
    text: str, options: Mapping[str, Any] | None, *, beside: list[str], time_limit: float
) -> tuple[Any, str, str]:
    """The filesystem of a URL, the path in it, and the URL for people to read. Raises as `open_location` does."""
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
        # Google's and Azure's look for credentials, on the network too
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
    """Raise UsageError for a URL that must be a mistake, and for a chain (`zip://a::s3://...`)."""
    scheme, mark, rest = text.partition("://")
    if mark and "::" in text and not rest.startswith("arn:"):
        fix = "name the file itself, or copy and unpack it first"
        raise UsageError("a chain of URLs, with ::, cannot be opened", where=blanked(text), fix=fix)
    provider = provider_of(scheme)
    if mark and (noun := provider.container):
        bucket = rest.partition("/")[0]
        has_at = "@" in bucket and not provider.account_after_at
        if not bucket or has_at or (":" in bucket and not bucket.startswith("arn:")):
            what = f"a URL of {scheme}:// begins with the name of a {noun}: no user, password or port goes there"
            fix = f"{scheme}://{noun}/path, and for credentials set {provider.set_up}"
            raise UsageError(what, where=f"{scheme}://{BLANK}", fix=fix)
    elif match := ONE_SLASH.fullmatch(text):
        fix = f"{match[1]}:// with two slashes, or ./{match[1]}:... for a place of this machine"
        raise UsageError(f"{match[1]}:// has lost a slash: this is no URL", where=blanked(text), fix=fix)
    elif (found := FILE.fullmatch(text)) and (host := (found[1] or "").rpartition("@")[2].lower()) not in ("", "localhost"):
        fix = f"file:///{host}{found[2]} with three slashes, or the place's path on this machine"
        raise UsageError(f"a file of another machine: this URL names the host {host}", where=blanked(text), fix=fix)


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
            there = (entry for entry in os.scandir(self.folder) if COPY.fullmatch(entry.name))
            kept = [(entry.stat(), entry.path) for entry in there if entry.is_file(follow_symlinks=False)]
            excess = filesystem.info(path)["size"] + sum(stat.st_size for stat, _ in kept) - self.size
            for stat, copy in sorted(kept, key=lambda one: one[0].st_mtime):  # the least recently used first
                if excess > 0:
                    excess -= stat.st_size
                    os.remove(copy)
            found: BinaryIO = copies.open(path, "rb")
        os.utime(found.name)
        return found


def cache_of(options: Mapping[str, Any] | None) -> LocalCopies | None:
    """Where copies of remote files are kept, by storage options; None: nowhere.

    Raises UsageError for values that are not a local folder and a number of bytes, StorageError where it cannot be made.
    """
    folder, size = (options or {}).get(CACHE), (options or {}).get(CACHE_SIZE, SIZE)
    if folder is None:
        return None
    if not isinstance(folder, (str, os.PathLike)) or "://" in str(folder) or not isinstance(size, int) or size <= 0:
        fix = "--cache with a folder of this machine, and --cache-size with bytes, such as 50GiB"
        raise UsageError(f"no cache of {size!r} bytes can be in {folder!r}", where="--cache", fix=fix)
    place = os.path.abspath(os.path.expanduser(folder))
    with storage_failures(place, "making the cache"):
        os.makedirs(place, exist_ok=True)
    return LocalCopies(place, size)
