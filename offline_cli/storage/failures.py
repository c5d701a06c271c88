"""Storage requests: a time limit around each, and translation of every failure into our errors.

Clients retry by themselves, some for minutes, and s3fs waits forever if a server stops reading, in spite of its timeouts. So
each request moves a bounded number of bytes, runs in its own daemon thread, and is awaited for a limited time. An abandoned
request is not cancelled: its thread runs until the client returns, but never keeps the process alive.

Error codes are looked up in the provider's record (`providers.py`), along the whole chain of causes. Other errors keep their
text. Around other code, only OSErrors count as storage failures: bugs stay ordinary exceptions.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from offline_cli.errors import OfflineCliError, StorageError, StorageNotFound, UsageError, causes
from offline_cli.storage.blanking import blanked
from offline_cli.storage.local_files import FULL
from offline_cli.storage.providers import CODES, Fault, provider_at

SECONDS: Final = 60.0  # default time limit of a request; clients recover from a short outage in up to 20 s
REQUEST_BYTES: Final = 16 << 20  # maximum per request: 280 kB/s are enough for the default limit
PATHS: Final = (FileExistsError, IsADirectoryError, NotADirectoryError)
REPORTED: Final = 5.0  # seconds after which a wait is logged

T = TypeVar("T")

_log = logging.getLogger(__name__)


# ---- the bounded wait ----


class NoAnswer(TimeoutError):
    """A request exceeded its time limit of `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} s")
        self.seconds = seconds


def wait_for(request: Callable[[], T], url: str, seconds: float) -> T:
    """Run `request` in a thread; return or raise its result. Raises NoAnswer after `seconds`."""
    answer: futures.Future[T] = futures.Future()
    threading.Thread(target=_answer, args=(answer, request), name="offline-cli-storage", daemon=True).start()
    if not futures.wait([answer], timeout=min(REPORTED, seconds)).done and seconds > REPORTED:
        _log.warning("note: %s: no answer for %.0f s; the client keeps trying, for up to %.0f s", url, REPORTED, seconds)
        futures.wait([answer], timeout=seconds - REPORTED)
    if not answer.done():
        raise NoAnswer(seconds)
    return answer.result()


def _answer(answer: futures.Future[T], request: Callable[[], T]) -> None:
    try:
        answer.set_result(request())
    except BaseException as error:  # noqa: BLE001  raised again in `wait_for`
        answer.set_exception(error)


# ---- failures ----


@contextmanager
def storage_failures(url: str, doing: str) -> Iterator[None]:
    """Convert OSErrors in the block to StorageError or StorageNotFound, naming `url` and the action `doing`."""
    try:
        yield
    except OSError as err:
        raise _explained(err, url, doing) or _of_os_error(err, url, doing) from err


def asked(request: Callable[[], T], url: str, doing: str, seconds: float) -> T:
    """Return the result of a client's `request` within a time limit.

    Raises StorageError or StorageNotFound for any failure; UsageError for an option that the client does not accept, which
    some clients report only at the first request.
    """
    try:
        with storage_failures(url, doing):
            return wait_for(request, url, seconds)
    except (OfflineCliError, ImportError, MemoryError):
        raise
    except Exception as err:
        if isinstance(err, TypeError) and "unexpected keyword" in str(err):
            fix = "remove the option, or look up its name in the client's documentation"
            raise UsageError(f"the storage client does not accept an option: {_text(err)}", where=url, fix=fix) from err
        raise _explained(err, url, doing) or StorageError(f"{doing} failed: {_text(err)}", where=url, fix=_fix(url)) from err


def no_bucket(url: str) -> StorageNotFound:
    """The error for a missing bucket."""
    what, fix = Fault.NO_BUCKET.value
    return StorageNotFound(what.format(**_names(url)), where=url, fix=fix)


def _explained(error: Exception, url: str, doing: str) -> StorageError | None:
    """Translate `error` by the providers' error codes; None if its codes are unknown."""
    found = ((CODES[code], one) for one in causes(error) for code in _codes(one) if code in CODES)
    fault, cause = next(found, (None, None))
    if fault is None:
        return None
    if fault is Fault.NO_BUCKET:
        return no_bucket(url)
    what, fix = fault.value
    lines = str(cause).strip().splitlines()
    detail = f" ({blanked(lines[0])[:300]})" if lines else ""
    return StorageError(f"{doing} failed: {what}{detail}", where=url, fix=fix.format(**_names(url)))


def _codes(error: Any) -> Iterator[str]:
    """The error codes of `error`, the most specific first, HTTP status last."""
    response = getattr(error, "response", None)
    answer = response if isinstance(response, dict) else {}  # botocore
    yield str(answer.get("Error", {}).get("Code", ""))
    for name in ("error_code", "code"):  # azure; gcsfs
        value = getattr(error, name, None)
        if value is not None and not callable(value):
            yield str(getattr(value, "value", value))
    yield type(error).__name__
    status = getattr(error, "status_code", getattr(response, "status_code", ""))  # of httpx's answer
    yield str(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", status))


def _names(url: str) -> dict[str, str]:
    bucket, provider = url.rpartition("::")[2].partition("://")[2].partition("/")[0], provider_at(url)
    return {"container": provider.container or "bucket", "bucket": bucket, "set_up": provider.set_up}


def _of_os_error(err: OSError, url: str, doing: str) -> StorageError:
    if isinstance(err, NoAnswer):
        fix = f"check network and endpoint, or set {provider_at(url).set_up}; --storage-option time_limit=SECONDS waits longer"
        return StorageError(f"{doing} failed: the storage timed out after {err.seconds:g} s", where=url, fix=fix)
    if isinstance(err, FileNotFoundError):
        fix = "check the path" if "://" not in url or url.startswith("file:") else "check the path, or the bucket's name"
        return StorageNotFound(f"{url} does not exist", where=url, fix=fix)
    if err.errno in FULL:
        return StorageError(f"{doing} failed: no space left", where=url, fix="free some space, or write to another place")
    place = (
        url if err.filename is None or str(err.filename) == url else f"{url} ({err.filename})"
    )  # for example, a parent folder
    denied = isinstance(err, PermissionError)
    what = "access denied: no permission" if denied else err.strerror or _text(err)
    fix = "check permissions, or credentials" if denied else "name another path" if isinstance(err, PATHS) else _fix(url)
    return StorageError(f"{doing} failed: {what}", where=place, fix=fix)


def _fix(url: str) -> str:
    if "://" not in url:
        return "check that the storage is healthy"
    return f"check the network and the endpoint, and the credentials: set {provider_at(url).set_up}"


def _text(err: Exception) -> str:
    text = " ".join(str(err).split())
    return f"{type(err).__name__}: {blanked(text)}" if text else type(err).__name__
