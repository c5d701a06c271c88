"""Places by URL: a path, or a URL of any provider that is known to us, to other packages or to fsspec.

The URL chooses the filesystem. Local paths are shown as the user wrote them. An unknown scheme is UsageError, and so is a
URL that carries a password, names no bucket, or has lost a slash: clients take what stands before `@` for a part of the
bucket's name and repeat it in their errors, list every bucket where none is named, and take `s3:/bucket` for a folder of
this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import fsspec
from fsspec.core import url_to_fs

from offline_cli.errors import MissingPackage, UsageError
from offline_cli.storage.blanking import BLANK, blanked
from offline_cli.storage.client_options import cache_of, check_inner_options, options_for, patience_of, quiet_clients
from offline_cli.storage.clients import client_for
from offline_cli.storage.failures import storage_failures
from offline_cli.storage.location import Location
from offline_cli.storage.providers import HERE, buckets, provider_of

__all__ = ["REPLACED", "Location", "Sources", "check_url", "expand", "is_of_bucket", "is_web", "open_location"]

_ONE_SLASH: Final = re.compile(rf"({'|'.join(sorted(buckets()))}|https?):/?(?!/).*", re.DOTALL)
_WEB: Final = re.compile(r"https?://")


def check_url(text: str) -> None:
    """Raise UsageError for a URL that cannot be meant; of a chain (`zip://a::s3://...`), for any link of it."""
    for link in text.split("::"):
        scheme, mark, rest = link.partition("://")
        if mark and provider_of(scheme).container:
            _check_bucket(scheme, rest.partition("/")[0])
        elif match := _ONE_SLASH.fullmatch(link):
            name = match[1]
            fix = f"{name}:// with two slashes, or ./{name}:... for a place of this machine"
            raise UsageError(f"{name}:// has lost a slash: this is no URL", where=blanked(text), fix=fix)


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


REPLACED: Final = "_replaced"  # a folder of a dataset, see layout.py

SIGNS: Final = ":=?&#{"  # of a URL, and of what may hold a secret; a plain path has none

Sources: TypeAlias = "str | os.PathLike[str] | Location | Iterable[str | os.PathLike[str] | Location]"


def open_location(
    url: str | os.PathLike[str] | Location,
    storage_options: Mapping[str, Any] | None = None,
    *,
    beside: Sources = (),
    filesystem: Any = None,
) -> Location:
    """The place that `url` names, which need not exist.

    `beside`: other places that the same options are for. `filesystem`: one of fsspec or `pyarrow.fs`, in which `url` is a path;
    of the options it takes only `time_limit`, `cache`, `cache_size`. Raises UsageError for a scheme that nobody knows and for
    an option that none of these places takes, BadConfig for inner ones (`client_kwargs`) that its client cannot hand on,
    MissingPackage where a client is not installed, StorageError where it cannot be set up.
    """
    if isinstance(url, Location):
        return url
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
    try:
        with storage_failures(shown, "opening the storage"):
            fs, path = client_for(text, options, patience) if remote else url_to_fs(text, **options)
    except ImportError as err:
        raise _missing_client(scheme, text, err) from err
    return Location(fs, str(path), shown, patience, cache_of(storage_options))


def _check_client(scheme: str, url: str) -> None:
    """Raise UsageError for a scheme that nobody knows, MissingPackage where its client is not installed."""
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
    from offline_cli.storage.clients import place_in

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
    found = location.matches()
    return [place for place in found if not _is_replaced(place)] or found


def _is_replaced(place: Location) -> bool:
    """Whether it is among shards that a dataset has replaced: under a pattern they would be read as more data."""
    return REPLACED in place.path.split("/")


def _is_pattern(location: Location) -> bool:
    """Whether its path has signs of a glob; what follows `?` on the web is a query, signatures among it."""
    path, signs = (location.path.partition("?")[0], "*[") if is_web(location.path) else (location.path, "*?[")
    return any(sign in path for sign in signs)
