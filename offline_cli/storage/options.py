"""Options for the client of a storage (`--storage-option`): each place gets those that it takes; refuses ones that none takes.

Clients pass on what they do not know, to fail at their first request or never; so options are checked by name beforehand,
for the clients whose options are known. One set of options serves all places of a command: `anon` for an s3:// source does
no harm to a local output. Three options are ours, and every place takes them: `time_limit`, the seconds that a request may
take; `cache`, a folder of this machine that keeps what is read of remote files; and `cache_size`, the bytes that it may take.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import math
import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import fsspec

from offline_cli.errors import UsageError
from offline_cli.storage.blanking import blanked
from offline_cli.storage.cache import SIZE, RemoteCache, cache_at
from offline_cli.storage.patience import Patience
from offline_cli.storage.provider import Provider
from offline_cli.storage.providers import HERE, client_packages, provider_of

__all__ = ["cache_of", "options_for", "patience_of", "quiet_clients"]

TIME_LIMIT: Final = "time_limit"
CACHE: Final = "cache"
CACHE_SIZE: Final = "cache_size"
OURS: Final = frozenset({TIME_LIMIT, CACHE, CACHE_SIZE})

OF_ALL: Final = frozenset({"use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache", "batch_size"})


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


def _provider(url: str) -> Provider:
    return provider_of(fsspec.utils.get_protocol(url))


def _unknown(name: str, places: list[str], known: frozenset[str]) -> UsageError:
    near = difflib.get_close_matches(name, known | OURS, n=1)
    listed = f"the storage takes {', '.join(sorted((known | OURS) - OF_ALL))}"
    advised = [advice for place in places for advice in [_provider(place).advice.get(name)] if advice]
    if advised:
        fix = f"{advised[0]}; {listed}"
    else:
        fix = f"did you mean {near[0]}? {listed[0].upper()}{listed[1:]}" if near else listed
    if all(fsspec.utils.get_protocol(place) in HERE for place in places):
        fix = f"leave it out: it is for places such as s3://, gs:// and az://; {listed}"
    where = f"--storage-option {name} for {', '.join(map(blanked, places))}"
    return UsageError(f"the storage takes no option {name!r}", where=where, fix=fix)


def patience_of(options: Mapping[str, Any] | None) -> Patience:
    """How long requests may take, by `options`. Raises UsageError for what is no number of seconds."""
    seconds = (options or {}).get(TIME_LIMIT)
    if seconds is None:
        return Patience()
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        fix = f"a number of seconds, such as {TIME_LIMIT}=300"
        raise UsageError(f"{seconds!r} is no time limit", where=f"--storage-option {TIME_LIMIT}", fix=fix)
    return Patience(float(seconds))


def cache_of(options: Mapping[str, Any] | None) -> RemoteCache | None:
    """Where files read from remote places are kept, by `options`; None: nowhere.

    Raises UsageError for what is no local folder or no number of bytes, StorageError where the folder cannot be made.
    """
    folder, size = (options or {}).get(CACHE), (options or {}).get(CACHE_SIZE, SIZE)
    if folder is None:
        return None
    if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder) or "://" in str(folder):
        fix = "a folder of this machine, such as ~/.cache/offline-cli"
        raise UsageError(f"{folder!r} is no local folder", where="--cache", fix=fix)
    if isinstance(size, bool) or not isinstance(size, int) or size <= 0:
        raise UsageError(f"{size!r} is no number of bytes", where="--cache-size", fix="for example --cache-size 50GiB")
    return cache_at(str(Path(folder).expanduser().absolute()), size)


_quiet: set[str] = set()  # clients whose logs have a handler


def quiet_clients() -> None:
    """Keep what clients log off stderr, tracebacks of every retry among it, unless somebody has set up logging.

    Without any handler Python writes warnings to stderr; handlers that a program installs get the records as ever.
    """
    for name in sorted({"asyncio", *client_packages()} - _quiet):
        logging.getLogger(name).addHandler(logging.NullHandler())
        _quiet.add(name)
