"""Filesystem clients by URL, and their options (`--storage-option`), checked by name before any request.

Clients pass on options that they do not know, which then fail at the first request or never. One set of options serves all
places of a command: each place gets those that it takes, and an option that no place takes is an error. Three options are ours,
and every place takes them: `time_limit`, the seconds that a request may take; `cache`, a folder of this machine that caches
remote files; and `cache_size`, its limit in bytes.

Inner options (`client_kwargs`, `config_kwargs`, `session_kwargs`) go to the library below the client, which reports a wrong one
in its own words, or retries until the time is over. Their keys are checked against what that library takes.

Making a client may take long, because Google's and Azure's look for credentials then, on the network too; so it runs under the
watchdog. fsspec caches clients by the thread that made them, so one thread makes all; another replaces it where it does not
answer.

A program may also pass a filesystem. One that is really a disk of this machine, however it is wrapped, becomes fsspec's local
filesystem, whose files are written by rename, which `pyarrow.fs` cannot promise. Other filesystems of `pyarrow.fs` are wrapped
as they are.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, TypeAlias

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem
from pyarrow import fs as arrow_fs

from offline_cli.errors import BadConfig, UsageError
from offline_cli.files.blanking import blanked
from offline_cli.files.cache import SIZE, RemoteCache, cache_at
from offline_cli.files.providers import HERE, InnerOptions, client_packages, provider_of
from offline_cli.files.timeouts import NoAnswer, Patience

__all__ = [
    "cache_of",
    "check_inner_options",
    "client_for",
    "options_for",
    "patience_of",
    "place_in",
    "quiet_clients",
    "refused_inner_option",
]

ENDING: Final = "_kwargs"
FIX: Final = (
    """client_kwargs takes a JSON object by the names of the library below: 'client_kwargs={"region_name": "eu-west-1"}'"""
)

TIME_LIMIT: Final = "time_limit"
CACHE: Final = "cache"
CACHE_SIZE: Final = "cache_size"
OURS: Final = frozenset({TIME_LIMIT, CACHE, CACHE_SIZE})

OF_ALL: Final = frozenset({"use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache", "batch_size"})

_quiet: set[str] = set()  # clients whose logs have a handler

_Made: TypeAlias = "tuple[Any, str]"

_makers: list[_Maker] = []  # the last one is running; those before it never answered


def check_inner_options(scheme: str, options: Mapping[str, Any], url: str) -> None:
    """Raise BadConfig, with every mistake, for inner options that the client for a `scheme` cannot pass on."""
    taken = provider_of(scheme).inner_options
    inner = {name: value for name, value in options.items() if name.endswith(ENDING) and value is not None}
    problems = [problem for name, value in inner.items() for problem in _wrong(name, value, taken.get(name))]
    for name, value in inner.items() if not problems else ():
        repeated = value if name in taken and taken[name].repeats_options else {}
        problems += [
            f"{twice}: given twice, and differently: as an option, and in {name}"
            for twice, given in repeated.items()
            if options.get(twice) not in (None, given)
        ]
    if problems:
        raise BadConfig.of(problems, where=f"--storage-option for {blanked(url)}", fix=FIX)


def refused_inner_option(options: Any, error: Exception, url: str) -> BadConfig | None:
    """The error for inner options where a client's own code raised `error` over its arguments; None where it has none."""
    given = [name for name in options if name.endswith(ENDING)] if isinstance(options, Mapping) else []
    if not given:
        return None
    what = f"the storage cannot use what {' and '.join(given)} say: {type(error).__name__}: {blanked(str(error))}"
    return BadConfig(what, where=f"--storage-option for {url}", fix=FIX)


def _wrong(option: str, value: Any, taken: InnerOptions | None) -> Iterator[str]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        yield f"{option}: {type(value).__name__}, not an object of names and values"
        return
    if taken is None:
        return
    known = taken.names()
    for name, inner in value.items():
        kinds = taken.kinds.get(name, taken.kinds.get("")) if taken.kinds is not None else None
        if known is not None and name not in known:
            near = taken.near.get(name) or next(iter(difflib.get_close_matches(name, known, n=1)), None)
            yield f"{option}: nothing takes {name!r}; " + (
                f"did you mean {near}?" if near in known else f"there is {', '.join(sorted(known))}"
            )
        elif kinds is not None and not (inner is None or isinstance(inner, kinds)):
            yield f"{option}: {name} is {type(inner).__name__}, not {'a truth value' if bool in kinds else 'text'}"


def options_for(url: str, options: Mapping[str, Any] | None, *, beside: Iterable[str] = ()) -> dict[str, Any]:
    """Those of `options` that the client for `url` takes.

    `beside`: the other places that `options` are for. Raises UsageError for one that no client of them takes.
    """
    given = {name: value for name, value in (options or {}).items() if name not in OURS}
    if not given:
        return given
    places = list(dict.fromkeys([url, *beside]))
    own, others = _known(url), [_known(other) for other in places]
    if own is None:
        return given
    everything = None if None in others else own.union(*(names for names in others if names is not None))
    for name in given:
        if everything is not None and name not in everything:
            raise _unknown(name, places, everything)
    return {name: value for name, value in given.items() if name in own}


