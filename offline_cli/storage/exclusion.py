"""Moments in which one process alone may change who writes a dataset; refuses to wait for them for long.

* Local disks: `flock` on the dataset folder, which the system gives back when a process dies. Where a disk has none (some
  network disks), two processes may be in at once.
* memory://: one lock for all.
* Anything else: a file that is made only where none is (`create_only.py`), and removed at the end. One that a process left by
  dying is removed by who has seen it unchanged for ten seconds; what is done in such a moment takes two requests.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from offline_cli.errors import Locked
from offline_cli.storage.create_only import create_only, whole_file
from offline_cli.storage.layout import PART_PREFIX
from offline_cli.storage.locations import Location

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["exclusively", "locally_alone"]

LEFT_AFTER: Final = 10.0  # seconds
PATIENCE: Final = 30.0  # seconds
PAUSE: Final = 0.02  # seconds
NAME: Final = f"{PART_PREFIX}taking-over"
_MEMORY: Final = threading.RLock()


@contextmanager
def exclusively(folder: Location) -> Iterator[None]:
    """Within it, no other process changes who writes dataset `folder`. Raises Locked where others are long at it."""
    if folder.is_local or folder.is_memory:
        with locally_alone(folder):
            yield
        return
    place = folder.join(NAME)
    _claim(place, folder)
    try:
        yield
    finally:
        place.remove()


def _claim(place: Location, folder: Location) -> None:
    mine, until = secrets.token_hex(16).encode(), time.monotonic() + PATIENCE
    theirs, since = whole_file(place), time.monotonic()
    while not create_only(place, mine, folder=folder):
        now, seen = time.monotonic(), whole_file(place)  # None: just given back
        if seen != theirs:
            theirs, since = seen, now
        elif seen is not None and now - since > LEFT_AFTER:
            place.remove()
        elif now > until:
            raise _busy(folder)
        time.sleep(10 * PAUSE)


@contextmanager
def locally_alone(folder: Location) -> Iterator[None]:
    """`exclusively` where it costs nothing, so that it can be had for every shard; elsewhere nothing."""
    if folder.is_memory:
        with _MEMORY:
            yield
    elif folder.is_local and fcntl is not None:
        handle = folder.ask("locking it", lambda: os.open(folder.path, os.O_RDONLY))
        try:
            held = _flocked(handle, folder)
            try:
                yield
            finally:
                if held:
                    fcntl.flock(handle, fcntl.LOCK_UN)  # a process forked meanwhile would keep it beyond the closing
        finally:
            os.close(handle)
    else:
        yield


def _flocked(handle: int, folder: Location) -> bool:
    """Whether the folder is locked now; False on a disk that cannot."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise _busy(folder) from None
            time.sleep(PAUSE)
        except OSError:
            return False
        else:
            return True


def _busy(folder: Location) -> Locked:
    what = f"other processes have been changing who writes this dataset, or what is in it, for {PATIENCE:.0f} s"
    fix = "the same command again when they are done; a writer that was stopped at such a moment must go on or be killed first"
    return Locked(what, where=folder.url, fix=fix)
