"""_training.json: which process trains in a run folder; refuses a second one while the first is at work.

It is the lock of dataset folders (`storage/lease.py`) under another name: made where none is, beaten every few seconds,
taken over where its trainer is gone. It is there only while somebody trains: what a run needs to go on is in its checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Final

from offline_cli.errors import Locked, OfflineCliError, StorageError, TakenOver
from offline_cli.storage.lease import Changed, WritingLock
from offline_cli.storage.lease_record import WritingNote
from offline_cli.storage.liveness import refuse_if_at_work
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import whole_file

__all__ = ["TRAINING", "RunLock"]

TRAINING: Final = "_training.json"
TRIES: Final = 10  # at beginning in a folder where others begin and end meanwhile


class RunLock:
    """One trainer's word that it works in `folder`."""

    def __init__(self, folder: Location, command: str) -> None:
        """`command`: what trains, as a shell would take it, without secrets."""
        self._folder = folder
        self._command = command
        self._lock = WritingLock(folder, TRAINING)

    @staticmethod
    def refuse_second(folder: Location) -> None:
        """Raise Locked where another trainer is at work in `folder`, as far as can be told at once; changes nothing."""
        place = folder.join(TRAINING)
        found = whole_file(place)
        note = None if found is None else WritingNote.if_any(found, where=place.url)
        if note is not None:
            refuse_if_at_work(note, place)

    @contextmanager
    def held(self, *, saved: Callable[[], int | None]) -> Iterator[None]:
        """Within it, the folder exists and no other trainer writes into it. Raises Locked.

        `saved`: the update of the newest checkpoint, for those who read of a StorageError that came within.
        """
        made: list[Location] = []
        try:
            self._acquire(made)
            try:
                yield
                self._lock.release()
            except (Locked, TakenOver):
                raise
            except StorageError as err:
                raise _with_remedy(err, saved()) from err
        except BaseException as err:
            self._end_after(err, made)
            raise

    def _acquire(self, made: list[Location]) -> None:
        """Hold the lock. `made` grows by the folders that were not there before, outermost first."""
        place = self._folder.join(TRAINING)
        for _ in range(TRIES):
            made += self._folder.make_folder()
            try:
                note = WritingNote.of_this_process("", {}, 0, self._command)
                self._lock.acquire(replace(note, writes="run"), instead_of=whole_file(place))
            except Changed:
                continue
            return
        raise self.somebody_was_here()

    def _end_after(self, error: BaseException, made: list[Location]) -> None:
        """Remove the note and folders that stayed empty; a failure of that is no news beside `error`."""
        try:
            if self._lock.held:
                self._lock.release()
            for folder in reversed(made):
                folder.remove_empty_folder()
        except OfflineCliError as failed:
            error.add_note(f"cleaning up failed too: {failed}")

    def somebody_was_here(self) -> Locked:
        """The error of a trainer that has read what is not true any more."""
        what = "another trainer has begun a run here, or gone on with one, since this command looked"
        return Locked(what, where=self._folder.url, fix="the same command again, once the other one is done")

    def guard(self) -> AbstractContextManager[None]:
        """Around whatever makes something count. Raises TakenOver where another trainer has taken over."""
        return self._lock.guard()

    def check(self) -> None:
        """Raise TakenOver where it is known by now that another trainer has taken over."""
        self._lock.check()


def _with_remedy(err: StorageError, saved: int | None) -> StorageError:
    """`err`, saying too how to go on."""
    so_far = "nothing is saved yet, so that it begins the run" if saved is None else f"from its checkpoint at update {saved}"
    fix = f"{err.fix}; then the same command with --resume goes on: {so_far}"
    return type(err)(err.what, where=err.where, fix=fix, details=err.details, result=err.result)
