"""Two thousand files: every reader, every command, and a dataset of as many shards."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from growth import assert_grows_in_proportion
from made_recordings import READERS, Written, assert_same_episodes, read

Write = Callable[..., Written]
Told = Callable[..., dict[str, Any]]
FILES = 2000
QUICK = ("rllib-packed", "sample-batch-packed")
SHARED = ("rllib-columns", "sample-batch", "columns")


@pytest.mark.parametrize("kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.nightly) for kind in READERS])
def test_two_thousand_files_are_read_as_one_recording(kind: str, written: Write) -> None:
    """Every second file ends in the middle of an episode, where it may: 5 rows in two files."""
    splits = kind not in ("rllib-episodes", "episodes", "columns")
    source = written(kind, FILES // 2 if splits else FILES, 6 if splits else 3, files=FILES, block_rows=3)
    assert len(list(source.path.rglob("*"))) >= FILES
    found, counts, _ = read(source)
    assert_same_episodes(found, source.batch)
    assert counts.duplicates == 0
    assert counts.assumptions.keys() <= {"dtype-inferred"}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["jsonl", "arrow", "rllib-columns", "rllib-episodes", "sample-batch", "episodes"])
def test_twice_as_many_files_take_twice_as_long_to_read(kind: str, written: Write) -> None:
    sources = [written(kind, files, 3, files=files, block_rows=3) for files in (FILES // 8, FILES // 4)]
    read(sources[0], keep=False)
    assert_grows_in_proportion(*(lambda source=source: read(source, keep=False) for source in sources))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", SHARED)
def test_every_command_that_reads_takes_two_thousand_files(kind: str, written: Write, told: Told, tmp_path: Path) -> None:
    source = written(kind, FILES, 3, files=FILES, block_rows=3)
    counted = {"episodes": FILES, "steps": 3 * FILES}
    assert told("inspect", source.path).items() >= counted.items()
    assert told("validate", source.path)["passed"] is True
    if kind == "columns":
        return
    assert told("convert", source.path, "--out", tmp_path / "out").items() >= counted.items()


@pytest.mark.nightly
def test_every_command_takes_a_dataset_of_two_thousand_shards(written: Write, told: Told, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(written("episodes", FILES, 3, files=FILES).path, folder)
    assert len(list((folder / "data").iterdir())) == FILES
    assert told("validate", folder, "--deep")["passed"] is True
    (folder / "manifest.json").rename(folder / "_writing.json")
    assert told("repair", folder, "--dry-run")["episodes"] == FILES
    assert told("repair", folder)["episodes"] == FILES
    (tmp_path / "pipeline.toml").write_text('kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n', encoding="utf-8")
    assert told("apply", folder, "--pipeline", tmp_path / "pipeline.toml", "--out", tmp_path / "out")["steps"] == 3 * FILES
    training = ("--updates", 5, "--batch-size", 64, "--device", "cpu")
    assert told("train-bc", folder, "--out", tmp_path / "run", *training)["steps"] == 3 * FILES
