"""Resolve a URL or a caller's filesystem object to an fsspec filesystem and a path.

fsspec's chains work too: `filecache::s3://bucket/D` keeps copies of files on this machine.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import get_protocol
from pyarrow import fs as arrow_fs

from offline_cli.errors import MissingPackage, UsageError
from offline_cli.storage.blanking import BLANK, blanked
from offline_cli.storage.failures import asked
from offline_cli.storage.providers import BUCKETS, HERE, PROVIDERS, TIME_LIMIT, provider_of


def filesystem_at(text: str, options: Mapping[str, Any] | None, *, time_limit: float) -> tuple[Any, str, str]:
    """The filesystem of a URL, the path in it, and the URL for messages. Raises as `open_location` does."""
    check_url(text)
    scheme, shown = get_protocol(text), blanked(text)
    provider_of(scheme).prepare(options or {})
    own: dict[str, Any] = {}
    if scheme not in HERE:
        own = {name: value for name, value in (options or {}).items() if name != TIME_LIMIT}
        quiet_clients()
    if text.startswith("file://"):  # clients do not decode file URLs (RFC 8089)
        text = unquote(text.replace("file://localhost/", "file:///", 1), errors="surrogateescape")
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
    """Raise UsageError for a bucket's URL with a password, which clients repeat in errors, without a bucket, or with one slash,
    which would be a local folder; and for a file of another host.
    """
    scheme, mark, rest = text.partition("://")
    if scheme == "file" and mark and rest.partition("/")[0] not in ("", "localhost"):
        raise UsageError("a file:// URL has three slashes, and no host", where=text, fix="write file:///path, or the path")
    provider = provider_of(scheme.rpartition("::")[2])
    if mark and (noun := provider.container):
        bucket = rest.partition("/")[0]
        has_at = "@" in bucket and not provider.account_after_at
        if not bucket or has_at or (":" in bucket and not bucket.startswith("arn:")):
            what = f"a {scheme}:// URL must start with the name of a {noun}, without user, password or port"
            fix = f"write {scheme}://{noun}/path; for credentials set {provider.set_up}"
            raise UsageError(what, where=f"{scheme}://{BLANK}", fix=fix)
    elif not mark and text.partition(":")[0] in {*BUCKETS, "hf", "http", "https"}:
        raise UsageError("a URL needs two slashes", where=blanked(text), fix="write ./ before the name of a local folder")


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
