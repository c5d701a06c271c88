"""Whether the writer of a note is still at work: by its process on this machine, by its beat elsewhere.

A writer rewrites its note every BEAT seconds. On its own machine, a process that has ended is decisive. Otherwise a beat is old
after STALE seconds by two clocks: the writer's, in the note, and the storage's, in the time of the file. Clocks of machines
differ, and laptops sleep. So the note is watched for longer than a beat before it counts as abandoned where the two clocks
disagree, where the process runs, or where the beat is only just old: a note that changes has a live writer, whatever the clocks
say. Times in the future, or missing ones, are ignored: then the note is watched for LEASE beats of our own clock.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Mapping
from typing import Any, Final

from offline_cli.datasets.lease_record import WritingNote
from offline_cli.errors import Locked, StorageNotFound
from offline_cli.files.locations import Location
from offline_cli.files.staging import whole_file

__all__ = [
    "AT_WORK",
    "BEAT",
    "STALE",
    "heard_from",
    "holder_at_work",
    "locked",
    "refuse_if_at_work",
    "refuse_if_changing",
    "runs_here",
    "wait_until_surely_left",
]

BEAT: Final = 10.0  # seconds between two beats
STALE: Final = 60.0  # seconds without a beat after which a writer counts as dead
WATCH: Final = 12.0  # seconds in which a live writer beats at least once
LEASE: Final = 2.5  # beats that a note is watched for where its times are useless
CERTAIN: Final = 900.0  # seconds that no two clocks differ by: cloud storage refuses requests of such a clock
AT_WORK: Final[set[str]] = set()
"""Tokens of the writers in this process, which runs whether they do or not."""


def refuse_if_at_work(note: WritingNote, place: Location) -> None:
    """Raise Locked where the writer of `note`, at `place`, is at work as far as can be seen at once."""
    if not note.left and _runs(note) is not False:
        ages = _ages(note, place)
        if not _tell_nothing(ages) and max(ages) <= STALE:
            raise locked(note, place, min(ages))


def holder_at_work(note: WritingNote, place: Location) -> Mapping[str, Any] | None:
    """Who the writer of `note` is, and the age of its beat, where it is at work as far as can be seen at once; else None."""
    try:
        refuse_if_at_work(note, place)
    except Locked as error:
        holder: Mapping[str, Any] = error.details["holder"]
        return holder
    return None


def wait_until_surely_left(note: WritingNote, place: Location) -> None:
    """Return once the writer of `note` is known to be gone, at once where that can be. Raises Locked where it is at work."""
    refuse_if_at_work(note, place)
    runs = _runs(note)
    if note.left or runs is False:
        return
    ages = _ages(note, place)
    if _tell_nothing(ages):
        refuse_if_changing(note, place, LEASE * BEAT)
    elif runs is not None or min(ages) <= CERTAIN:
        refuse_if_changing(note, place, WATCH)


def refuse_if_changing(note: WritingNote | None, place: Location, seconds: float | None = None) -> None:
    """Watch the file at `place`, whose note is `note` if it is one, for so many seconds, else for LEASE beats.

    Raises Locked as soon as it changes: somebody is at work.
    """
    seconds = LEASE * BEAT if seconds is None else seconds
    before, until = _state(place), time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(seconds / 50)
        if _state(place) != before:
            raise _changing(place) if note is None else locked(note, place, 0.0)


def runs_here(note: WritingNote) -> bool:
    """Whether the process of `note` is known to run on this machine, with the writer in it."""
    return _runs(note) is True


def heard_from(age: float | None) -> str:
    """How many seconds ago a writer last beat, as words to end a sentence with; "" where unknown."""
    return "" if age is None else f", last heard from {max(0.0, age):.0f} s ago"


def locked(note: WritingNote, place: Location, age: float | None) -> Locked:
    """The error for a second writer where the writer of `note` is at work; `age` of its beat in seconds."""
    since = f"process {note.pid} on {note.host}, since {note.started}{heard_from(age)}"
    what = f"another writer is at work here: {since}: {note.command}"
    fix = (
        f"wait for it, or end it and use --resume, which takes over from a process that has ended on the same machine, "
        f"elsewhere {STALE:.0f} s after its last sign of life; or give another --out"
    )
    holder = {"host": note.host, "pid": note.pid, "command": note.command, "started": note.started, "age": age}
    return Locked(what, where=place.url, fix=fix, details={"holder": holder})


def _changing(place: Location) -> Locked:
    what = "another process writes this note, which cannot be read"
    return Locked(what, where=place.url, fix="wait until it stops changing, or end the process that writes it")


def _tell_nothing(ages: list[float]) -> bool:
    """Whether no time is known, or one lies in the future by more than clocks differ: the age of a beat is unknown."""
    return min(ages, default=-math.inf) < -BEAT


def _runs(note: WritingNote) -> bool | None:
    """Whether the process of the writer runs, with the writer in it; None where that cannot be seen from here."""
    return note.token in AT_WORK if note.process.is_this else note.process.runs()


def _ages(note: WritingNote, place: Location) -> list[float]:
    """Seconds since the last beat, by the writer's clock and by the storage's, as far as they are known, on this clock."""
    now, said, stored = time.time(), note.last_said, _modified(place)
    return [now - when for when in (said, stored) if when is not None]


def _state(place: Location) -> tuple[float | None, bytes | None]:
    return _modified(place), whole_file(place)


def _modified(place: Location) -> float | None:
    """When the storage last took the file at `place`, in seconds since 1970; None where it does not say, or has none."""

    def request() -> Any:
        place.fs.invalidate_cache()
        return place.fs.modified(place.path)

    try:
        when = place.ask("asking for its time", request)
    except (NotImplementedError, KeyError, StorageNotFound):
        return None
    if isinstance(when, str):
        when = datetime.datetime.fromisoformat(when)
    if not isinstance(when, datetime.datetime):
        return None
    return (when if when.tzinfo else when.replace(tzinfo=datetime.UTC)).timestamp()
