"""Failures of storage in one language: whatever a filesystem or a cloud client raises becomes StorageError; our bugs do not.

Cloud clients raise classes of their own (botocore's NoCredentialsError, azure's HttpResponseError) that are no OSError;
they are recognised by the package that they come from, so that no client has to be imported to be caught.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from offline_cli.errors import OfflineCliError, StorageError, StorageNotFound, UsageError
from offline_cli.storage.blanking import blanked
from offline_cli.storage.links import dangling_link
from offline_cli.storage.patience import NoAnswer
from offline_cli.storage.provider_errors import explained, set_up
from offline_cli.storage.providers import client_packages

__all__ = ["from_a_client", "storage_failures"]

COMMON = (RuntimeError, ValueError, LookupError, AssertionError)  # which clients raise too, and our bugs
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


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
        raise _of_no_answer(err, url, doing) from err
    except OSError as err:
        raise explained(err, url, doing) or _of_os_error(err, url, doing) from err
    except Exception as err:
        if not _from_a_client(err):
            raise
        if isinstance(err, TypeError):
            fix = "leave the option out, or look up its name in the client's documentation"
            raise UsageError(f"the storage does not take an option: {err}", where=url, fix=fix) from err
        raise explained(err, url, doing) or _of_a_client(err, url, doing) from err


def _of_no_answer(err: NoAnswer, url: str, doing: str) -> StorageError:
    fix = f"check network and endpoint, or set {set_up(url)}; --storage-option time_limit=SECONDS waits longer"
    what = f"{doing} failed: the storage gave no good answer within {err.seconds:g} s"
    return StorageError(what, where=url, fix=fix)


def _of_a_client(err: Exception, url: str, doing: str) -> StorageError:
    fix = "check the network, the endpoint and the credentials, then run the command again"
    return StorageError(f"{doing} failed: {_text(err)}", where=url, fix=fix)


def _of_os_error(err: OSError, url: str, doing: str) -> StorageError:
    if isinstance(err, (FileNotFoundError, FileExistsError)) and (broken := dangling_link(str(err.filename or url), shown=url)):
        return broken
    if isinstance(err, FileNotFoundError):
        return StorageNotFound(f"{url} does not exist", where=url, fix="check the path, or the bucket's name")
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
