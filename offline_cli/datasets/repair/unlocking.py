"""The writer's note taken away by force; refuses while somebody writes it, and touches nothing else.

For notes that no rule ends: of a process id that this machine uses for something else, on storage whose clock nobody trusts.
What is a live writer's is known by two signs that no note can fake: its process runs here, or the bytes of the note change.
"""

from __future__ import annotations

import time
from typing import Final

from offline_cli.datasets.repair.result import RepairResult
from offline_cli.errors import Locked
from offline_cli.storage.layout import WRITING
from offline_cli.storage.lease import exclusively
from offline_cli.storage.lease_record import WritingNote
from offline_cli.storage.liveness import refuse_if_changing, runs_here
from offline_cli.storage.locations import Location
from offline_cli.storage.moving import keep_names
from offline_cli.storage.staging import whole_file

__all__ = ["force_unlock"]

END_IT: Final = "wait for it, or end it; a note whose process runs, or that changes, is not taken away"


def force_unlock(folder: Location, *, dry_run: bool) -> RepairResult:
    """Remove the note in `folder`, if there is one, after a watch of 25 s; nothing else is read or changed.

    `dry_run`: say what would be removed. Raises StorageNotFound where there is no folder, Locked where the writer is at work.
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
                raise Locked("the note has just been written anew", where=place.url, fix=END_IT)
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
        format=None,
        episodes=None,
        steps=None,
        shards=None,
        adopted=0,
        dropped=len(removed),
        changed=bool(removed),
        complete=None,
        resumable=None,
        broken=(),
        removed=removed,
        set_aside=(),
        based_on=None,
        dry_run=dry_run,
        seconds=time.monotonic() - began,
    )
