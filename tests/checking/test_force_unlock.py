"""`repair --force-unlock` takes the writer's note away, and nothing else; never a live writer's."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offline_cli.checking.repair import repair
from offline_cli.datasets.lock import WritingNote
from offline_cli.errors import Locked


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a writer elsewhere left, and all that may lie beside its note."""
    place = tmp_path / "D"
    (place / "data").mkdir(parents=True)
    for name in ("data/shard-0123abcd-000000.parquet", "data/notes.txt", "_part-half", "manifest.json"):
        (place / name).write_bytes(b"whatever is here stays")
    write_note(place)
    return place


def write_note(folder: Path, **changes: Any) -> None:
    note = WritingNote.of_this_process("0123abcd", {}, 0, "offline-cli convert a --out D")
    (folder / "_writing.json").write_bytes(replace(note, **{"host": "elsewhere", "pid": 1, **changes}).to_bytes())


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


def test_the_note_goes_and_nothing_else_is_touched(folder: Path) -> None:
    before = files(folder)
    result = repair(str(folder), force_unlock=True)
    assert (result.changed, result.removed) == (True, (str(folder / "_writing.json"),))
    del before[str(folder / "_writing.json")]
    assert files(folder) == before


def test_a_note_stays_whose_process_lives_on_this_machine(folder: Path) -> None:
    write_note(folder, host=socket.gethostname(), pid=os.getppid(), process_started="")
    with pytest.raises(Locked):
        repair(str(folder), force_unlock=True)
    assert (folder / "_writing.json").exists()


def test_a_writer_of_another_machine_is_not_repaired_under_until_then(folder: Path) -> None:
    with pytest.raises(Locked) as caught:
        repair(str(folder))
    assert "--force-unlock" in caught.value.fix


RECORD = ["record", "CartPole-v1", "--policy", "random", "--episodes", "3", "--seed", "1"]


@pytest.mark.parametrize(
    "words",
    [
        RECORD,
        ["convert", "SRC"],
        ["filter", "SRC", "--where", "length > 0"],
        ["sample", "SRC", "--episodes", "2"],
        ["split", "SRC", "--counts", "a=1,b=2"],
        ["merge", "SRC"],
        ["repack", "SRC", "--compression", "snappy"],
    ],
    ids=lambda words: words[0],
)
def test_a_writer_of_another_machine_is_taken_over_from_by_the_same_command(tmp_path: Path, words: list[str]) -> None:
    from typer.testing import CliRunner

    from offline_cli.cli.app import app

    out, source = tmp_path / "D", tmp_path / "S"

    def run(*given: str) -> int:
        told = [*(str(source) if word == "SRC" else word for word in words), "--out", str(out), *given]
        return CliRunner().invoke(app, told).exit_code

    assert CliRunner().invoke(app, [*RECORD, "--out", str(source)]).exit_code == 0
    assert run() == 0
    place = out / "a" if words[0] == "split" else out
    (place / "manifest.json").unlink(missing_ok=True)
    write_note(place, writes="dataset")
    assert run("--resume") == 5
    assert run("--overwrite", "--force-unlock") == 0
    assert not (place / "_writing.json").exists()