def _known(url: str) -> frozenset[str] | None:
    """Names of the options for `url`; None where only the client knows them."""
    scheme = fsspec.utils.get_protocol(url)
    return None if "::" in url or not provider_of(scheme).checks_options else _of_client(scheme)


@cache
def _of_client(scheme: str) -> frozenset[str] | None:
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
    if scheme in HERE:
        return frozenset(named - OF_ALL)
    return frozenset(named) | OF_ALL | provider_of(scheme).more_options


def _unknown(name: str, places: list[str], known: frozenset[str]) -> UsageError:
    near = difflib.get_close_matches(name, known | OURS, n=1)
    listed = f"the storage takes {', '.join(sorted((known | OURS) - OF_ALL))}"
    providers = [provider_of(fsspec.utils.get_protocol(place)) for place in places]
    advised = [provider.advice[name] for provider in providers if name in provider.advice]
    if advised:
        fix = f"{advised[0]}; {listed}"
    else:
        fix = f"did you mean {near[0]}? {listed[0].upper()}{listed[1:]}" if near else listed
    if all(fsspec.utils.get_protocol(place) in HERE for place in places):
        fix = f"leave it out: it is for places such as s3://, gs:// and az://; {listed}"
    where = f"--storage-option {name} for {', '.join(map(blanked, places))}"
    return UsageError(f"the storage takes no option {name!r}", where=where, fix=fix)


def patience_of(options: Mapping[str, Any] | None) -> Patience:
    """How long requests may take, by `options`. Raises UsageError for a value that is not a number of seconds."""
    seconds = (options or {}).get(TIME_LIMIT)
    if seconds is None:
        return Patience()
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        fix = f"a number of seconds, such as {TIME_LIMIT}=300"
        raise UsageError(f"{seconds!r} is not a time limit", where=f"--storage-option {TIME_LIMIT}", fix=fix)
    return Patience(float(seconds))


def cache_of(options: Mapping[str, Any] | None) -> RemoteCache | None:
    """The cache of remote files that `options` name; None: none.

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
    return cache_at(str(Path(folder).expanduser().absolute()), size)


def quiet_clients() -> None:
    """Keep what clients log off stderr, including tracebacks of every retry, unless logging is configured.

    Without any handler Python writes warnings to stderr; handlers that a program installs get the records as usual.
    """
    for name in sorted({"asyncio", *client_packages()} - _quiet):
        logging.getLogger(name).addHandler(logging.NullHandler())
        _quiet.add(name)


class _Maker:
    """One thread that makes clients, one after the other; it never keeps the process alive."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Future[_Made], str, Mapping[str, Any]]] = SimpleQueue()
        self._thread = Thread(target=self._work, name="offline-cli-clients", daemon=True)
        self._thread.start()

    @property
    def is_there(self) -> bool:
        """Whether the thread lives; in a process that was forked from the one that began it, it does not."""
        return self._thread.is_alive()

    def make(self, url: str, options: Mapping[str, Any]) -> _Made:
        """The filesystem and the path for `url`."""
        made: Future[_Made] = Future()
        self._asked.put((made, url, options))
        return made.result()

    def _work(self) -> None:
        while True:
            made, url, options = self._asked.get()
            try:
                made.set_result(url_to_fs(url, **options))
            except BaseException as error:  # noqa: BLE001  raised again by whoever asked
                made.set_exception(error)


def client_for(url: str, options: Mapping[str, Any], patience: Patience) -> _Made:
    """The fsspec filesystem for a remote `url`, and the path as it spells it. Raises NoAnswer, and what clients raise."""
    if not _makers or not _makers[-1].is_there:
        _makers.append(_Maker())
    maker = _makers[-1]
    try:
        return patience.wait_for(lambda: maker.make(url, options), blanked(url))
    except NoAnswer:
        if maker is _makers[-1]:
            _makers.append(_Maker())
        raise


def place_in(filesystem: Any, path: str) -> tuple[Any, str, str]:
    """`filesystem` as an fsspec one, `path` as it spells it, and a URL for people to read. Raises UsageError for other objects.

    `path` is relative to what the filesystem shows: to the base path of a `pyarrow.fs.SubTreeFileSystem`.
    """
    if isinstance(filesystem, arrow_fs.SubTreeFileSystem):
        return place_in(filesystem.base_fs, f"{filesystem.base_path.rstrip('/')}/{path.lstrip('/')}")
    if isinstance(filesystem, arrow_fs.PyFileSystem) and isinstance(filesystem.handler, arrow_fs.FSSpecHandler):
        return place_in(filesystem.handler.fs, path)
    if isinstance(filesystem, arrow_fs.LocalFileSystem):
        return LocalFileSystem(), os.path.abspath(path), path
    if isinstance(filesystem, arrow_fs.FileSystem):
        inner = path.strip("/")
        return ArrowFSWrapper(filesystem), inner, f"{filesystem.type_name}://{inner}"
    if isinstance(filesystem, fsspec.AbstractFileSystem):
        inner = str(filesystem._strip_protocol(path))
        return filesystem, inner, path if isinstance(filesystem, LocalFileSystem) else str(filesystem.unstrip_protocol(inner))
    fix = "give a filesystem of fsspec or pyarrow.fs"
    raise UsageError(f"{type(filesystem).__name__} is not a filesystem", where=path, fix=fix)
