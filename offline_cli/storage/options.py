"""Options for the client of a storage (`--storage-option`): each place gets those that it takes; refuses ones that none takes.

Clients pass on what they do not know, to fail at their first request or never; so options are checked by name beforehand,
for the clients whose options are known. One set of options serves all places of a command: `anon` for an s3:// source does
no harm to a local output.
"""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import fsspec

from offline_cli.errors import UsageError

__all__ = ["options_for", "quiet_clients"]

CHECKED: Final = frozenset({"file", "local", "memory", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})
HERE: Final = frozenset({"file", "local", "memory"})
OF_ALL: Final = frozenset({"use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache", "batch_size"})
OF_SESSIONS: Final = {"s3": frozenset({"profile"}), "s3a": frozenset({"profile"})}  # passed on to the client's session
CLIENT_LOGS: Final = ("adlfs", "aiobotocore", "aiohttp", "asyncio", "azure", "botocore", "fsspec", "gcsfs", "google", "s3fs")


def options_for(url: str, options: Mapping[str, Any] | None, *, beside: Iterable[str] = ()) -> dict[str, Any]:
    """Those of `options` that the client for `url` takes.

    `beside`: the other places that `options` are for. Raises UsageError for one that no client of them takes.
    """
    given = dict(options or {})
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
    return None if "::" in url or scheme not in CHECKED else _of_client(scheme)


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
    return frozenset(named) | OF_ALL | OF_SESSIONS.get(scheme, frozenset())


def _unknown(name: str, places: list[str], known: frozenset[str]) -> UsageError:
    near = difflib.get_close_matches(name, known, n=1)
    listed = ", ".join(sorted(known - OF_ALL)) or "none"
    fix = f"did you mean {near[0]}? The storage takes {listed}" if near else f"the storage takes {listed}"
    return UsageError(
        f"the storage takes no option {name!r}", where=f"--storage-option {name} for {', '.join(places)}", fix=fix
    )


@cache
def quiet_clients() -> None:
    """Keep what clients log off stderr, tracebacks of every retry among it, unless somebody has set up logging.

    Without any handler Python writes warnings to stderr; handlers that a program installs get the records as ever.
    """
    for name in CLIENT_LOGS:
        logging.getLogger(name).addHandler(logging.NullHandler())
