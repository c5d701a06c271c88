"""A power cut after any system call of train-bc leaves a run that `--resume` ends as if nothing had been; exit 0 is kept."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from power_cuts import power_cuts, recorded, tree_of
from recorded_disk import Log

from offline_cli import train_bc
from offline_cli.errors import NoData, StorageNotFound, Uncommitted
from offline_cli.policies.run_policy import load_policy

pytestmark = pytest.mark.skipif(os.name != "posix", reason="folders are not synced here")

CONFIG = "hidden = [4]\nbatch_size = 64\nlog_every = 2\ncheckpoint_every = 3\nval_fraction = 0.25\n"
CLOCK = ("seconds", "samples_per_second")
UPDATES = 5

Train = Callable[..., None]
Weights = dict[str, list[float]]


@pytest.fixture
def train(
    write_dataset: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Train:
    """Trains a small network, in next to no time: the curve takes longer than all the rest, and is left out."""
    monkeypatch.setattr("offline_cli.training.run_folder.draw_curve", lambda rows, file, **_: file.write(b"\x89PNG\r\n"))
    caplog.set_level("ERROR")  # a note for each run that is not finished
    data, config = write_dataset(), tmp_path / "config.toml"
    config.write_text(CONFIG)

    def train(run: Path, **options: Any) -> None:
        train_bc(data, run, config=config, device="cpu", **{"updates": UPDATES, **options})

    return train


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The folder whose power is cut; the run in it is `run`."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def weights(run: Path) -> Weights:
    return {name: value.flatten().tolist() for name, value in load_policy(run).module.state_dict().items()}


def rows(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    return [{name: value for name, value in row.items() if name not in CLOCK} for row in found]


def found(run: Path, wholes: dict[str, Weights]) -> str:
    """Whose policy `run` has, by name; `unfinished` where it is a checkpoint's, or none is there yet; `none` without a run."""
    try:
        loaded = load_policy(run)
    except Uncommitted:
        return "unfinished"
    except (NoData, StorageNotFound):
        return "none"
    if loaded.checkpoint is not None:
        return "unfinished"
    there = weights(run)
    return next((name for name, whole in wholes.items() if whole == there), "another")


Judge = Callable[..., None]


@pytest.fixture(params=[pytest.param((5, 5), id="sampled"), pytest.param((1, 3), id="all", marks=pytest.mark.nightly)])
def judge(request: pytest.FixtureRequest, disk: Path, tmp_path: Path, train: Train) -> Judge:
    """Whether every image of a recorded `disk` holds the run that was there `before`, one that is not finished, or the new one.

    Of each `go_on` makes one of the runs in `ends`: the new one is what an undisturbed training leaves, with the same rows.
    Where the command has ended, everything is as it is on the disk itself. The quick lane takes a share of the images; of those
    that are taken, a share is gone on with.
    """
    every, goes_on = request.param

    def judge(
        log: Log,
        go_on: Callable[[Path], None],
        *,
        before: str = "none",
        old: Weights | None = None,
        ends: Collection[str] = ("new",),
    ) -> None:
        train(tmp_path / "undisturbed")
        wholes, want = {"new": weights(tmp_path / "undisturbed"), "old": old or {}}, rows(tmp_path / "undisturbed")
        left, seen = tree_of(disk), set[str]()
        for number, cut in enumerate(power_cuts(log, every=every)):
            run = cut.put(tmp_path / "image") / "run"
            state = found(run, wholes)
            seen.add(state)
            if cut.is_after_the_end:
                assert (state, cut.tree) == ("new", left), cut
                continue
            assert state in {before, "unfinished", "new"}, cut
            if number % goes_on == 0:
                go_on(run)
                ended = found(run, wholes)
                assert ended in ends, cut
                assert ended != "new" or rows(run) == want, cut
                assert not (run / "_training.json").exists()
        assert {"unfinished", "new"} <= seen

    return judge


def test_of_a_new_run(disk: Path, judge: Judge, train: Train) -> None:
    log = recorded(disk, lambda: train(disk / "run"))
    judge(log, lambda run: train(run, resume=True))


def test_of_a_run_that_is_gone_on_with(disk: Path, judge: Judge, train: Train) -> None:
    train(disk / "run", updates=2)
    old = weights(disk / "run")
    log = recorded(disk, lambda: train(disk / "run", resume=True))
    judge(log, lambda run: train(run, resume=True), before="old", old=old)


def test_of_a_run_that_is_replaced(disk: Path, judge: Judge, train: Train) -> None:
    train(disk / "run", seed=7)
    old = weights(disk / "run")
    log = recorded(disk, lambda: train(disk / "run", overwrite=True))
    judge(log, lambda run: train(run, overwrite=True), before="old", old=old)
