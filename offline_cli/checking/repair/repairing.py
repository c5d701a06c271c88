"""`repair`: adopts complete shards, drops half-written files, rebuilds the manifest; every lost episode is reported.

Nothing that could hold an episode is deleted: shards that are not part of the dataset, and files that nobody listed, are moved
to `quarantine/`. What is removed cannot be read by anybody: local parts, empty files, uploads that were never completed.
Everything is read before anything is changed, and changed only while this process holds the writer's lease.

`take_note_away` removes a writer's note by force, and touches nothing else: for notes that no rule ends, of a process id that
this machine uses for something else, on storage whose clock is not trusted. It raises while somebody writes the note. A live
writer shows two signs that no note can fake: its process runs here, or the bytes of the note change.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from offline_cli.checked_keywords import checked
from offline_cli.checking.repair.plan import Plan, RepairResult, act
from offline_cli.checking.repair.recovered_facts import examine, what_is_known
from offline_cli.checking.repair.survey import Survey, choose, survey
from offline_cli.datasets.file_names import BATCHES, DATASET, TRAIN_BATCHES, WRITING
from offline_cli.datasets.lease import Changed, exclusively
from offline_cli.datasets.lease_record import STALE, WritingNote, refuse_if_at_work, refuse_if_changing, runs_here
from offline_cli.datasets.ownership import keep_names
from offline_cli.errors import BadData, Locked, NoData, UsageError
from offline_cli.files.blanking import this_command
from offline_cli.files.locations import Location, open_location
from offline_cli.files.staging import whole_file
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.progress import OnProgress, no_progress

__all__ = ["repair", "take_note_away"]

END_IT: Final = "wait for it, or end it; a note whose process runs, or that changes, is not removed"

TRIES = 3  # where somebody else changes the folder while it is being read
WAIT = f"wait for it; or end it, and repair at once where it ran on this machine, else {STALE:.0f} s after its last beat"
RESTORE = "restore it from a copy, or write the dataset again from its source"


def take_note_away(folder: Location, *, dry_run: bool) -> RepairResult:
    """Remove the note in `folder`, if there is one, after a watch of 25 s; nothing else is read or changed.

    `dry_run`: report what would be removed. Raises StorageNotFound where there is no folder, Locked where the writer is at
    work.
    """
    began, place = time.monotonic(), folder.join(WRITING)
    before = whole_file(place)
    if before is None:
        if not folder.exists():
            raise folder.missing()
        if not dry_run:
            keep_names(folder)
        return _result(folder, (), dry_run, began)
    note = WritingNote.if_any(before, where=place.url)
    if note is not None and runs_here(note):
        raise _runs_here(note, place)
    refuse_if_changing(note, place)
    if not dry_run:
        with exclusively(folder):
            if whole_file(place) != before:
                raise Locked("the note has just been rewritten", where=place.url, fix=END_IT)
            place.remove()
            keep_names(folder)
    return _result(folder, (place.url,), dry_run, began)


def _runs_here(note: WritingNote, place: Location) -> Locked:
    holder = {"host": note.host, "pid": note.pid, "command": note.command, "started": note.started, "age": None}
    what = f"process {note.pid}, which wrote this note, runs on this machine: {note.command}"
    return Locked(what, where=place.url, fix=END_IT, details={"holder": holder})


def _result(folder: Location, removed: tuple[str, ...], dry_run: bool, began: float) -> RepairResult:
    return RepairResult(
        out=folder.url,
        dropped=len(removed),
        changed=bool(removed),
        removed=removed,
        dry_run=dry_run,
        seconds=time.monotonic() - began,
    )


@checked
def repair(
    out: str,
    *,
    env: str | None = None,
    drop_broken: bool = False,
    keep: str | None = None,
    force_unlock: bool = False,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
) -> RepairResult:
    """Make dataset folder `out` a dataset again, whatever a writer left there, or damage did.

    Broken shards raise, by name, without `drop_broken`. `force_unlock` does nothing else, and ignores the times and the machine
    in the note.

    Raises StorageNotFound, NoData where nothing is to be repaired, Locked while a writer is at work, BadData for broken shards,
    BadConfig where the spaces are unknown, UsageError where `keep` is needed, or beside `force_unlock`, StorageError.
    """
    options = dict(locals())
    folder, began = open_location(out, options["storage_options"]), time.monotonic()
    asked_env = AskedEnvironment.of(options)
    if options["force_unlock"]:
        if drop_broken or keep is not None or asked_env is not None:
            fix = "take the note away first, then repair"
            raise UsageError("--force-unlock does nothing else", where="--drop-broken, --keep or --env", fix=fix)
        return take_note_away(folder, dry_run=dry_run)
    said = shlex.join(command) if command else this_command()
    for _ in range(TRIES):
        with _told_what_repair_can_do():
            found = _look(folder)
            choice = choose(found, keep)
            known = what_is_known(found, choice, asked_env)
            examined = examine(choice, found, known, on_progress)
            plan = Plan(found, choice, known, examined, dry_run, said, began)
            _refuse_broken(plan, drop_broken)
            result = plan.result()
            if dry_run:
                return result
            if not plan.changes:
                keep_names(folder)  # who made it right may have been killed before that
                return result
            try:
                act(plan)
            except Changed:
                continue
            return result
    what = "other processes change the dataset while it is being read"
    raise Locked(what, where=folder.url, fix="the same command again, when they are done")


@contextmanager
def _told_what_repair_can_do() -> Iterator[None]:
    """Within it, Locked advises for this command, which has no --resume and no other --out."""
    try:
        yield
    except Locked as error:
        if "holder" not in error.details:
            raise
        raise Locked(error.what, where=error.where, fix=WAIT, details=error.details) from error


def _look(folder: Location) -> Survey:
    found = survey(folder)
    if found.note is not None:
        refuse_if_at_work(found.note, folder.join(WRITING))
        if found.note.writes != DATASET.noun:
            raise _nothing_to_adopt(f"an unfinished {found.note.writes} is here", folder, f"{found.note.command} --overwrite")
    if not found.is_dataset:
        if not folder.exists():
            raise folder.missing()
        if folder.join(BATCHES).exists():
            raise _nothing_to_adopt(f"a {TRAIN_BATCHES.noun} is here", folder, "offline-cli apply ... --overwrite")
        fix = "name the folder of a dataset, the one with manifest.json or _writing.json in it"
        raise NoData("no dataset is here, nor anything left of one", where=folder.url, fix=fix)
    return found


def _nothing_to_adopt(what: str, folder: Location, command: str) -> NoData:
    """Of train batches: with a state that grows from batch to batch they cannot be continued in the middle."""
    fix = f"write it again from its recordings: {command}"
    return NoData(f"{what}, not a dataset: train batches are not repaired", where=folder.url, fix=fix)


def _refuse_broken(plan: Plan, drop_broken: bool) -> None:
    """Raise BadData where shards would be left out without permission, or where none would be left."""
    broken, where = plan.examined.broken, plan.folder.url
    if not broken:
        return
    named = "; ".join(f"{one.place.name}: {one.why}" for one in broken[:3]) + ("; ..." if len(broken) > 3 else "")
    if not plan.examined.sound:
        told = plan.result().refused()
        raise BadData(f"no shard is whole, and nothing would be left: {named}", where=where, fix=RESTORE, result=told)
    if not drop_broken:
        told = plan.result().refused(otherwise="with_drop_broken")
        what = f"{plan.examined.left_out:,} of {plan.choice.total:,} shards are broken: {named}"
        fix = f"{RESTORE}; or leave them out with --drop-broken, which moves them to quarantine/"
        raise BadData(what, where=where, fix=fix, result=told)
