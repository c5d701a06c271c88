"""One writer at a time: `_writing.json`, created only if absent, is the lock; it says who writes, and with which options.

A writer is a host, a process id and the process's start time: ids are used again. Where that process has ended, or its writer
has said so (`left`), the next writer replaces the note by its own; of one on another host `--resume --force-unlock` says so.
Before anything that counts (a shard, the manifest) a writer looks whether the note is still its own.
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

from offline_cli.datasets.file_names import DATASET, WRITING
from offline_cli.datasets.manifest import now
from offline_cli.datasets.ownership import keep_names
from offline_cli.errors import BadData, Locked, StorageNotFound, TakenOver
from offline_cli.import_path import allowed_changes
from offline_cli.storage.blanking import without_folders
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import create_only, whole_file, write_whole


def _stat(pid: int) -> list[str]:
    """Linux's status of a process, from its state on; empty elsewhere."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def began(pid: int) -> str:
    """When a process began, as Linux counts it: ids are used again; "" elsewhere."""
    return "".join(_stat(pid)[19:20])


def runs(pid: int, since: str) -> bool:
    """Whether the process that began then has not ended; a zombie has."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass  # somebody else's, so there is one
    except (OSError, OverflowError):
        return False
    fields = _stat(pid)
    return pid > 0 and (not fields or (fields[0] not in ("Z", "X") and fields[19] == since))


APPENDS_TO: Final = "appends_to"  # among the options of a note: the dataset that the writer adds to
AT_WORK: Final[set[str]] = set()  # tokens of the writers in this process, which runs whether they do or not
WHO: Final = ("host", "pid", "process_started", "token", "left", "writes")  # what a manifest does not keep of a note


@model(frozen=True, slots=True, config=ConfigDict(strict=True, extra="ignore"))
class WritingNote:
    """What a writer leaves beside its shards until they are committed; a resumed write must have its options."""

    generation: str  # 8 hex digits in the names of its shards
    options: dict[str, Any]  # plain JSON values
    first_quarantine: int  # its first file of rows set aside
    started: str  # ISO time, UTC
    command: str  # as a shell would take it, without secrets
    changes: list[str] = field(default_factory=list)  # of the identity since the write began, in words
    host: str = ""
    pid: int = 0
    process_started: str = ""  # in the units of the system; "" where it does not say
    token: str = ""  # random: distinguishes one writer from every other
    left: bool = True  # the writer has ended, and said so
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
        what = (generation, dict(options), first_quarantine, now(), command, list(changes or ()))
        who = (socket.gethostname(), os.getpid(), began(os.getpid()), secrets.token_hex(16))
        return WritingNote(*what, *who, left=False, writes=writes)

    @staticmethod
    def of_bytes(data: bytes, *, where: str) -> WritingNote:
        """The note in a file. Raises BadData where there is none."""
        try:
            return TypeAdapter(WritingNote).validate_json(data)
        except pydantic.ValidationError as error:
            what = f"this is no note of a writer: {error.errors()[0]['msg']}"
            raise BadData(what, where=where, fix="write the dataset again, with --overwrite") from error

    @staticmethod
    def if_any(data: bytes | None, *, where: str) -> WritingNote | None:
        """The note in a file (None: no file is there); None for what is none: its owner is unknown."""
        try:
            return None if data is None else WritingNote.of_bytes(data, where=where)
        except BadData:
            return None

    def within_manifest(self, environment: Any) -> dict[str, Any]:
        """Plain values to keep in a manifest, which has `environment` itself: what to resume from, and not who wrote where."""
        options = {name: value for name, value in self.options.items() if name != "environment" or value != environment}
        kept = {name: value for name, value in asdict(self).items() if name not in WHO}
        return {**kept, "options": options, "command": without_folders(self.command, is_line=True)}

    @staticmethod
    def of_manifest(kept: Any, environment: Any, *, where: str) -> WritingNote:
        """The note that a manifest with `environment` keeps. Raises BadData for what is none."""
        if isinstance(kept, dict) and isinstance(kept.get("options"), dict):
            kept = {**kept, "options": {"environment": environment, **kept["options"]}}
        return WritingNote.of_bytes(json.dumps(kept).encode(), where=where)

    def to_bytes(self) -> bytes:
        """The file."""
        return json.dumps({"version": 1, **asdict(self)}, indent=1).encode() + b"\n"

    @property
    def is_at_work(self) -> bool | None:
        """Whether its writer is; None: unknown, of a process of another host."""
        if self.left:
            return False
        if self.host != socket.gethostname():
            return None
        if (self.pid, self.process_started) == (os.getpid(), began(os.getpid())):
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
        pairs = ((name, self.options.get(name), options.get(name)) for name in names)
        others = [f"{name} was {_short(old)}, now {_short(new)}" for name, old, new in pairs if old != new]
        before, now_ = (said.get("identity", {}) for said in (self.options, options))
        fix = f"the same code and options as before ({self.command}), --overwrite to begin again"
        return allowed_changes(before, now_, allow_changes, where=folder.url, fix=fix, others=others)


def _short(value: Any) -> str:
    return textwrap.shorten(json.dumps(value), 200, placeholder="...")


def refuse_if_at_work(note: WritingNote, place: Location) -> None:
    """Raise Locked where the writer of `note`, at `place`, is at work, or may be: it is of another host."""
    if note.is_at_work is False:
        return
    what = f"another writer {'is' if note.is_at_work else 'may be'} at work here: {note}"
    fix = "wait for it; where it has ended, the same command with --resume --force-unlock; or give another --out"
    raise Locked(what, where=place.url, fix=fix, details={"holder": note.holder})


def meanwhile(folder: Location) -> Locked:
    """The error of a writer that was not the only one to begin here."""
    return Locked("another process began or ended here meanwhile", where=folder.url, fix="run the same command again")


def unlock(folder: Location, *, remove: bool = False, dry_run: bool = False) -> bool:
    """What `--force-unlock` does: mark the writer of a note as ended, or remove the note (`remove`); whether one was there.

    Raises Locked where its process runs on this host, BadData for a broken note that is not to be removed.
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
        self.lost = False  # another writer was seen to have taken over

    @property
    def held(self) -> bool:
        """Whether this writer wrote the note, and nobody is known to have taken over."""
        return self._note is not None

    def acquire(self, note: WritingNote, *, instead_of: bytes | None) -> None:
        """Put `note` into the folder, which exists. `instead_of`: the bytes of the note that is there; None: none is.

        Raises Locked where its writer is, or may be, at work, or another one was faster.
        """
        AT_WORK.add(note.token)  # before anybody can see the note
        try:
            if instead_of is not None or not create_only(self._place, note.to_bytes(), folder=self._folder):
                there = whole_file(self._place)
                before = WritingNote.if_any(there, where=self._place.url)
                if before is not None:
                    refuse_if_at_work(before, self._place)
                if instead_of is None or there != instead_of:
                    raise meanwhile(self._folder)
                write_whole(self._place, note.to_bytes(), folder=self._folder)
            self._note = note
        except StorageNotFound as error:  # a local part, which the holder of the lock took for a killed writer's
            raise meanwhile(self._folder) if self._folder.is_local else error from error
        finally:
            if self._note is None:
                AT_WORK.discard(note.token)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around whatever makes something count. Raises TakenOver where another writer has taken over."""
        theirs = WritingNote.if_any(whole_file(self._place), where=self._place.url)
        if self._note is None or theirs is None or theirs.token != self._note.token or theirs.left:
            self.lost = True
            self._give_up()
            what = f"another process unlocked this folder, and this writer must stop; now there is {theirs or 'no note'}"
            raise TakenOver(what, where=self._folder.url, fix="leave it to the other one; nothing that was complete is lost")
        yield

    def release(self) -> None:
        """Remove the note, with all names before it synced. Raises TakenOver where it is another writer's."""
        try:
            with self.guard():
                self._place.remove()
                keep_names(self._folder)
        finally:
            self._give_up()

    def leave(self) -> None:
        """Keep the note, marked as ended, so that it can be resumed at once."""
        try:
            with self.guard():
                assert self._note is not None, "the guard saw it"
                write_whole(self._place, replace(self._note, left=True).to_bytes(), folder=self._folder)
        finally:
            self._give_up()

    def _give_up(self) -> None:
        if self._note is not None:
            AT_WORK.discard(self._note.token)
            self._note = None
