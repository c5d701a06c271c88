"""_writing.json: who writes a dataset, since when, with which options; refuses to let two write, or one go on differently."""

from __future__ import annotations

import datetime
import json
import os
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from offline_cli.errors import BadConfig, BadData, OutputExists
from offline_cli.storage.layout import WRITING
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import write_whole

__all__ = ["WritingNote"]

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


@dataclass(frozen=True, slots=True)
class WritingNote:
    """What a writer leaves beside its shards until they are committed."""

    generation: str  # 8 hex digits in the names of its shards
    options: Mapping[str, Any]  # plain JSON values; --resume needs the same
    first_quarantine: int  # its first file of rows set aside
    host: str
    pid: int
    process_started: str  # tells a process from a later one with its id; "" where the system does not say
    started: str  # ISO time, UTC
    command: str  # as a shell would take it

    @staticmethod
    def of_this_process(generation: str, options: Mapping[str, Any], first_quarantine: int) -> WritingNote:
        """The note of a writer in this process, from now on."""
        return WritingNote(
            generation=generation,
            options=options,
            first_quarantine=first_quarantine,
            host=socket.gethostname(),
            pid=os.getpid(),
            process_started=_process_started(os.getpid()),
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            command=shlex.join(sys.argv),
        )

    @staticmethod
    def read(folder: Location) -> WritingNote | None:
        """The note in dataset `folder`; None where nobody writes. Raises BadData for one that is no note."""
        place = folder.join(WRITING)
        if not place.exists():
            return None
        try:
            document = orjson.loads(place.read_bytes())
        except ValueError as err:
            raise BadData(f"no JSON: {err}", where=place.url, fix=FIX) from err
        return WritingNote.of_document(document, where=place.url)

    @staticmethod
    def of_document(document: Any, *, where: str) -> WritingNote:
        """The note that plain values make. Raises BadData where they make none."""
        wrong = [name for name, kind in KINDS.items() if not isinstance(document, dict) or type(document.get(name)) is not kind]
        if wrong:
            raise BadData(f"missing or of the wrong kind: {', '.join(wrong)}", where=where, fix=FIX)
        return WritingNote(**{name: document[name] for name in KINDS})

    def write(self, folder: Location) -> None:
        """Put the note into dataset `folder`. Raises StorageError."""
        write_whole(folder.join(WRITING), json.dumps({"version": 1, **asdict(self)}, indent=1).encode() + b"\n", folder=folder)

    def refuse_if_alive(self, folder: Location) -> None:
        """Raise OutputExists while the writer that left the note still runs on this machine."""
        if self.host != socket.gethostname() or self.pid == os.getpid() or not _is_alive(self.pid):
            return
        if self.process_started != _process_started(self.pid):
            return  # another process with the same id
        what = f"process {self.pid} has been writing here since {self.started}"
        raise OutputExists(what, where=folder.url, fix="wait for it, or end it first; or give another --out")

    def refuse_other_options(self, options: Mapping[str, Any], folder: Location) -> None:
        """Raise BadConfig, naming each difference, unless `options` are those that the writing began with."""
        names = sorted(self.options.keys() | options.keys())
        problems = [
            f"{name} was {_short(self.options.get(name))}, now {_short(options.get(name))}"
            for name in names
            if self.options.get(name) != options.get(name)
        ]
        if problems:
            fix = f"the same options as before ({self.command}), or --overwrite to begin again"
            raise BadConfig.of(problems, where=folder.url, fix=fix)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's, so alive
        return True
    return True


def _process_started(pid: int) -> str:
    """When process `pid` began, as Linux counts it; "" elsewhere."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]  # field 22; the second, the name in brackets, may hold anything
