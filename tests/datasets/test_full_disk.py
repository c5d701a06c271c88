"""A disk that fills up under record: exit 5 with the path, nothing lost or half, gone on with."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

SIZE = 2 << 20  # bytes of the disk
Call = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a small disk of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", place], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.decode(errors='replace').strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def call() -> Call:
    """Runs `offline-cli ARGS... --json --quiet` in this process: exit code, the object on stdout, and stderr."""
    from offline_cli.cli.app import app

    def run(*args: Any) -> tuple[int, dict[str, Any], str]:
        done = CliRunner().invoke(app, [*map(str, args), "--json", "--quiet"])
        return done.exit_code, json.loads(done.stdout), done.stderr

    return run


def filled_but_for(disk: Path, room: int) -> Path:
    """Fill the disk so that `room` bytes are left; the file that does it."""
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    ballast.write_bytes(b"x" * max(0, free.f_bavail * free.f_frsize - room))
    return ballast


def record(out: Path, *more: str) -> list[str]:
    words = ["record", "recording_envs:Count-v0", "--out", str(out), "--policy", "random", "--episodes", "300"]
    return [*words, "--vectorize", "sync", "--max-rows-per-file", "20", "--device", "cpu", "--compression", "none", *more]


def shards_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "data").glob("*")}


def assert_full(told: tuple[int, dict[str, Any], str], out: Path) -> None:
    """Exit 5, and a sentence that names the place."""
    code, found, stderr = told
    assert (code, found["exit_code"]) == (5, 5), stderr
    assert "no space left" in found["error"]["what"].lower()
    assert str(out) in found["error"]["where"]
    assert "Traceback" not in stderr


def test_a_recording_that_fills_the_disk_keeps_its_shards_and_goes_on_once_there_is_room(
    disk: Path, tmp_path: Path, call: Call
) -> None:
    assert call(*record(tmp_path / "whole"))[0] == 0
    ballast, out = filled_but_for(disk, 300_000), disk / "D"
    assert_full(call(*record(out)), out)
    kept = shards_of(out)
    assert 0 < len(kept) < 15
    assert all(pq.read_table(out / "data" / name).num_rows == 20 for name in kept)
    assert not list(out.glob("_part-*"))
    ballast.unlink()
    code, found, stderr = call(*record(out, "--resume"))
    assert (code, found["episodes"], found["complete"]) == (0, 300, True), stderr
    assert shards_of(out) == shards_of(tmp_path / "whole")
    assert shards_of(out).items() >= kept.items()


def test_a_disk_that_is_full_from_the_start_gets_nothing_and_the_command_can_be_run_again(disk: Path, call: Call) -> None:
    ballast, out = filled_but_for(disk, 0), disk / "D"
    assert_full(call(*record(out)), out)
    assert not out.exists()
    ballast.unlink()
    assert call(*record(out))[0] == 0


def test_temporary_data_of_training_that_fill_the_disk_are_exit_5(disk: Path, tmp_path: Path, call: Call) -> None:
    assert call(*record(tmp_path / "D"))[0] == 0
    filled_but_for(disk, 0)
    words = ("train-bc", tmp_path / "D", "--out", tmp_path / "run", "--updates", 1, "--streaming", "--temp-dir", disk)
    code, found, _ = call(*words, "--device", "cpu")
    assert (code, found["error"]["code"]) == (5, "storage-error")
    assert str(disk) in found["error"]["where"]
