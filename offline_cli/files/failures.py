"""Failures of storage in one language: exceptions of a filesystem or cloud client become StorageError; our bugs do not.

Cloud clients raise classes of their own (botocore's NoCredentialsError, azure's HttpResponseError) that are no OSError; they
are recognised by the package that they come from, so that no client has to be imported to be caught.

A provider's error codes are looked up in its record (`providers.py`). Clients wrap the provider's answer: s3fs in an OSError
whose cause is botocore's, adlfs in a RuntimeError, pyarrow in text. So the whole chain of causes is searched for a code,
innermost last, and the first known one decides. An unknown code is never guessed.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from offline_cli.errors import OfflineCliError, StorageError, StorageNotFound, UsageError, causes
from offline_cli.files.blanking import blanked
from offline_cli.files.local_files import dangling_link
from offline_cli.files.providers import Fault, Provider, client_packages, known_providers, provider_at
from offline_cli.files.timeouts import NoAnswer

__all__ = ["bucket_of", "explained", "from_a_client", "has_code", "no_bucket", "storage_failures"]

COMMON = (RuntimeError, ValueError, LookupError, AssertionError)  # which clients raise too, and our bugs
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True)
class _Meaning:
    what: str  # after "reading it failed: "
    fix: str  # {set_up}: how credentials are given to this provider
    is_missing: bool = False


_MEANINGS: Final = {
    Fault.NO_BUCKET: _Meaning("the {container} {bucket!r} does not exist", "check its name, or make it first", is_missing=True),
    Fault.NO_CREDENTIALS: _Meaning("no credentials were found", "set {set_up}"),
    Fault.UNKNOWN_KEY: _Meaning("the storage does not know the access key", "check the key's id, or set {set_up}"),
    Fault.WRONG_SECRET: _Meaning(
        "the storage refused the key: it does not fit the account", "check the secret key, or set {set_up}"
    ),
    Fault.EXPIRED: _Meaning("the credentials have expired", "log in again, or get new ones; then run the command again"),
    Fault.WRONG_REGION: _Meaning(
        "the bucket is in another region than the request was for", "set AWS_DEFAULT_REGION to the region of the bucket{region}"
    ),
    Fault.BAD_NAME: _Meaning("{bucket!r} cannot be the name of a {container}", "check the name, which ends at the first slash"),
    Fault.WRONG_CLOCK: _Meaning("the storage refused the request's time", "set the clock of this machine"),
    Fault.DENIED: _Meaning("access was denied", "ask for permission on this place, or use other credentials: set {set_up}"),
    Fault.ANONYMOUS: _Meaning("the storage wants credentials, and got none that it accepts", "set {set_up}"),
    Fault.BUSY: _Meaning("the storage is overloaded, or not available", "run the command again in a while"),
    Fault.UNREACHABLE: _Meaning("the storage cannot be reached", "check the network, and the endpoint or account name"),
}


@dataclass(frozen=True, slots=True)
class _Words:
    """How providers name their errors, all of them together: one wraps the client of another."""

    codes: Mapping[str, Fault]
    telling: re.Pattern[str]
    vague: frozenset[str]
    in_text: re.Pattern[str]


@cache
def _words_of(providers: tuple[Provider, ...]) -> _Words:
    codes = {code: fault for provider in providers for code, fault in provider.codes.items()}
    telling = re.compile("|".join(pattern for provider in providers for pattern in provider.telling))
    vague = frozenset[str]().union(*(provider.vague for provider in providers))
    return _Words(codes, telling, vague, re.compile("|".join(text for provider in providers for text in provider.in_text)))


def _words() -> _Words:
    return _words_of(known_providers())


def explained(error: Exception, url: str, doing: str) -> StorageError | None:
    """`error` translated by the provider's codes, naming `url`; None where its codes are unknown."""
    for one in causes(error):
        for code in _codes(one):
            if code in _words().codes:
                return _error(_MEANINGS[_words().codes[code]], one, url, doing)
    return None


def no_bucket(url: str) -> StorageNotFound:
    """The error of a place whose bucket does not exist."""
    missing = _MEANINGS[Fault.NO_BUCKET]
    return StorageNotFound(missing.what.format(container=_container(url), bucket=bucket_of(url)), where=url, fix=missing.fix)


def has_code(error: Exception) -> bool:
    """Whether the provider named what is wrong by a code of its own; answers without a body (HEAD) have none."""
    words = _words()
    said = {code for one in causes(error) for code in _codes(one) if code in words.codes and not code.isdigit()}
    return bool(said) and (said.isdisjoint(words.vague) or any(map(words.telling.fullmatch, said)))


def bucket_of(url: str) -> str:
    """The bucket or container in a URL."""
    return url.rpartition("::")[2].partition("://")[2].partition("/")[0]


def _codes(error: Any) -> Iterator[str]:
    """The names of `error` in its provider's records, the most specific first."""
    if match := _words().telling.search(str(error)):
        yield match.group()
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        yield str(response.get("Error", {}).get("Code", ""))
    for name in ("error_code", "code"):  # azure; gcsfs
        value = getattr(error, name, None)
        if value is not None and not callable(value):
            yield str(getattr(value, "value", value))
    if match := _words().in_text.search(str(error)):
        yield next(part for part in match.groups() if part)
    yield type(error).__name__
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        yield str(status)


