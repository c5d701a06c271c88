"""`repair --force-unlock` takes the writer's note away, and nothing else; never a live writer's."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from offline_cli.checking.repair import repair
from offline_cli.datasets import lease_record
from offline_cli.datasets.lease_record import Process
from offline_cli.errors import Locked, UsageError


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_record, "BEAT", 0.2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a writer elsewhere left, with times in the future, and all that may lie beside its note."""
    place = tmp_path / "D"
    (place / "data").mkdir(parents=True)
    for name in ("data/shard-0123abcd-000000.parquet", "data/notes.txt", "_part-half", "manifest.json"):
        (place / name).write_bytes(b"whatever is here stays")
    write_note(place)
    return place


def write_note(folder: Path, **changes: Any) -> None:
    note = {
        "version": 1,
        "generation": "0123abcd",
        "options": {},
        "first_quarantine": 0,
        "changes": [],
        "host": "elsewhere",
        "pid": 1,
        "process_started": "1",
        "started": "2126-01-01T00:00:00+00:00",
        "command": "offline-cli convert a --out D",
        "token": "0" * 32,
        "beat": "2126-01-01T00:00:00+00:00",
    }
    (folder / "_writing.json").write_text(json.dumps({**note, **changes}))


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


def test_the_note_goes_and_nothing_else_is_touched(folder: Path) -> None:
    before = files(folder)
    result = repair(str(folder), force_unlock=True)
    assert (result.changed, result.removed) == (True, (str(folder / "_writing.json"),))
    del before[str(folder / "_writing.json")]
    assert files(folder) == before


def test_a_note_that_nobody_can_read_goes_too(folder: Path) -> None:
    (folder / "_writing.json").write_bytes(b"\x00{")
    assert repair(str(folder), force_unlock=True).changed
    assert not (folder / "_writing.json").exists()


@pytest.mark.parametrize("other", [{"drop_broken": True}])
def test_it_is_asked_for_alone(folder: Path, other: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        repair(str(folder), force_unlock=True, **other)
    assert (folder / "_writing.json").exists()


def test_a_note_stays_whose_process_lives_on_this_machine(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        process = Process(socket.gethostname(), Process.this().machine, other.pid, "")
        write_note(folder, host=process.host, machine=process.machine, pid=process.pid, process_started="")
        old = time.time() - 10_000
        os.utime(folder / "_writing.json", (old, old))
        with pytest.raises(Locked, match="runs on this machine"):
            repair(str(folder), force_unlock=True)
        assert (folder / "_writing.json").exists()
        other.kill()


def test_the_command_says_what_it_removed(folder: Path) -> None:
    from named_commands import command_named
    from typer.testing import CliRunner

    from offline_cli.cli.app import app

    done = CliRunner().invoke(app, ["repair", str(folder), "--force-unlock", "--json"])
    told = json.loads(done.stdout)
    assert done.exit_code == 0
    assert told.keys() >= set(command_named("repair").about.keys)
    assert (told["changed"], told["episodes"]) == (True, None)
    again = CliRunner().invoke(app, ["repair", str(folder), "--force-unlock"])
    assert again.exit_code == 0
    assert "nothing: there was no note" in again.stdout
