"""One writer at a time: `_writing.json`, created only if absent, is the lock; it says who writes, and with which options.

A writer is its host, process id and the process's start time: ids are used again. Where that process has ended, or its writer
has said so (`left`), the next writer takes the note over. A writer of another host cannot be asked: `--resume --force-unlock`
(`unlock`) is the user's word that it has ended. Before anything that counts (a shard, the manifest) a writer looks whether the
note is still its own, and stops with TakenOver where it is not.

Of two processes that take over one dead writer's note at once, `flock` on the folder lets one in, and the system releases it
when a process dies; in buckets the later one has it, and the other stops at its first shard.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import orjson

from offline_cli.datasets.file_names import DATASET, WRITING, FolderKind
from offline_cli.datasets.ownership import is_regular, keep_names
from offline_cli.errors import BadData, Locked, StorageNotFound, TakenOver
from offline_cli.running_processes import began, runs
from offline_cli.source_code import allowed_changes
from offline_cli.storage.blanking import without_folders
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import create_only, whole_file, write_whole

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["APPENDS_TO", "Changed", "WritingLock", "WritingNote", "alone", "is_note", "refuse_if_at_work", "unlock"]

APPENDS_TO: Final = "appends_to"  # among the options of a note: the dataset that the writer adds to
FIX: Final = "write the dataset again, with --overwrite"
KINDS: Final = {"str": str, "int": int, "bool": bool, "Mapping[str, Any]": dict, "Sequence[str]": list}
"""Types of a note's fields as JSON has them."""
AT_WORK: Final[set[str]] = set()
"""Tokens of the writers in this process, which runs whether they do or not."""
_MEMORY: Final = threading.RLock()


@dataclass(frozen=True, slots=True)
class WritingNote:
    """What a writer leaves beside its shards until they are committed; a resumed write must have its options."""

    generation: str  # 8 hex digits in the names of its shards
    options: Mapping[str, Any]  # plain JSON values
    changes: Sequence[str]  # of the identity among them since the write began, which --allow-changes took, in words
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
        kind: FolderKind = DATASET,
        changes: Sequence[str] = (),
    ) -> WritingNote:
        """The note of a new writer in this process."""
        return WritingNote(
            generation=generation,
            options=options,
            changes=list(changes),
            first_quarantine=first_quarantine,
            **_this_process(),
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            command=command,
            token=secrets.token_hex(16),
            writes=kind.noun,
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
            document = orjson.loads(data)
        except ValueError as err:
            raise BadData(f"no JSON: {err}", where=where, fix=FIX) from err
        return WritingNote.of_document(document, where=where)

    @staticmethod
    def if_any(data: bytes | None, *, where: str) -> WritingNote | None:
        """The note in a file (None: no file is there); None for what is none: its owner is unknown."""
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
            nobody = {"host": "", "machine": "", "pid": 0, "process_started": "", "token": "", "left": True}
            kept = {**nobody, **kept, "options": {"environment": environment, **kept["options"]}}
        return WritingNote.of_document(kept, where=where)

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


def is_note(place: Location) -> bool:
    """Whether a writer's note is here: other JSON belongs to the user."""
    return WritingNote.if_any(whole_file(place) if is_regular(place) else None, where=place.url) is not None


def refuse_if_at_work(note: WritingNote, place: Location) -> None:
    """Raise Locked where the writer of `note`, at `place`, is at work, or may be: it is of another machine."""
    at_work = note.is_at_work
    if at_work is not False:
        raise _locked(note, place, is_known=at_work is True)


def _locked(note: WritingNote, place: Location, *, is_known: bool = True) -> Locked:
    who = f"process {note.pid} on {note.host}, since {note.started}: {note.command}"
    what = f"another writer is at work here: {who}"
    fix = "wait for it, or end it and use --resume; or give another --out"
    if not is_known:
        what = f"another writer may be at work here, on another machine: {who}"
        fix = "wait for it; where it has ended, the same command with --resume --force-unlock"
    holder = {"host": note.host, "pid": note.pid, "command": note.command, "started": note.started}
    return Locked(what, where=place.url, fix=fix, details={"holder": holder})


def unlock(folder: Location, name: str = WRITING, *, remove: bool = False, dry_run: bool = False) -> bool:
    """What `--force-unlock` does: mark the writer of a note as ended, or remove the note (`remove`); whether one was there.

    Raises Locked where its process runs on this machine, BadData for a broken note that is not to be removed.
    """
    place = folder.join(name)
    if not folder.exists():
        return False
    with alone(folder):
        data = whole_file(place)
        note = WritingNote.if_any(data, where=place.url)
        if data is None:
            return False
        if note is not None and note.is_at_work:
            raise _locked(note, place)
        if remove and not dry_run:
            place.remove()
            keep_names(folder)
        elif not dry_run:
            note = note or WritingNote.of_bytes(data, where=place.url)
            write_whole(place, replace(note, left=True).to_bytes(), folder=folder)
    return True


@contextmanager
def alone(folder: Location) -> Iterator[None]:
    """Within it, no other process of this machine changes who writes dataset `folder`, which exists; in buckets nothing."""
    if folder.is_memory:
        with _MEMORY:
            yield
        return
    if not folder.is_local or fcntl is None:
        yield
        return
    handle = folder.ask("locking it", lambda: os.open(folder.path, os.O_RDONLY))
    try:
        with suppress(OSError):  # some network disks cannot
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # a process forked meanwhile would keep it beyond the close
        os.close(handle)


class Changed(Exception):
    """The note that was to be replaced is gone, or another one: the caller must look again."""


class WritingLock:
    """The note of one writer, from `acquire` to one of `release`, `leave` and `restore`."""

    def __init__(self, folder: Location, name: str = WRITING) -> None:
        """`folder`: the dataset's, or whatever else one writer at a time may write; `name` of the note in it."""
        self._folder, self._place = folder, folder.join(name)
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

        Raises Locked where its writer is, or may be, at work, or another one was faster; Changed where another note is there.
        """
        if instead_of is not None:
            before = WritingNote.if_any(instead_of, where=self._place.url)
            if before is not None:
                refuse_if_at_work(before, self._place)
        AT_WORK.add(note.token)  # before others can see the note
        try:
            with alone(self._folder):
                if whole_file(self._place) != instead_of:
                    raise self._refusal()
                if instead_of is not None:
                    self._write(note)  # in one step: a kill leaves one note or the other
                elif not create_only(self._place, note.to_bytes(), folder=self._folder):
                    raise self._refusal()
            self._note = note
        except StorageNotFound as err:
            if not self._folder.is_local:
                raise
            raise Changed from err  # another writer ended, and left no trace
        finally:
            if self._note is None:
                AT_WORK.discard(note.token)

    def _refusal(self) -> Locked | Changed:
        """The error for the note that is there instead."""
        theirs = WritingNote.if_any(whole_file(self._place), where=self._place.url)
        return Changed() if theirs is None or theirs.is_at_work is False else _locked(theirs, self._place)

    def rewrite(self, **changes: Any) -> None:
        """Change the note, but not its owner. Raises TakenOver."""
        with self.guard():
            assert self._note is not None, "the lock is not held"
            self._note = replace(self._note, **changes)
            self._write(self._note)

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
        note = self._note
        assert note is not None, "the lock is not held"
        self._end(lambda: self._write(replace(note, left=True)))

    def restore(self, before: bytes) -> None:
        """Put the note back that this one replaced."""
        self._end(lambda: write_whole(self._place, before, folder=self._folder))

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

    def _write(self, note: WritingNote) -> None:
        write_whole(self._place, note.to_bytes(), folder=self._folder)
