"""A small file that is made only where none is: of many who try at once, one succeeds; refuses to replace anything.

How, by kind of storage:

* Local: the whole file under a name of its own, then a hard link, which fails where the name is taken. Disks without hard links
  (exFAT) get an empty file opened with O_EXCL, which the whole one replaces at once.
* Providers that say so (`creates_only`), memory://: the client's own `mode="create"` (If-None-Match, ifGenerationMatch=0).
* Anything else, `pyarrow.fs` too: a look beforehand, which two can do at once. So can two on servers that do not know the
  condition.

A client that loses the answer to its first try, and tries again, is told that the file is there: whose it is decides.
"""

from __future__ import annotations

import contextlib
import os

from offline_cli.errors import StorageNotFound
from offline_cli.storage.fsync import sync_names
from offline_cli.storage.locations import Location
from offline_cli.storage.remote_stages import is_arrow
from offline_cli.storage.staging import part_name, writing_failures

__all__ = ["create_only", "creates_only", "whole_file"]


def create_only(target: Location, data: bytes, *, folder: Location) -> bool:
    """Write `data`, which nobody else would write, to `target`; False where something is there already.

    `folder`: the dataset folder, where a local file may stand until it is whole. Raises StorageError.
    """

    def request() -> bool:
        try:
            if target.is_local:
                _link(target.path, folder.join(part_name(target.name)).path, data)
            elif creates_only(target):
                target.fs.pipe_file(target.path, data, mode="create")
            else:
                target.fs.pipe_file(target.path, data)
        except FileExistsError:
            return False
        except OSError:
            if target.is_local or not target.fs.exists(target.path):
                raise
            return False  # refused in words that say nothing: radosgw does
        return True

    if not creates_only(target) and target.exists():
        return False
    with writing_failures(target, "writing it"):
        return target.ask("writing it", request) or whole_file(target) == data


def creates_only(target: Location) -> bool:
    """Whether the client of this storage can make a file only where none is."""
    return target.is_local or (target.provider.creates_only and not is_arrow(target))


def whole_file(place: Location) -> bytes | None:
    """The bytes at `place`, in one request, so that they are of one moment; None where there is nothing.

    Raises StorageError; BadData for a pipe or a device.
    """
    try:
        if place.is_local:
            return place.read_bytes()
        return place.ask("reading it", lambda: bytes(place.fs.cat_file(place.path)))
    except StorageNotFound:
        return None


def _link(final: str, part: str, data: bytes) -> None:
    try:
        with open(part, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(part, final)
        except (FileExistsError, FileNotFoundError):
            raise
        except (OSError, AttributeError):  # no hard links
            os.close(os.open(final, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.replace(part, final)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(part)
    try:
        sync_names(os.path.dirname(final) or ".")
    except OSError:
        os.remove(final)  # who asked is told that it was not made
        raise
