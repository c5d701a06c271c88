"""The lease of a dataset's writer: `_writing.json`, created, taken over from dead writers, given up when lost.

A writer that was suspended for so long that another one took over must not continue when it wakes. At its next beat, or when it
is about to publish a shard or the manifest (`guard`), it finds another token in the note, and stops with TakenOver. Local disks
and memory:// check and publish in one step: nobody takes over in between. Elsewhere a takeover between the two is possible;
docs/repair.md describes the consequences. `target_folder.py` decides whether a dataset may be written at all.

Only one process at a time may change who writes a dataset (`exclusively`):

* Local disks: `flock` on the dataset folder, which the system releases when a process dies. On a disk without it (some network
  disks), two processes may enter at once.
* memory://: one lock for all.
* Anything else: a file that is created only where there is none (`staging.py`), and removed at the end. A file that a dead
  process left is removed by a process that has seen it unchanged for ten seconds; what happens under this lock takes two
  requests.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final

from offline_cli.datasets import lease_record
from offline_cli.datasets.file_names import PART_PREFIX, WRITING
from offline_cli.datasets.lease_record import WritingNote, locked, wait_until_surely_left
from offline_cli.datasets.ownership import keep_names
from offline_cli.errors import Locked, StorageError, StorageNotFound, TakenOver
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import create_only, creates_only, whole_file, write_whole

__all__ = ["Changed", "WritingLock", "exclusively", "locally_alone"]

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


LEFT_AFTER: Final = 10.0  # seconds
PATIENCE: Final = 30.0  # seconds
PAUSE: Final = 0.02  # seconds
NAME: Final = f"{PART_PREFIX}taking-over"
_MEMORY: Final = threading.RLock()

SETTLE = 1.0  # seconds after which both of two simultaneous writes are visible, on storage without create-only writes


@contextmanager
def exclusively(folder: Location) -> Iterator[None]:
    """Within it, no other process changes who writes dataset `folder`. Raises Locked where others hold it too long."""
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
                    fcntl.flock(handle, fcntl.LOCK_UN)  # a process forked meanwhile would keep it beyond the close
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
    fix = "run this again when they are done; a writer that was stopped at such a moment must continue or be killed first"
    return Locked(what, where=folder.url, fix=fix)


class Changed(Exception):
    """The note that was to be replaced is gone, or another one: the caller must look again."""


class WritingLock:
    """The note of one writer, from `acquire` to one of `release`, `leave` and `restore`."""

    def __init__(self, folder: Location, name: str = WRITING) -> None:
        """`folder`: the dataset's, or whatever else one writer at a time may write; `name` of the note in it."""
        self._folder = folder
        self._place = folder.join(name)
        self._note: WritingNote | None = None  # None: not held, or not any more
        self._lost: TakenOver | None = None
        self._mutex = threading.RLock()  # between the writer and its beats
        self._alone = False  # within `guard`, where that is exact
        self._ended = threading.Event()

    @property
    def held(self) -> bool:
        """Whether this writer wrote the note, and nobody is known to have taken over."""
        return self._note is not None

    @property
    def is_lost(self) -> bool:
        """Whether another writer is known to have taken over."""
        return self._lost is not None

    # ---- beginning ----

    def acquire(self, note: WritingNote, *, instead_of: bytes | None) -> None:
        """Put `note` into the folder, which exists. `instead_of`: the bytes of the note that is there; None: none is.

        Raises Locked where its writer is at work, or another one was faster; Changed where the note is not there any more.
        """
        if instead_of is None:
            self._create(note)
        else:
            self._take_over(note, instead_of)
        lease_record.AT_WORK.add(note.token)
        self._note = note
        threading.Thread(target=self._beat_until_ended, name="offline-cli beat", daemon=True).start()

    def _create(self, note: WritingNote) -> None:
        try:
            with locally_alone(self._folder):
                made = create_only(self._place, note.to_bytes(), folder=self._folder)
        except StorageNotFound as err:
            if not self._folder.is_local:
                raise
            raise Changed from err  # another writer ended, and left no trace
        if not made:
            raise self._refusal()
        self._settle(note)

    def _take_over(self, note: WritingNote, before: bytes) -> None:
        theirs = WritingNote.if_any(before, where=self._place.url)
        if theirs is not None:
            wait_until_surely_left(theirs, self._place)
        with exclusively(self._folder):
            if whole_file(self._place) != before:
                raise self._refusal()
            self._write(note)
        self._settle(note)

    def _settle(self, note: WritingNote) -> None:
        """Where two may have written at once: the later one has it."""
        if not creates_only(self._place):
            time.sleep(SETTLE)
            if whole_file(self._place) != note.to_bytes():
                raise self._refusal()

    def _refusal(self) -> Locked | Changed:
        """The error for the note that is there instead."""
        theirs = WritingNote.if_any(whole_file(self._place), where=self._place.url)
        return Changed() if theirs is None or theirs.left else locked(theirs, self._place, 0.0)

    def rewrite(self, **changes: Any) -> None:
        """Change the note, but not its owner. Raises TakenOver."""
        with self._mutex, self.guard():
            assert self._note is not None, "the lock is not held"
            self._note = replace(self._note, **changes)
            self._write(self._note)

    # ---- meanwhile ----

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around whatever makes something count. Raises TakenOver where another writer has taken over."""
        if not (self._folder.is_local or self._folder.is_memory):
            with self._mutex:  # and no longer: an upload may take more time than a beat may wait
                self._ask()
            yield
            return
        with self._mutex, nullcontext() if self._alone else locally_alone(self._folder):
            before, self._alone = self._alone, True
            try:
                self._ask()
                yield
            finally:
                self._alone = before

    def check(self) -> None:
        """Raise TakenOver where a beat, or `guard`, has found that another writer took over; asks nobody."""
        if self._lost is not None:
            raise self._lost

    def _ask(self) -> None:
        self.check()
        assert self._note is not None, "the lock is not held"
        theirs = WritingNote.if_any(whole_file(self._place), where=self._place.url)
        if theirs is None or theirs.token != self._note.token:
            self._lost = _taken_over(self._folder, theirs)
            self._give_up()
            raise self._lost

    def _beat_until_ended(self) -> None:
        while not self._ended.wait(lease_record.BEAT):
            try:
                self._beat()
            except TakenOver:
                return  # `check` tells the writer
            except StorageError:
                continue  # the storage may answer again; and `guard` asks for itself

    def _beat(self) -> None:
        with self._mutex, locally_alone(self._folder):
            if self._note is not None:
                self._ask()
                self._note = self._note.beaten()
                try:
                    self._write(self._note)
                except StorageError:
                    if not self._folder.is_local:
                        raise
                    self._place.ask("touching it", partial(os.utime, self._place.path))  # takes no room on a full disk

    # ---- ends ----

    def release(self) -> None:
        """Remove the note, with all names before it synced. Raises TakenOver where it is another writer's."""
        self._end(self._remove)

    def leave(self) -> None:
        """Keep the note, marked as ended, so that nobody need wait for its beats."""
        note = self._note
        assert note is not None, "the lock is not held"
        self._end(lambda: self._write(note.beaten(left=True)))

    def restore(self, before: bytes) -> None:
        """Put the note back that this one replaced."""
        self._end(lambda: write_whole(self._place, before, folder=self._folder))

    def _end(self, last: Callable[[], None]) -> None:
        self._ended.set()
        try:
            with self._mutex, self.guard():  # no beat may write the note again
                last()
        finally:
            with self._mutex:
                self._give_up()

    def _give_up(self) -> None:
        if self._note is not None:
            lease_record.AT_WORK.discard(self._note.token)
            self._note = None
        self._ended.set()

    # ---- the file ----

    def _remove(self) -> None:
        self._place.remove()
        keep_names(self._folder)

    def _write(self, note: WritingNote) -> None:
        write_whole(self._place, note.to_bytes(), folder=self._folder)


def _taken_over(folder: Location, theirs: WritingNote | None) -> TakenOver:
    who = f"process {theirs.pid} on {theirs.host} has taken it over ({theirs.command})" if theirs else "its note is gone"
    what = f"this writer missed its beats for too long, and must stop: {who}"
    return TakenOver(what, where=folder.url, fix="leave it to the other one; nothing that was complete is lost")