def _error(meaning: _Meaning, cause: Any, url: str, doing: str) -> StorageError:
    kind = StorageNotFound if meaning.is_missing else StorageError
    what = meaning.what.format(container=_container(url), bucket=bucket_of(url))
    fix = meaning.fix.format(set_up=provider_at(url).set_up, region=_region(cause))
    return kind(what if meaning.is_missing else f"{doing} failed: {what}{_said(cause)}", where=url, fix=fix)


def _container(url: str) -> str:
    return provider_at(url).container or "bucket"


def _region(cause: Any) -> str:
    """The region that S3 says is right, if any."""
    response = getattr(cause, "response", None)
    region = response.get("Error", {}).get("Region") if isinstance(response, dict) else None
    return f": {region}" if region else ""


def _said(cause: Any) -> str:
    """The provider's own words, first line, in brackets."""
    lines = str(cause).strip().splitlines()
    return f" ({blanked(lines[0])[:300]})" if lines else ""


@contextmanager
def storage_failures(url: str, doing: str) -> Iterator[None]:
    """Within it, failures of storage raise StorageError, or StorageNotFound, naming `url` and what was being done to it.

    UsageError where a client does not know an option that it was given, which it may say as late as at its first request.
    """
    try:
        yield
    except OfflineCliError:
        raise
    except NoAnswer as err:
        fix = f"check network and endpoint, or set {provider_at(url).set_up}; --storage-option time_limit=SECONDS waits longer"
        raise StorageError(f"{doing} failed: the storage timed out after {err.seconds:g} s", where=url, fix=fix) from err
    except OSError as err:
        raise explained(err, url, doing) or _of_os_error(err, url, doing) from err
    except Exception as err:
        if not _from_a_client(err):
            raise
        if isinstance(err, TypeError):
            fix = "leave the option out, or look up its name in the client's documentation"
            raise UsageError(f"the storage does not take an option: {err}", where=url, fix=fix) from err
        raise explained(err, url, doing) or _of_a_client(err, url, doing) from err


def _of_a_client(err: Exception, url: str, doing: str) -> StorageError:
    fix = "check the network, the endpoint and the credentials, then run the command again"
    return StorageError(f"{doing} failed: {_text(err)}", where=url, fix=fix)


def _of_os_error(err: OSError, url: str, doing: str) -> StorageError:
    if isinstance(err, (FileNotFoundError, FileExistsError)) and (broken := dangling_link(str(err.filename or url), shown=url)):
        return broken
    if isinstance(err, FileNotFoundError):
        fix = "check the path" if "://" not in url or url.startswith("file:") else "check the path, or the bucket's name"
        return StorageNotFound(f"{url} does not exist", where=url, fix=fix)
    if isinstance(err, PermissionError):
        fix = "check the permissions, or the credentials that the storage client uses"
        return StorageError(f"{doing} was denied: no permission", where=_place(err, url), fix=fix)
    if err.errno == errno.EROFS:
        fix = "write to a place that is not mounted read-only"
        return StorageError(f"{doing} failed: the file system is read-only", where=_place(err, url), fix=fix)
    if err.errno in FULL:
        return StorageError(f"{doing} failed: no space left", where=url, fix="free some space, or write to another place")
    if isinstance(err, (NotADirectoryError, FileExistsError)):
        fix = "a file stands where a folder is needed: name another path"
        return StorageError(f"{doing} failed: {_text(err)}", where=url, fix=fix)
    if isinstance(err, IsADirectoryError):
        return StorageError(f"{doing} failed: it is a folder", where=url, fix="name a file")
    return StorageError(f"{doing} failed: {_text(err)}", where=url, fix="check that the storage is reachable and healthy")


def _place(err: OSError, url: str) -> str:
    """`url`, and the path that was refused where that is another one, such as a folder above."""
    return url if err.filename is None or str(err.filename) == url else f"{url} ({err.filename})"


def _text(err: Exception) -> str:
    return f"{type(err).__name__}: {blanked(str(err))}" if str(err) else type(err).__name__


def from_a_client(err: Exception) -> bool:
    """Whether `err`, of any class, came through a cloud client's code."""
    return any(_is_client(name) for name in _modules_of(err))


def _from_a_client(err: Exception) -> bool:
    """Whether a cloud client made `err`: by its class, or, of a common one or a refused option, by the code it came through."""
    if any(_is_client(kind.__module__) for kind in type(err).__mro__):
        return True
    refused_option = isinstance(err, TypeError) and "__init__() got an unexpected keyword" in str(err)
    return (isinstance(err, COMMON) or refused_option) and any(_is_client(name) for name in _modules_of(err))


def _is_client(module: str) -> bool:
    return module.partition(".")[0] in client_packages()


def _modules_of(err: Exception) -> Iterator[str]:
    """The module of each frame that `err` came through."""
    frame = err.__traceback__
    while frame is not None:
        yield str(frame.tb_frame.f_globals.get("__name__", ""))
        frame = frame.tb_next
