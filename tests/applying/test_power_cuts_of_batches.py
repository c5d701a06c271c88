"""A power cut after any system call of `apply` leaves the train batches before or the new ones, all of them; exit 0 is kept."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from power_cuts import power_cuts, recorded, tree_of

from offline_cli import apply
from offline_cli.episodes.batch import EpisodeBatch

pytestmark = pytest.mark.skipif(os.name != "posix", reason="folders are not synced here")

FILTER = '[[pieces]]\nname = "mean_std_filter"\n'  # which learns, so that a state is kept


def listed(folder: Path) -> str:
    """Hash of what `batches.json` lists, all of which is there and whole; `none` where there is no such file."""
    place = folder / "batches.json"
    if not place.exists():
        return "none"
    told = json.loads(place.read_bytes())
    files = [*told["batches"], told["state"]]
    for file in files:
        assert hashlib.sha256((folder / file["path"]).read_bytes()).hexdigest() == file["sha256"], file["path"]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


@pytest.mark.parametrize("every", [pytest.param(5, id="sampled"), pytest.param(1, id="all", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("format", ["columns", "safetensors"])
@pytest.mark.parametrize("replaces", [False, True], ids=["new", "replaced"])
def test_of_train_batches(
    dataset: Callable[..., str],
    episodes: EpisodeBatch,
    pipeline_file: Callable[..., str],
    tmp_path: Path,
    format: str,
    replaces: bool,
    every: int,
) -> None:
    source, pipeline, disk = dataset(episodes), pipeline_file(FILTER), tmp_path / "disk"
    disk.mkdir()

    def write(out: Path, steps: int) -> None:
        apply(source, str(out), pipeline=pipeline, steps_per_batch=steps, format=format, overwrite=True)

    if replaces:
        write(disk / "B", 8)
    before = listed(disk / "B")
    log = recorded(disk, lambda: write(disk / "B", 16))
    after, left, seen = listed(disk / "B"), tree_of(disk), set[bool]()
    for number, cut in enumerate(power_cuts(log, every=every)):
        there = cut.put(tmp_path / "image") / "B"
        assert listed(there) in {before, after}, cut
        seen.add((there / "_writing.json").exists())
        if cut.is_after_the_end:
            assert cut.tree == left, cut
        elif number % every == 0:
            write(there, 16)
            assert listed(there) not in {before, "none"}, cut
    assert seen == {False, True}
