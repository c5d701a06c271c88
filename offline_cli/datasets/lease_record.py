"""_writing.json: who writes a dataset, since when and with which options; and whether that process still runs.

The note is the lease itself (`lease.py`): `token` identifies its owner, who rewrites it every few seconds. A resumed write must
have the options of the note.

Process ids are reused, so a process is identified by its id and its start time. A machine is identified by its host name and,
on Linux, by its boot and the namespace of process ids: two containers of one name see other processes under one id.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from offline_cli.datasets.layout import DATASET, WRITING, FolderKind
from offline_cli.errors import BadConfig, BadData
from offline_cli.files.blanking import blanked_values
from offline_cli.files.locations import Location

__all__ = ["Process", "WritingNote", "identity_hash"]

HASHED = "blake2b:"
FIX = "write the dataset again, with --overwrite"
KINDS = {
    "generation": str,
    "options": dict,
    "first_quarantine": int,
    "host": str,
    "pid": int,
    "process_started": str,
    "started": str,
    "command": str,
}
LATER_KINDS = {"machine": str, "token": str, "beat": str, "left": bool, "writes": str}
"""Defaults for notes of earlier versions."""


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
        return Process(socket.gethostname(), _machine(), os.getpid(), _started(os.getpid()))

    @property
    def is_this(self) -> bool:
        """Whether it is the process that asks."""
        return self == Process.this()

    def runs(self) -> bool | None:
        """Whether it still runs; None, unknown, for a process of another machine."""
        here = Process.this()
        if self.host != here.host or ("" not in (self.machine, here.machine) and self.machine != here.machine):
            return None
        if not _is_alive(self.pid):
            return False
        now = _started(self.pid)
        return "" in (self.started, now) or self.started == now  # else a later process with the same id


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _is_alive(pid: int) -> bool:
    if pid <= 0 or _is_zombie(pid):
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's, so alive
        return True
    return True


def _is_zombie(pid: int) -> bool:
    """Whether process `pid` has ended, and only waits for its parent to reap it."""
    return _stat(pid)[:1] in (["Z"], ["X"])


def _started(pid: int) -> str:
    """When process `pid` began, as Linux counts it; "" elsewhere."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def _stat(pid: int) -> list[str]:
    """Linux's status of process `pid`, from its state on; empty elsewhere."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the second field, the name in brackets, may hold anything


@dataclass(frozen=True, slots=True)
class WritingNote:
    """What a writer leaves beside its shards until they are committed."""

    generation: str  # 8 hex digits in the names of its shards
    options: Mapping[str, Any]  # plain JSON values; --resume needs the same
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
        generation: str, options: Mapping[str, Any], first_quarantine: int, command: str, kind: FolderKind = DATASET
    ) -> WritingNote:
        """The note of a new writer in this process, from now on; `command` without secrets."""
        process, now = Process.this(), _now()
        return WritingNote(
            generation=generation,
            options=options,
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
    def if_any(data: bytes, *, where: str) -> WritingNote | None:
        """The note in a file; None where there is none: its owner is unknown."""
        try:
            return WritingNote.of_bytes(data, where=where)
        except BadData:
            return None

    @staticmethod
    def of_document(document: Any, *, where: str) -> WritingNote:
        """The note that plain values make. Raises BadData where they make none."""
        known = document if isinstance(document, dict) else {}
        said = {name: kind for name, kind in LATER_KINDS.items() if name in known}
        wrong = [name for name, kind in {**KINDS, **said}.items() if type(known.get(name)) is not kind]
        if wrong:
            raise BadData(f"missing or of the wrong kind: {', '.join(wrong)}", where=where, fix=FIX)
        found = WritingNote(**{name: known[name] for name in {**KINDS, **said}})
        return replace(found, options=_as_written_now(known["options"]))

    def within_manifest(self, environment: Any) -> dict[str, Any]:
        """Plain values to keep in a manifest, which has `environment` itself."""
        options = dict(self.options)
        if options.get("environment") == environment:
            options.pop("environment", None)
        return {**asdict(self), "options": options}

    @staticmethod
    def of_manifest(kept: Any, environment: Any, *, where: str) -> WritingNote:
        """The note that a manifest with `environment` keeps. Raises BadData for what is none."""
        if isinstance(kept, dict) and isinstance(kept.get("options"), dict):
            kept = {**kept, "options": {"environment": environment, **kept["options"]}}
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

    def refuse_other_options(self, options: Mapping[str, Any], folder: Location) -> None:
        """Raise BadConfig, naming each difference, unless `options` are those that the write began with."""
        names = sorted(self.options.keys() | options.keys())
        problems = [
            f"{name} was {_short(self.options.get(name))}, now {_short(options.get(name))}"
            for name in names
            if self.options.get(name) != options.get(name)
        ]
        if problems:
            fix = f"the same options as before ({self.command}), or --overwrite to begin again"
            raise BadConfig.of(problems, where=folder.url, fix=fix)


def identity_hash(identity: str) -> str:
    """The hash kept in place of the caller's identity of what it writes, which may hold secrets."""
    return HASHED + hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _as_written_now(options: dict[str, Any]) -> dict[str, Any]:
    """Those of a note of an earlier version, which has the word itself, and arguments of environments as they were given."""
    identity, environment = options.get("identity"), options.get("environment")
    if isinstance(identity, str) and not identity.startswith(HASHED):
        options = {**options, "identity": identity_hash(identity)}
    return {**options, "environment": blanked_values(environment)} if environment is not None else options


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
