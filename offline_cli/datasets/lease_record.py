"""_writing.json: who writes a dataset, since when and with which options; and whether that writer is still at work.

The note is the lease itself (`lease.py`): `token` identifies its owner, who rewrites it every BEAT seconds. A resumed write
must have the options of the note.

Process ids are reused, so a process is identified by its id and its start time. A machine is identified by its host name and,
on Linux, by its boot and the namespace of process ids: two containers of one name see other processes under one id.

On the writer's own machine, a process that has ended is decisive. Otherwise a beat is old after STALE seconds by two clocks:
the writer's, in the note, and the storage's, in the time of the file. Clocks of machines differ, and laptops sleep. So the note
is watched for longer than a beat before it counts as abandoned where the two clocks disagree, where the process runs, or where
the beat is only just old: a note that changes has a live writer, whatever the clocks say. Times in the future, or missing ones,
are ignored: then the note is watched for LEASE beats of our own clock.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import orjson

from offline_cli.datasets.file_names import DATASET, UNFINISHED_WRITING, WRITING, FolderKind
from offline_cli.errors import BadData, Locked, StorageNotFound
from offline_cli.running_processes import began, runs
from offline_cli.source_code import allowed_changes
from offline_cli.storage.blanking import without_folders
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import whole_file

__all__ = [
    "APPENDS_TO",
    "AT_WORK",
    "BEAT",
    "STALE",
    "UNFINISHED_WRITING",
    "Process",
    "WritingNote",
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

APPENDS_TO: Final = "appends_to"  # among the options of a note: the dataset that the writer adds to
FIX = "write the dataset again, with --overwrite"
KINDS: Final = {"str": str, "int": int, "bool": bool, "Mapping[str, Any]": dict, "Sequence[str]": list}
"""Types of a note's fields as JSON has them."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process of one machine."""

    host: str
    machine: str  # boot and namespace; "" where the system does not say
    pid: int
    started: str  # in the units of the system; "" where it does not say

    @staticmethod
    def this() -> Process:
        """The process that asks."""
        return Process(socket.gethostname(), _machine(), os.getpid(), began(os.getpid()))

    @property
    def is_this(self) -> bool:
        """Whether it is the process that asks."""
        return self == Process.this()

    def runs(self) -> bool | None:
        """Whether it still runs; None, unknown, for a process of another machine."""
        here = Process.this()
        if self.host != here.host or ("" not in (self.machine, here.machine) and self.machine != here.machine):
            return None
        return runs(self.pid, self.started or began(self.pid))


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class WritingNote:
    """What a writer leaves beside its shards until they are committed."""

    generation: str  # 8 hex digits in the names of its shards
    options: Mapping[str, Any]  # plain JSON values; --resume needs the same
    changes: Sequence[str]  # of the identity among them since the write began, which --allow-changes took, in words
    first_quarantine: int  # its first file of rows set aside
    host: str
    pid: int
    process_started: str  # distinguishes a process from a later one with its id; "" where the system does not say
    started: str  # ISO time, UTC
    command: str  # as a shell would take it
    machine: str = ""  # see Process
    token: str = ""  # random: distinguishes one writer from every other
    beat: str = ""  # ISO time, UTC: when the writer was last at work, by its own clock
    left: bool = False  # the writer has ended, and said so
    writes: str = DATASET.noun  # what the folder is to hold: the noun of a FolderKind

    @staticmethod
    def of_this_process(
        generation: str,
        options: Mapping[str, Any],
        first_quarantine: int,
        command: str,
        kind: FolderKind = DATASET,
        changes: Sequence[str] = (),
    ) -> WritingNote:
        """The note of a new writer in this process, from now on; `command` without secrets."""
        process, now = Process.this(), _now()
        return WritingNote(
            generation=generation,
            options=options,
            changes=list(changes),
            first_quarantine=first_quarantine,
            host=process.host,
            pid=process.pid,
            process_started=process.started,
            started=now.isoformat(timespec="seconds"),
            command=command,
            machine=process.machine,
            token=secrets.token_hex(16),
            beat=now.isoformat(timespec="milliseconds"),
            writes=kind.noun,
        )

    def beaten(self, *, left: bool = False) -> WritingNote:
        """The same note a beat later; `left`: the last one."""
        return replace(self, beat=_now().isoformat(timespec="milliseconds"), left=left)

    @staticmethod
    def read(folder: Location) -> WritingNote | None:
        """The note in dataset `folder`; None where nobody writes. Raises BadData for a broken note."""
        place = folder.join(WRITING)
        return WritingNote.of_bytes(place.read_bytes(), where=place.url) if place.exists() else None

    @staticmethod
    def of_bytes(data: bytes, *, where: str) -> WritingNote:
        """The note in a file. Raises BadData where there is none."""
        try:
            document = orjson.loads(data)
        except ValueError as err:
            raise BadData(f"no JSON: {err}", where=where, fix=FIX) from err
        return WritingNote.of_document(document, where=where)

    @staticmethod
    def if_any(data: bytes | None, *, where: str) -> WritingNote | None:
        """The note in a file (None: no file is there); None where there is none: its owner is unknown."""
        try:
            return None if data is None else WritingNote.of_bytes(data, where=where)
        except BadData:
            return None

    @staticmethod
    def of_document(document: Any, *, where: str) -> WritingNote:
        """The note that plain values make. Raises BadData where they make none."""
        known = document if isinstance(document, dict) else {}
        parts = fields(WritingNote)
        wrong = [part.name for part in parts if type(known.get(part.name, part.default)) is not KINDS[str(part.type)]]
        if wrong:
            raise BadData(f"missing or of the wrong kind: {', '.join(wrong)}", where=where, fix=FIX)
        return WritingNote(**{part.name: known[part.name] for part in parts if part.name in known})

    def within_manifest(self, environment: Any) -> dict[str, Any]:
        """Plain values to keep in a manifest, which has `environment` itself: what to resume from, and not who wrote where."""
        options = dict(self.options)
        if options.get("environment") == environment:
            options.pop("environment", None)
        kept = {name: getattr(self, name) for name in ("generation", "changes", "first_quarantine", "started")}
        return {**kept, "options": options, "command": without_folders(self.command, is_line=True)}

    @staticmethod
    def of_manifest(kept: Any, environment: Any, *, where: str) -> WritingNote:
        """The note that a manifest with `environment` keeps. Raises BadData for what is none."""
        if isinstance(kept, dict) and isinstance(kept.get("options"), dict):
            nobody = {"host": "", "pid": 0, "process_started": ""}
            kept = {**nobody, **kept, "options": {"environment": environment, **kept["options"]}}
        return WritingNote.of_document(kept, where=where)

    def to_bytes(self) -> bytes:
        """The file."""
        return json.dumps({"version": 1, **asdict(self)}, indent=1).encode() + b"\n"

    @property
    def process(self) -> Process:
        """The process of the writer."""
        return Process(self.host, self.machine, self.pid, self.process_started)

    @property
    def last_said(self) -> float | None:
        """The time of the last beat by the writer's clock, in seconds since 1970; None where it is not in the note."""
        try:
            said = datetime.datetime.fromisoformat(self.beat or self.started)
        except ValueError:
            return None
        return (said if said.tzinfo else said.replace(tzinfo=datetime.UTC)).timestamp()

    def changes_to(self, options: Mapping[str, Any], folder: Location, allow_changes: bool | None) -> list[str]:
        """How the identity among `options` differs from the one that the write began with, where `allow_changes`.

        Raises BadConfig, naming each difference, for changes that are not allowed, and unless the other options are the same.
        """
        names = sorted((self.options.keys() | options.keys()) - {"wrappers", "identity"})  # wrappers are in the identity
        problems = [
            f"{name} was {_short(self.options.get(name))}, now {_short(options.get(name))}"
            for name in names
            if self.options.get(name) != options.get(name)
        ]
        before, now = (said.get("identity", {}) for said in (self.options, options))
        fix = f"the same code and options as before ({self.command}), --overwrite to begin again"
        return allowed_changes(before, now, allow_changes, where=folder.url, fix=fix, others=problems)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


# ---- whether its writer is at work ----


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
