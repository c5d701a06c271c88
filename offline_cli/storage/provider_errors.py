"""What storage providers mean by their errors, in words that say what to do; refuses to guess where a code is unknown.

Clients wrap the provider's answer: s3fs in an OSError whose cause is botocore's, adlfs in a RuntimeError, pyarrow in text. So
the whole chain of causes is looked through for a code, innermost last, and the first known one decides. Known by their names
are also the errors of clients that found no credentials to send.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from offline_cli.errors import StorageError, StorageNotFound, causes
from offline_cli.storage.blanking import blanked
from offline_cli.storage.provider import Fault, Provider
from offline_cli.storage.providers import known_providers, provider_at

__all__ = ["bucket_of", "explained", "has_code", "no_bucket", "set_up"]


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
    Fault.ANONYMOUS: _Meaning("the storage wants credentials, and got none that it takes", "set {set_up}"),
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
    """`error` as what the provider meant by it, naming `url`; None where its codes say nothing known."""
    for one in causes(error):
        for code in _codes(one):
            if code in _words().codes:
                return _error(_MEANINGS[_words().codes[code]], one, url, doing)
    return None


def no_bucket(url: str) -> StorageNotFound:
    """The error of a place whose bucket does not exist."""
    missing = _MEANINGS[Fault.NO_BUCKET]
    return StorageNotFound(missing.what.format(container=_container(url), bucket=bucket_of(url)), where=url, fix=missing.fix)


def set_up(url: str) -> str:
    """How credentials are given to the provider of a URL."""
    return provider_at(url).set_up


def has_code(error: Exception) -> bool:
    """Whether the provider said what is wrong in a word of its own that is no riddle; answers without a body (HEAD) lack it."""
    words = _words()
    said = {code for one in causes(error) for code in _codes(one) if code in words.codes and not code.isdigit()}
    return bool(said) and (said.isdisjoint(words.vague) or any(map(words.telling.fullmatch, said)))


def bucket_of(url: str) -> str:
    """The bucket or container in a URL."""
    return url.rpartition("::")[2].partition("://")[2].partition("/")[0]


def _codes(error: Any) -> Iterator[str]:
    """What names `error` to its provider, the most telling first."""
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
    fix = meaning.fix.format(set_up=set_up(url), region=_region(cause))
    return kind(what if meaning.is_missing else f"{doing} failed: {what}{_said(cause)}", where=url, fix=fix)


def _container(url: str) -> str:
    return provider_at(url).container or "bucket"


def _region(cause: Any) -> str:
    """The region that S3 says is right, if it does."""
    response = getattr(cause, "response", None)
    region = response.get("Error", {}).get("Region") if isinstance(response, dict) else None
    return f": {region}" if region else ""


def _said(cause: Any) -> str:
    """The provider's own words, first line, in brackets."""
    lines = str(cause).strip().splitlines()
    return f" ({blanked(lines[0])[:300]})" if lines else ""
