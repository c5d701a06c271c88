"""What in a folder is a run's own, by name and content, and the lock that keeps a second trainer out of it.

A run has a policy.json that says so, or, where its trainer was killed before that, a config.toml with all that a resolved
configuration has. A folder that is not a run is refused, and so are links and pipes under a run's names. Files with other names
are the user's, and so is every folder below checkpoints/ whose name is not one that a trainer gives, such as copies of
checkpoints.

_training.json says which process trains in a run folder; while it is at work, a second one is refused. It is the lock of
dataset folders (`datasets/lock.py`) under another name: created where none is, taken over where its trainer is gone.
It is there only while a trainer is at work: what is needed to resume a run is in its checkpoints.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Final

from offline_cli.datasets.lock import Changed, WritingLock, WritingNote, is_note, refuse_if_at_work
from offline_cli.datasets.ownership import is_link, is_own_part, is_regular
from offline_cli.errors import Locked, OfflineCliError, OutputExists, StorageError, TakenOver
from offline_cli.policies.run_files import (
    CHECKPOINT,
    CHECKPOINTS,
    CONFIG,
    CURVE,
    LEARNED,
    METRICS,
    POLICY,
    RESULT,
    STATE,
    TENSORS,
    WEIGHTS,
)
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import whole_file

__all__ = ["TRAINING", "RunLock", "has_run", "holds_nothing_else", "refuse_foreign"]

POLICY_FORMAT: Final = b"offline-cli-policy"
RESOLVED: Final = frozenset(("batch_size", "checkpoint_every", "confirm_episodes", "eval_episodes", "log_every", "lr", "seed"))
"""Keys that a resolved configuration has always had, whatever its network."""
REPLACED: Final = (RESULT, METRICS, WEIGHTS, LEARNED, CURVE)

TRAINING: Final = "_training.json"
TRIES: Final = 10  # at beginning in a folder where others begin and end meanwhile


def has_run(folder: Location) -> bool:
    """Whether a run is in `folder`, of which files may be damaged. Raises StorageError."""
    policy = whole_file(folder.join(POLICY)) if folder.join(POLICY).is_file() else None
    if policy is not None and POLICY_FORMAT in policy:
        return True
    config = whole_file(folder.join(CONFIG)) if folder.join(CONFIG).is_file() else None
    try:
        return config is not None and tomllib.loads(config.decode()).keys() >= RESOLVED
    except (ValueError, RecursionError):
        return False


def holds_nothing_else(folder: Location, note: str) -> bool:
    """Whether `folder` is empty, or has no more than a kill leaves of the first files: parts, and the note of that name."""
    return all(is_own_part(child) or (child.name == note and is_note(child)) for child in folder.children())


def refuse_foreign(folder: Location, note: str) -> None:
    """Raise OutputExists for files in `folder`, which holds a run, that have a run's names but are not its own.

    `note`: the name of the trainer's note. Nothing is changed.
    """
    for place in folder.children():
        if place.name in (CONFIG, POLICY, note, CHECKPOINTS, *REPLACED) and is_link(place):
            raise _foreign(place, "it is a symbolic link, and train-bc writes and removes nothing through one")
        if place.name in (CONFIG, POLICY, note, *REPLACED) and place.is_local and not is_regular(place):
            raise _foreign(place, "it is a folder, a pipe or a device, not a file")
        if place.name == CHECKPOINTS:
            for checkpoint in filter(lambda child: CHECKPOINT.fullmatch(child.name), place.children()):
                if not _is_checkpoint(checkpoint):
                    raise _foreign(checkpoint, "it has the name of a checkpoint, but is not one")


def _is_checkpoint(folder: Location) -> bool:
    """Whether it is a folder whose two files, as far as they are there, are files."""
    if not folder.is_local:
        return True
    if is_link(folder) or not folder.is_dir():
        return False
    return all(is_regular(child) for child in folder.children() if child.name in (STATE, TENSORS))


def _foreign(place: Location, why: str) -> OutputExists:
    what = f"{place.name} is not of the run that is here: {why}"
    return OutputExists(what, where=place.url, fix="move it away, or choose another --out")


class RunLock:
    """A trainer's claim on `folder` while it works there."""

    def __init__(self, folder: Location, command: str) -> None:
        """`command`: what trains, as a shell would take it, without secrets."""
        self._folder = folder
        self._command = command
        self._lock = WritingLock(folder, TRAINING)

    @staticmethod
    def refuse_second(folder: Location) -> None:
        """Raise Locked where another trainer is at work in `folder`, as far as can be seen at once; changes nothing."""
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
        """Remove the note and folders that stayed empty; a failure of that is not reported beside `error`."""
        try:
            if self._lock.held:
                self._lock.release()
            for folder in reversed(made):
                folder.remove_empty_folder()
        except OfflineCliError as failed:
            error.add_note(f"cleaning up failed too: {failed}")

    def somebody_was_here(self) -> Locked:
        """The error of a trainer whose view of the run is outdated."""
        what = "another process started or resumed a run here meanwhile"
        return Locked(what, where=self._folder.url, fix="the same command again, once the other one is done")

    def guard(self) -> AbstractContextManager[None]:
        """Use it around every commit. Raises TakenOver where another trainer has taken over."""
        return self._lock.guard()

    def check(self) -> None:
        """Raise TakenOver where another trainer is already known to have taken over."""
        self._lock.check()


def _with_remedy(err: StorageError, saved: int | None) -> StorageError:
    """`err` with a fix that says how to resume."""
    so_far = "nothing is saved yet, so it begins the run" if saved is None else f"from its checkpoint at update {saved}"
    fix = f"{err.fix}; then the same command with --resume continues: {so_far}"
    return type(err)(err.what, where=err.where, fix=fix, details=err.details, result=err.result)
