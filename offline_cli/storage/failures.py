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
from functools import cache
from typing import Any, Final

from offline_cli.errors import BadConfig, OfflineCliError, StorageError, StorageNotFound, UsageError, causes
from offline_cli.storage.blanking import blanked
from offline_cli.storage.local_files import dangling_link
from offline_cli.storage.providers import Fault, Provider, client_packages, known_providers, provider_at
from offline_cli.storage.timeouts import NoAnswer

__all__ = ["is_named", "no_bucket", "storage_failures"]

COMMON: Final = (RuntimeError, ValueError, LookupError, AssertionError)  # which clients raise too, and our bugs
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
INNER: Final = "_kwargs"  # ends the names of options that a client hands on to the library below it


@contextmanager
def storage_failures(url: str, doing: str, options: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Within it, failures of storage raise StorageError, or StorageNotFound, naming `url` and what was being done to it.

    `options`: those that the client was made with. Where it cannot use one, which it may say as late as at its first request,
    UsageError; BadConfig for inner ones (`client_kwargs`).
    """
    try:
        yield
    except OfflineCliError:
        raise
    except NoAnswer as err:
        fix = f"check network and endpoint, or set {provider_at(url).set_up}; --storage-option time_limit=SECONDS waits longer"
        raise StorageError(f"{doing} failed: the storage timed out after {err.seconds:g} s", where=url, fix=fix) from err
    except OSError as err:
        raise _explained(err, url, doing) or _of_os_error(err, url, doing) from err
    except Exception as err:
        inner = [name for name in options or () if name.endswith(INNER)]
        if isinstance(err, (TypeError, AttributeError)) and inner and _came_through_a_client(err):
            what = f"the storage cannot use what {' and '.join(inner)} say: {_text(err)}"
            fix = """they take the names of the library below the client: 'client_kwargs={"region_name": "eu-west-1"}'"""
            raise BadConfig(what, where=f"--storage-option for {url}", fix=fix) from err
        if not _is_a_clients(err):
            raise
        if isinstance(err, TypeError):
            fix = "leave the option out, or look up its name in the client's documentation"
            raise UsageError(f"the storage does not take an option: {err}", where=url, fix=fix) from err
        fix = "check the network, the endpoint and the credentials, then run the command again"
        raise _explained(err, url, doing) or StorageError(f"{doing} failed: {_text(err)}", where=url, fix=fix) from err


def no_bucket(url: str) -> StorageNotFound:
    """The error of a place whose bucket does not exist."""
    what, fix = Fault.NO_BUCKET.value
    return StorageNotFound(what.format(**_names(url)), where=url, fix=fix)


def is_named(error: Exception) -> bool:
    """Whether no server answered, and the class of the error says why: no credentials, no connection."""
    if any(getattr(one, "status_code", None) is not None for one in causes(error)):
        return False
    return any(type(one).__name__ in _codes_of(known_providers()) for one in causes(error))


# ---- a provider's codes ----


@cache
def _codes_of(providers: tuple[Provider, ...]) -> Mapping[str, Fault]:
    """All together, as one provider wraps the client of another."""
    return {code: fault for provider in providers for code, fault in provider.codes.items()}


@cache
def _in_text(providers: tuple[Provider, ...]) -> re.Pattern[str]:
    return re.compile("|".join(text for provider in providers for text in provider.in_text))


def _explained(error: Exception, url: str, doing: str) -> StorageError | None:
    """`error` translated by the provider's codes, naming `url`; None where its codes are unknown."""
    known = _codes_of(known_providers())
    found = ((known[code], one) for one in causes(error) for code in _codes(one) if code in known)
    fault, cause = next(found, (None, None))
    if fault is None:
        return None
    if fault is Fault.NO_BUCKET:
        return no_bucket(url)
    what, fix = fault.value
    lines = str(cause).strip().splitlines()
    said = f" ({blanked(lines[0])[:300]})" if lines else ""
    names = {**_names(url), "set_up": provider_at(url).set_up, "region": _region(cause)}
    return StorageError(f"{doing} failed: {what.format(**names)}{said}", where=url, fix=fix.format(**names))


def _codes(error: Any) -> Iterator[str]:
    """The names of `error` in its provider's records, the most specific first."""
    if match := _in_text(known_providers()).search(str(error)):
        yield next(part for part in match.groups() if part)
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        yield str(response.get("Error", {}).get("Code", ""))
    for name in ("error_code", "code"):  # azure; gcsfs
        value = getattr(error, name, None)
        if value is not None and not callable(value):
            yield str(getattr(value, "value", value))
    yield type(error).__name__
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        yield str(status)


def _names(url: str) -> dict[str, str]:
    bucket = url.rpartition("::")[2].partition("://")[2].partition("/")[0]
    return {"container": provider_at(url).container or "bucket", "bucket": bucket}


def _region(cause: Any) -> str:
    """The region that S3 says is right, if any."""
    response = getattr(cause, "response", None)
    region = response.get("Error", {}).get("Region") if isinstance(response, dict) else None
    return f": {region}" if region else ""


# ---- the system's errors ----


def _of_os_error(err: OSError, url: str, doing: str) -> StorageError:
    if isinstance(err, (FileNotFoundError, FileExistsError)) and (broken := dangling_link(str(err.filename or url), shown=url)):
        return broken
    if isinstance(err, FileNotFoundError):
        fix = "check the path" if "://" not in url or url.startswith("file:") else "check the path, or the bucket's name"
        return StorageNotFound(f"{url} does not exist", where=url, fix=fix)
    place = url if err.filename is None or str(err.filename) == url else f"{url} ({err.filename})"  # a folder above, say
    if isinstance(err, PermissionError):
        fix = "check the permissions, or the credentials that the storage client uses"
        return StorageError(f"{doing} was denied: no permission", where=place, fix=fix)
    if err.errno == errno.EROFS:
        fix = "write to a place that is not mounted read-only"
        return StorageError(f"{doing} failed: the file system is read-only", where=place, fix=fix)
    if err.errno in FULL:
        return StorageError(f"{doing} failed: no space left", where=url, fix="free some space, or write to another place")
    if isinstance(err, IsADirectoryError):
        return StorageError(f"{doing} failed: it is a folder", where=url, fix="name a file")
    is_file = isinstance(err, (NotADirectoryError, FileExistsError))
    fix = "a file stands where a folder is needed: name another path" if is_file else "check that the storage is healthy"
    return StorageError(f"{doing} failed: {_text(err)}", where=url, fix=fix)


def _text(err: Exception) -> str:
    return f"{type(err).__name__}: {blanked(str(err))}" if str(err) else type(err).__name__


# ---- whose errors they are ----


def _is_a_clients(err: Exception) -> bool:
    """Whether a cloud client made `err`: by its class, or, of a common one or a refused option, by the code it came through."""
    if any(_is_client(kind.__module__) for kind in type(err).__mro__):
        return True
    refused_option = isinstance(err, TypeError) and "__init__() got an unexpected keyword" in str(err)
    return (isinstance(err, COMMON) or refused_option) and _came_through_a_client(err)


def _came_through_a_client(err: Exception) -> bool:
    frame = err.__traceback__
    while frame is not None:
        if _is_client(str(frame.tb_frame.f_globals.get("__name__", ""))):
            return True
        frame = frame.tb_next
    return False


def _is_client(module: str) -> bool:
    return module.partition(".")[0] in client_packages()
