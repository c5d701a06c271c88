"""One writer at a time: `_writing.json`, created only if absent, is the lock; it says who writes, and with which options.

A writer is its host, process id and the process's start time: ids are used again. Where that process has ended, or its writer
has said so (`left`), the next writer replaces the note by its own. A writer of another host cannot be asked: `--resume
--force-unlock` (`unlock`) is the user's word that it has ended. Before anything that counts (a shard, the manifest) a writer
looks whether the note is still its own, and stops with TakenOver where it is not: so of two that take over at once one goes on.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pydantic
from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass as model

from offline_cli.datasets.file_names import DATASET, WRITING
from offline_cli.datasets.ownership import keep_names
from offline_cli.errors import BadData, Locked, StorageNotFound, TakenOver
from offline_cli.running_processes import began, runs
from offline_cli.source_code import allowed_changes
from offline_cli.storage.blanking import without_folders
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import create_only, whole_file, write_whole

__all__ = ["APPENDS_TO", "WritingLock", "WritingNote", "meanwhile", "refuse_if_at_work", "unlock"]

APPENDS_TO: Final = "appends_to"  # among the options of a note: the dataset that the writer adds to
FIX: Final = "write the dataset again, with --overwrite"
AT_WORK: Final[set[str]] = set()
"""Tokens of the writers in this process, which runs whether they do or not."""


@model(frozen=True, slots=True, config=ConfigDict(strict=True, extra="ignore"))
class WritingNote:
    """What a writer leaves beside its shards until they are committed; a resumed write must have its options."""

    generation: str  # 8 hex digits in the names of its shards
    options: dict[str, Any]  # plain JSON values
    changes: list[str]  # of the identity among them since the write began, which --allow-changes took, in words
    first_quarantine: int  # its first file of rows set aside
    host: str
    machine: str  # boot and namespace of process ids: containers of one host name count processes apart; "": unknown
    pid: int
    process_started: str  # in the units of the system; "" where it does not say
    started: str  # ISO time, UTC
    command: str  # as a shell would take it, without secrets
    token: str  # random: distinguishes one writer from every other
    left: bool = False  # the writer has ended, and said so
    writes: str = DATASET.noun  # what the folder is to hold: the noun of a FolderKind

    @staticmethod
    def of_this_process(
        generation: str,
        options: Mapping[str, Any],
        first_quarantine: int,
        command: str,
        writes: str = DATASET.noun,
        changes: list[str] | None = None,
    ) -> WritingNote:
        """The note of a new writer in this process."""
        return WritingNote(
            generation=generation,
            options=dict(options),
            changes=list(changes or ()),
            first_quarantine=first_quarantine,
            **_this_process(),
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            command=command,
            token=secrets.token_hex(16),
            writes=writes,
        )

    @staticmethod
    def read(folder: Location) -> WritingNote | None:
        """The note in dataset `folder`; None where nobody writes. Raises BadData for a broken note."""
        place = folder.join(WRITING)
        data = whole_file(place)
        return None if data is None else WritingNote.of_bytes(data, where=place.url)

    @staticmethod
    def of_bytes(data: bytes, *, where: str) -> WritingNote:
        """The note in a file. Raises BadData where there is none."""
        try:
            return _adapter().validate_json(data)
        except pydantic.ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False))
            raise BadData(f"this is no note of a writer: {wrong}", where=where, fix=FIX) from error

    @staticmethod
    def if_any(data: bytes | None, *, where: str) -> WritingNote | None:
        """The note in a file (None: no file is there); None for what is none: its owner is unknown."""
        try:
            return None if data is None else WritingNote.of_bytes(data, where=where)
        except BadData:
            return None

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
            nobody = {"host": "", "machine": "", "pid": 0, "process_started": "", "token": "", "left": True}
            kept = {**nobody, **kept, "options": {"environment": environment, **kept["options"]}}
        return WritingNote.of_bytes(json.dumps(kept).encode(), where=where)

    def to_bytes(self) -> bytes:
        """The file."""
        return json.dumps({"version": 1, **asdict(self)}, indent=1).encode() + b"\n"

    @property
    def is_at_work(self) -> bool | None:
        """Whether its writer is; None: unknown, of a process of another machine."""
        here = _this_process()
        if self.left:
            return False
        if (self.host, self.machine) != (here["host"], here["machine"]):
            return None
        if (self.pid, self.process_started) == (here["pid"], here["process_started"]):
            return self.token in AT_WORK
        return runs(self.pid, self.process_started or began(self.pid))

    @property
    def holder(self) -> dict[str, Any]:
        """Who writes, for programs."""
        return {"host": self.host, "pid": self.pid, "command": self.command, "started": self.started}

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.started}: {self.command}"

    def changes_to(self, options: Mapping[str, Any], folder: Location, allow_changes: bool | None) -> list[str]:
        """How the identity among `options` differs from the one that the write began with, where `allow_changes`.

        Raises BadConfig, naming each difference, for changes that are not allowed, and unless the other options are the same.
        """
        names = sorted((self.options.keys() | options.keys()) - {"identity"})
        problems = [
            f"{name} was {_short(self.options.get(name))}, now {_short(options.get(name))}"
            for name in names
            if self.options.get(name) != options.get(name)
        ]
        before, now = (said.get("identity", {}) for said in (self.options, options))
        fix = f"the same code and options as before ({self.command}), --overwrite to begin again"
        return allowed_changes(before, now, allow_changes, where=folder.url, fix=fix, others=problems)


@cache
def _adapter() -> TypeAdapter[WritingNote]:
    return TypeAdapter(WritingNote)


def _this_process() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "machine": _machine(), "pid": pid, "process_started": began(pid)}


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def refuse_if_at_work(note: WritingNote, place: Location) -> None:
    """Raise Locked where the writer of `note`, at `place`, is at work, or may be: it is of another machine."""
    if note.is_at_work:
        fix = "wait for it, or end it and use --resume; or give another --out"
        what = f"another writer is at work here: {note}"
    elif note.is_at_work is None:
        fix = "wait for it; where it has ended, the same command with --resume --force-unlock"
        what = f"another writer may be at work here, on another machine: {note}"
    else:
        return
    raise Locked(what, where=place.url, fix=fix, details={"holder": note.holder})


def meanwhile(folder: Location) -> Locked:
    """The error of a writer that was not the only one to begin here."""
    return Locked("another process began or ended here meanwhile", where=folder.url, fix="run the same command again")


def unlock(folder: Location, *, remove: bool = False, dry_run: bool = False) -> bool:
    """What `--force-unlock` does: mark the writer of a note as ended, or remove the note (`remove`); whether one was there.

    Raises Locked where its process runs on this machine, BadData for a broken note that is not to be removed.
    """
    place = folder.join(WRITING)
    data = whole_file(place) if folder.exists() else None
    if data is None:
        return False
    note = WritingNote.if_any(data, where=place.url)
    if note is not None and note.is_at_work:
        refuse_if_at_work(note, place)
    if not dry_run and remove:
        place.remove()
        keep_names(folder)
    elif not dry_run:
        write_whole(place, replace(note or WritingNote.of_bytes(data, where=place.url), left=True).to_bytes(), folder=folder)
    return True


class WritingLock:
    """The note of one writer, from `acquire` to one of `release` and `leave`."""

    def __init__(self, folder: Location) -> None:
        """`folder`: the dataset's, or whatever else one writer at a time may write."""
        self._folder, self._place = folder, folder.join(WRITING)
        self._note: WritingNote | None = None  # None: not held, or not any more
        self._lost: TakenOver | None = None

    @property
    def held(self) -> bool:
        """Whether this writer wrote the note, and nobody is known to have taken over."""
        return self._note is not None

    @property
    def is_lost(self) -> bool:
        """Whether another writer is known to have taken over."""
        return self._lost is not None

    def acquire(self, note: WritingNote, *, instead_of: bytes | None) -> None:
        """Put `note` into the folder, which exists. `instead_of`: the bytes of the note that is there; None: none is.

        Raises Locked where its writer is, or may be, at work, or another one was faster.
        """
        AT_WORK.add(note.token)
        try:
            there = whole_file(self._place)
            before = WritingNote.if_any(there, where=self._place.url)
            if before is not None:
                refuse_if_at_work(before, self._place)
            if there != instead_of:
                raise meanwhile(self._folder)
            if there is not None:
                write_whole(self._place, note.to_bytes(), folder=self._folder)
            elif not create_only(self._place, note.to_bytes(), folder=self._folder):
                faster = WritingNote.read(self._folder)
                if faster is not None:
                    refuse_if_at_work(faster, self._place)
                raise meanwhile(self._folder)
            self._note = note
        except StorageNotFound as error:
            raise meanwhile(self._folder) if self._folder.is_local else error from error  # the other one left no trace
        finally:
            if self._note is None:
                AT_WORK.discard(note.token)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around whatever makes something count. Raises TakenOver where another writer has taken over."""
        self.check()
        assert self._note is not None, "the lock is not held"
        theirs = WritingNote.if_any(whole_file(self._place), where=self._place.url)
        if theirs is None or theirs.token != self._note.token or theirs.left:
            who = "its note is gone"
            if theirs is not None and theirs.token != self._note.token:
                who = f"process {theirs.pid} on {theirs.host} has taken it over ({theirs.command})"
            self._give_up()
            what = f"another process unlocked this folder, and this writer must stop: {who}"
            fix = "leave it to the other one; nothing that was complete is lost"
            self._lost = TakenOver(what, where=self._folder.url, fix=fix)
            raise self._lost
        yield

    def check(self) -> None:
        """Raise TakenOver where `guard` has found that another writer took over; asks nobody."""
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Remove the note, with all names before it synced. Raises TakenOver where it is another writer's."""

        def remove() -> None:
            self._place.remove()
            keep_names(self._folder)

        self._end(remove)

    def leave(self) -> None:
        """Keep the note, marked as ended, so that it can be resumed at once."""
        assert self._note is not None, "the lock is not held"
        data = replace(self._note, left=True).to_bytes()
        self._end(lambda: write_whole(self._place, data, folder=self._folder))

    def _end(self, last: Callable[[], None]) -> None:
        try:
            with self.guard():
                last()
        finally:
            self._give_up()

    def _give_up(self) -> None:
        if self._note is not None:
            AT_WORK.discard(self._note.token)
            self._note = None
