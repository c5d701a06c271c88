"""The writer's lock: `_writing.json`, created only if absent, names the writer and its options (the note).

A writer is identified by host, process id and the process's start time, because ids are reused. If the process has ended, or
the note is marked `left`, the next writer replaces the note; for a process on another host the user confirms its end with
`--resume --force-unlock`. Before each commit (of a shard, the manifest) a writer checks that the note is still its own.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, field, replace
from typing import Any, Final

import pydantic
from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass as model

from offline_cli.datasets.file_names import WRITING
from offline_cli.datasets.manifest import now
from offline_cli.datasets.ownership import keep_names
from offline_cli.errors import BadData, Locked, TakenOver
from offline_cli.import_path import allowed_changes
from offline_cli.storage.blanking import without_folders
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import create_only, whole_file, write_whole


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; empty on other systems."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def began(pid: int) -> str:
    """Start time of a process, in Linux's units; "" on other systems."""
    return "".join(_stat(pid)[19:20])


def runs(pid: int, since: str) -> bool:
    """Whether the process with this id and start time is running; a zombie is not."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass  # it exists, under another user
    except (OSError, OverflowError):
        return False
    fields = _stat(pid)
    return pid > 0 and (not fields or (fields[0] not in ("Z", "X") and fields[19] == since))


APPENDS_TO: Final = "appends_to"  # note option: the dataset that the writer appends to
AT_WORK: Final[set[str]] = set()  # tokens of the active writers in this process
WHO: Final = ("host", "pid", "process_started", "token", "left")  # fields that a manifest does not keep


@model(frozen=True, slots=True, config=ConfigDict(strict=True, extra="ignore"))
class WritingNote:
    """The note of a writer, kept beside its shards until they are committed; a resumed write must have the same options."""

    generation: str  # 8 hex digits in the names of its shards
    options: dict[str, Any]  # plain JSON values
    first_quarantine: int  # number of its first quarantine file
    started: str  # ISO time, UTC
    command: str  # shell command line, without secrets
    changes: list[str] = field(default_factory=list)  # changes of the identity since the write began, as text
    host: str = ""
    pid: int = 0
    process_started: str = ""  # in the system's units; "" if unknown
    token: str = ""  # random, unique per writer
    left: bool = True  # the writer has marked its end

    @staticmethod
    def of_this_process(
        generation: str,
        options: Mapping[str, Any],
        first_quarantine: int,
        command: str,
        changes: list[str] | None = None,
    ) -> WritingNote:
        """Create the note of a new writer in this process."""
        what = (generation, dict(options), first_quarantine, now(), command, list(changes or ()))
        who = (socket.gethostname(), os.getpid(), began(os.getpid()), secrets.token_hex(16))
        return WritingNote(*what, *who, left=False)

    @staticmethod
    def of_bytes(data: bytes, *, where: str) -> WritingNote:
        """Parse a note file. Raises BadData if it is invalid."""
        try:
            return TypeAdapter(WritingNote).validate_json(data)
        except pydantic.ValidationError as error:
            what = f"invalid writer's note: {error.errors()[0]['msg']}"
            raise BadData(what, where=where, fix="write the dataset again, with --overwrite") from error

    @staticmethod
    def if_any(data: bytes | None, *, where: str) -> WritingNote | None:
        """Parse a note file; None for a missing file (None) or an invalid note, whose owner is unknown."""
        try:
            return None if data is None else WritingNote.of_bytes(data, where=where)
        except BadData:
            return None

    def within_manifest(self, environment: Any) -> dict[str, Any]:
        """JSON values for a manifest with `environment`: the fields needed to resume, without host and process."""
        options = {name: value for name, value in self.options.items() if name != "environment" or value != environment}
        kept = {name: value for name, value in asdict(self).items() if name not in WHO}
        return {**kept, "options": options, "command": without_folders(self.command, is_line=True)}

    @staticmethod
    def of_manifest(kept: Any, environment: Any, *, where: str) -> WritingNote:
        """Parse the note kept in a manifest with `environment`. Raises BadData if it is invalid."""
        if isinstance(kept, dict) and isinstance(kept.get("options"), dict):
            kept = {**kept, "options": {"environment": environment, **kept["options"]}}
        return WritingNote.of_bytes(json.dumps(kept).encode(), where=where)

    def to_bytes(self) -> bytes:
        """The file's content."""
        return json.dumps({"version": 1, **asdict(self)}, indent=1).encode() + b"\n"

    @property
    def is_at_work(self) -> bool | None:
        """Whether its writer is active; None: unknown, because it runs on another host."""
        if self.left:
            return False
        if self.host != socket.gethostname():
            return None
        if (self.pid, self.process_started) == (os.getpid(), began(os.getpid())):
            return self.token in AT_WORK
        return runs(self.pid, self.process_started or began(self.pid))

    @property
    def holder(self) -> dict[str, Any]:
        """The writer, for error details."""
        return {"host": self.host, "pid": self.pid, "command": self.command, "started": self.started}

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.started}: {self.command}"

    def changes_to(self, options: Mapping[str, Any], folder: Location, allow_changes: bool | None) -> list[str]:
        """Describe how the identity in `options` differs from that at the start of the write, if `allow_changes` allows it.

        Raises BadConfig, naming each difference, for changes that are not allowed, and for any other changed option.
        """
        names = sorted((self.options.keys() | options.keys()) - {"identity"})
        pairs = ((name, self.options.get(name), options.get(name)) for name in names)
        others = [f"{name} was {_short(old)}, now {_short(new)}" for name, old, new in pairs if old != new]
        before, now_ = (written.get("identity", {}) for written in (self.options, options))
        fix = f"use the same code and options as before ({self.command}), --overwrite to start over"
        return allowed_changes(before, now_, allow_changes, where=folder.url, fix=fix, others=others)


