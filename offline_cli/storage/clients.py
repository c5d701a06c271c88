"""Filesystem clients and their options (`--storage-option`), checked by name before any request.

Clients pass on options that they do not know, which then fail at the first request or never. One set of options serves all
places of a command: each place gets those that it takes, and an option that no place takes is an error. Three options are ours,
and every place takes them: `time_limit`, the seconds that a request may take; `cache`, a folder of this machine that keeps
copies of remote files; and `cache_size`, its limit in bytes.
"""

from __future__ import annotations

import inspect
import logging
import math
import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import fsspec
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem
from pyarrow import fs as arrow_fs

from offline_cli.errors import UsageError
from offline_cli.storage.blanking import blanked
from offline_cli.storage.providers import HERE, client_packages, provider_of
from offline_cli.storage.timeouts import SECONDS

__all__ = ["CACHE", "CACHE_SIZE", "options_for", "place_in", "quiet_clients", "time_limit_of"]

TIME_LIMIT, CACHE, CACHE_SIZE = "time_limit", "cache", "cache_size"
OURS: Final = frozenset({TIME_LIMIT, CACHE, CACHE_SIZE})
OF_ALL: Final = frozenset({"use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache", "batch_size"})

_quiet: set[str] = set()  # clients whose logs have a handler


def options_for(url: str, options: Mapping[str, Any] | None, *, beside: Iterable[str] = ()) -> dict[str, Any]:
    """Those of `options` that the client for `url` takes.

    `beside`: the other places that `options` are for. Raises UsageError for one that no client of them takes.
    """
    given = {name: value for name, value in (options or {}).items() if name not in OURS}
    places = list(dict.fromkeys([url, *beside]))
    takes = [_names_for(place) for place in places] if given else []
    if not given or takes[0] is None:
        return given
    known = frozenset[str]().union(*(names or () for names in takes))
    unknown = [name for name in given if name not in known and None not in takes]
    if unknown:
        raise _unknown(unknown[0], places, known)
    return {name: value for name, value in given.items() if name in takes[0]}


def _names_for(url: str) -> frozenset[str] | None:
    """Names of the options for `url`; None where only the client knows them."""
    scheme = fsspec.utils.get_protocol(url)
    return None if "::" in url or not provider_of(scheme).checks_options else _names_of_client(scheme)


@cache
def _names_of_client(scheme: str) -> frozenset[str] | None:
    try:
        client = fsspec.get_filesystem_class(scheme)
    except ImportError:
        return None
    makers = [kind.__init__ for kind in client.__mro__ if "__init__" in vars(kind) and kind is not object]
    named = {
        parameter.name
        for maker in makers
        for parameter in inspect.signature(maker).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    named -= {"self", "fs", "asynchronous", "loop"}
    return frozenset(named - OF_ALL if scheme in HERE else named | OF_ALL | provider_of(scheme).more_options)


def _unknown(name: str, places: list[str], known: frozenset[str]) -> UsageError:
    schemes = [fsspec.utils.get_protocol(place) for place in places]
    advice = [provider_of(scheme).advice[name] for scheme in schemes if name in provider_of(scheme).advice]
    if not known - OF_ALL or HERE.issuperset(schemes):
        advice = ["leave it out, it is for places such as s3://, gs:// and az://"]
    fix = "; ".join([*advice, f"the storage takes {', '.join(sorted((known | OURS) - OF_ALL))}"])
    where = f"--storage-option {name} for {', '.join(map(blanked, places))}"
    return UsageError(f"the storage takes no option {name!r}", where=where, fix=fix)


def time_limit_of(options: Mapping[str, Any] | None) -> float:
    """Seconds that a request may take, by `options`. Raises UsageError for a value that is not a number of seconds."""
    seconds = (options or {}).get(TIME_LIMIT, SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        fix = f"a number of seconds, such as {TIME_LIMIT}=300"
        raise UsageError(f"{seconds!r} is not a time limit", where=f"--storage-option {TIME_LIMIT}", fix=fix)
    return float(seconds)


def quiet_clients() -> None:
    """Keep what clients log off stderr, including tracebacks of every retry, unless logging is configured.

    Without any handler Python writes warnings to stderr; handlers that a program installs get the records as usual.
    """
    for name in sorted({"asyncio", *client_packages()} - _quiet):
        logging.getLogger(name).addHandler(logging.NullHandler())
        _quiet.add(name)


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
