"""A disk that fills up under record, convert, apply and train-bc: exit 5 with the path, nothing lost or half, gone on with."""

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

from offline_cli.datasets.dataset import open_dataset

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


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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


def test_a_conversion_that_fills_the_disk_keeps_its_shards_and_goes_on_once_there_is_room(
    disk: Path, tmp_path: Path, call: Call
) -> None:
    source = tmp_path / "source"
    assert call(*record(source))[0] == 0
    convert = ("convert", source, "--max-rows-per-file", "20", "--compression", "none", "--out")
    assert call(*convert, tmp_path / "whole")[0] == 0
    ballast, out = filled_but_for(disk, 300_000), disk / "D"
    assert_full(call(*convert, out), out)
    kept = shards_of(out)
    assert 0 < len(kept) < 15
    ballast.unlink()
    assert call(*convert, out, "--resume")[0] == 0
    assert shards_of(out) == shards_of(tmp_path / "whole")
    assert shards_of(out).items() >= kept.items()


def test_a_disk_that_is_full_from_the_start_gets_nothing_and_the_command_can_be_run_again(disk: Path, call: Call) -> None:
    ballast, out = filled_but_for(disk, 0), disk / "D"
    assert_full(call(*record(out)), out)
    assert not out.exists()
    ballast.unlink()
    assert call(*record(out))[0] == 0


def test_repair_makes_a_dataset_of_what_a_full_disk_left(disk: Path, call: Call) -> None:
    ballast, out = filled_but_for(disk, 300_000), disk / "D"
    assert_full(call(*record(out)), out)
    kept = shards_of(out)
    ballast.unlink()
    code, found, _ = call("repair", out)
    assert (code, found["adopted"], found["episodes"]) == (0, len(kept), 20 * len(kept))
    assert open_dataset(str(out)).manifest.counts.episodes == 20 * len(kept)


def test_a_training_that_fills_the_disk_keeps_its_last_checkpoint_and_goes_on_once_there_is_room(
    disk: Path, tmp_path: Path, call: Call
) -> None:
    data, config = tmp_path / "data", tmp_path / "config.toml"
    assert call(*record(data))[0] == 0
    config.write_text("hidden = [64, 64]\n")
    train = ("train-bc", data, "--config", config, "--batch-size", "64", "--checkpoint-every", "10", "--device", "cpu", "--out")
    assert call(*train, tmp_path / "whole", "--updates", "30")[0] == 0
    out = disk / "RUN"
    assert call(*train, out, "--updates", "10")[0] == 0
    size = sum(path.stat().st_size for path in (out / "checkpoints").rglob("*.*"))
    ballast = filled_but_for(disk, size // 2)  # no room for the next checkpoint beside this one
    assert_full(call(*train, out, "--updates", "30", "--resume"), out)
    assert [path.parent.name for path in (out / "checkpoints").glob("*/state.json")] == ["000000010"]
    ballast.unlink()
    code, found, stderr = call(*train, out, "--updates", "30", "--resume")
    assert (code, found["updates"]) == (0, 30), stderr
    weights = "policy.safetensors"
    assert (out / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()


def test_train_batches_that_fill_the_disk_are_taken_back_and_older_ones_stay(disk: Path, tmp_path: Path, call: Call) -> None:
    data, pipeline, out = tmp_path / "data", tmp_path / "pipeline.toml", disk / "made" / "B"
    assert call(*record(data))[0] == 0
    pipeline.write_text('kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n')
    apply = ("apply", data, "--pipeline", pipeline, "--format", "safetensors", "--steps-per-batch", "100", "--out")
    code, whole, stderr = call(*apply, tmp_path / "whole")
    assert code == 0, stderr
    assert whole["batches"] > 5
    ballast = filled_but_for(disk, whole["bytes"] // 2)
    assert_full(call(*apply, out), out)
    assert [path.name for path in disk.iterdir()] == ["ballast"]
    ballast.unlink()
    assert call(*apply, out)[0] == 0
    before = files_below(out)
    assert {name for name in before if name.startswith("data/")} == {f"data/{name}" for name in shards_of(tmp_path / "whole")}
    ballast = filled_but_for(disk, whole["bytes"] // 2)
    assert_full(call(*apply, out, "--overwrite"), out)
    assert files_below(out) == before
    ballast.unlink()
    assert call(*apply, out, "--overwrite")[0] == 0