def _short(value: Any) -> str:
    return textwrap.shorten(json.dumps(value), 200, placeholder="...")


def refuse_if_at_work(note: WritingNote, place: Location) -> None:
    """Raise Locked if the writer of `note`, at `place`, is active, or may be because it runs on another host."""
    if note.is_at_work is False:
        return
    what = f"another writer {'is' if note.is_at_work else 'may be'} writing here: {note}"
    fix = "wait for it; if it has ended, add --resume --force-unlock to your command; or give another --out"
    raise Locked(what, where=place.url, fix=fix, details={"holder": note.holder})


def meanwhile(folder: Location) -> Locked:
    """The error of a writer that lost a race with another one."""
    return Locked(
        "another process started or ended writing here at the same time", where=folder.url, fix="run the command again"
    )


def unlock(folder: Location, *, remove: bool = False, dry_run: bool = False) -> bool:
    """Implement `--force-unlock`: mark the note's writer as ended, or remove the note; return whether there was one.

    Raises Locked if its process runs on this host, BadData for a broken note unless `remove`.
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
    """A writer's lock on a folder, from `acquire` to either `release` or `leave`."""

    def __init__(self, folder: Location) -> None:
        """`folder`: the dataset folder, or any other folder for one writer at a time."""
        self._folder, self._place = folder, folder.join(WRITING)
        self._note: WritingNote | None = None  # None: not held
        self.lost = False  # another writer has taken over

    @property
    def held(self) -> bool:
        """Whether this writer holds the lock, as far as it knows."""
        return self._note is not None

    def acquire(self, note: WritingNote, *, instead_of: bytes | None) -> None:
        """Write `note` into the existing folder. `instead_of`: the bytes of the note to replace; None: there is none.

        Raises Locked if that note's writer is active, or may be, or if another writer was faster.
        """
        AT_WORK.add(note.token)  # before the note is visible
        try:
            if instead_of is not None or not create_only(self._place, note.to_bytes()):
                there = whole_file(self._place)
                before = WritingNote.if_any(there, where=self._place.url)
                if before is not None:
                    refuse_if_at_work(before, self._place)
                if instead_of is None or there != instead_of:
                    raise meanwhile(self._folder)
                write_whole(self._place, note.to_bytes(), folder=self._folder)
            self._note = note
        finally:
            if self._note is None:
                AT_WORK.discard(note.token)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Wrap every commit in this. Raises TakenOver if another writer has taken over."""
        theirs = WritingNote.if_any(whole_file(self._place), where=self._place.url)
        if self._note is None or theirs is None or theirs.token != self._note.token or theirs.left:
            self.lost = True
            self._give_up()
            what = f"another process has unlocked this folder, so this writer must stop; current writer: {theirs or 'none'}"
            raise TakenOver(what, where=self._folder.url, fix="let the other process continue; complete shards are kept")
        yield

    def release(self) -> None:
        """Remove the note and fsync the folder. Raises TakenOver if the note is another writer's."""
        try:
            with self.guard():
                self._place.remove()
                keep_names(self._folder)
        finally:
            self._give_up()

    def leave(self) -> None:
        """Keep the note, marked as ended, so that the write can be resumed immediately."""
        try:
            with self.guard():
                assert self._note is not None, "checked by the guard"
                write_whole(self._place, replace(self._note, left=True).to_bytes(), folder=self._folder)
        finally:
            self._give_up()

    def _give_up(self) -> None:
        if self._note is not None:
            AT_WORK.discard(self._note.token)
            self._note = None
