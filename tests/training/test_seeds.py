"""`train --seeds`: a run for each seed, and what they have in common."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from signal_at import signal_at

from offline_cli import compare, load_policy
from offline_cli.errors import BadData, Interrupted, NoData, OutputExists, TargetNotMet, TrainingDiverged, UsageError
from offline_cli.training.loop import learn
from offline_cli.training.run_folder import RunFolder
from offline_cli.training.seeds import SeedsResult
from offline_cli.training.train import train, train_bc

Write = Callable[..., Path]
SHORT: dict[str, Any] = {"updates": 20, "val_fraction": 0.25, "eval_every": 10}


@pytest.fixture(autouse=True)
def one_core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds run in this process, one after the other."""
    if "integration" not in request.keywords:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    if "alone" not in request.node.name:  # where there is a figure, which takes longer than these runs
        monkeypatch.setattr("offline_cli.training.seeds.draw_curves", lambda runs, target: None)


def test_each_seed_is_the_run_that_it_is_alone(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    found = train_bc(data, tmp_path / "runs", config=config, seeds=[3, 7], **SHORT)
    alone = train_bc(data, tmp_path / "alone", config=config, seed=7, **SHORT)
    weights = (tmp_path / "runs/seed-7/policy.safetensors").read_bytes()
    assert weights == (tmp_path / "alone/policy.safetensors").read_bytes()
    assert weights != (tmp_path / "runs/seed-3/policy.safetensors").read_bytes()
    assert isinstance(found, SeedsResult)
    assert list(found.seeds) == ["3", "7"]
    assert found.seeds["7"]["val_loss"] == alone.val_loss
    mean = (found.seeds["3"]["val_loss"] + found.seeds["7"]["val_loss"]) / 2
    assert found.val_loss == pytest.approx(mean)
    told = found.intervals["val_loss"]
    values = [one["val_loss"] for one in found.seeds.values()]
    assert told["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert told["low"] < min(one["val_loss"] for one in found.seeds.values()) < told["high"]
    assert (tmp_path / "runs/curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_folder_of_all_seeds_is_no_policy_and_names_the_first(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    train_bc(write_dataset(), tmp_path / "runs", config=config, seeds=2, updates=3)
    with pytest.raises(NoData) as caught:
        load_policy(tmp_path / "runs")
    assert str(tmp_path / "runs/seed-0") in caught.value.fix


def test_curves_are_read_with_the_storage_options(
    write_dataset: Write, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[Any]()
    monkeypatch.setattr("offline_cli.training.seeds.RunFolder", lambda place: opened.append(place) or RunFolder(place))
    options = {"time_limit": 77}
    train_bc(write_dataset(), f"file://{tmp_path}/runs", config=config, seeds=2, updates=3, storage_options=options)
    assert [one.time_limit for one in opened] == [77, 77]


def test_a_number_of_seeds_counts_from_0(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    train(write_dataset(), tmp_path / "runs", config=config, seeds=2, algorithm="bc", updates=3)
    assert json.loads((tmp_path / "runs/seeds.json").read_text())["seeds"] == [0, 1]
    assert sorted(one.name for one in (tmp_path / "runs").iterdir() if one.is_dir()) == ["seed-0", "seed-1"]


def test_stopped_runs_of_several_seeds_resume_as_a_whole(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "whole", config=config, seeds=2, **SHORT)
    with pytest.raises(Interrupted):
        train_bc(data, tmp_path / "runs", config=config, seeds=2, on_progress=signal_at(1), **SHORT)
    assert not (tmp_path / "runs/seed-1").exists()
    found = train_bc(data, tmp_path / "runs", resume=True, updates=20)
    assert isinstance(found, SeedsResult)
    assert list(found.seeds) == ["0", "1"]
    for seed in ("seed-0", "seed-1"):
        ours, whole = (tmp_path / name / seed / "policy.safetensors" for name in ("runs", "whole"))
        assert ours.read_bytes() == whole.read_bytes()


def test_more_seeds_are_added_by_resuming(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "runs", config=config, seeds=2, updates=3)
    found = train_bc(data, tmp_path / "runs", config=config, seeds=3, resume=True, updates=3)
    assert isinstance(found, SeedsResult)
    assert list(found.seeds) == ["0", "1", "2"]


def test_resuming_runs_of_which_none_has_begun_needs_the_options_again(
    write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    data, out = write_dataset(), tmp_path / "runs"
    out.mkdir()
    (out / "seeds.json").write_text('{"seeds": [4]}')
    with pytest.raises(UsageError) as caught:
        train_bc(data, out, resume=True)
    assert caught.value.where == str(out)
    assert not (out / "seed-4").exists()
    found = train_bc(data, out, config=config, seeds=[4], updates=3, resume=True)
    assert isinstance(found, SeedsResult)
    assert list(found.seeds) == ["4"]


def test_overwriting_with_fewer_seeds_leaves_no_run_of_another_seed(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data, out = write_dataset(), tmp_path / "runs"
    train_bc(data, out, config=config, seeds=2, updates=3)
    with pytest.raises(OutputExists) as caught:
        train_bc(data, out, config=config, seeds=1, updates=3, overwrite=True)
    assert caught.value.where == str(out)
    assert json.loads((out / "seeds.json").read_text())["seeds"] == [0, 1]
    shutil.rmtree(out / "seed-1")
    train_bc(data, out, config=config, seeds=1, updates=3, overwrite=True)
    assert json.loads((out / "seeds.json").read_text())["seeds"] == [0]


def test_a_seed_that_misses_its_gate_does_not_stop_the_others(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetNotMet) as caught:
        train_bc(write_dataset(), tmp_path / "runs", config=config, seeds=2, max_val_loss=1e-9, **SHORT)
    assert list(caught.value.details["seeds"]) == ["0", "1"]
    assert (tmp_path / "runs/seed-1/result.json").exists()


def test_a_seed_that_diverges_does_not_stop_the_others(
    write_dataset: Write, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learned(sources: Any, out: Any, options: dict[str, Any], on_progress: Any) -> Any:
        return learn(sources, out, {**options, "lr": 1e38} if options["seed"] == 0 else options, on_progress)

    monkeypatch.setattr("offline_cli.training.train.learn", learned)
    data, out = write_dataset(), tmp_path / "runs"
    for how in ({"config": config, "updates": 40}, {"resume": True}):
        with pytest.raises(TargetNotMet) as caught:
            train_bc(data, out, seeds=2, **how)  # type: ignore[arg-type]
        assert caught.value.what.startswith("seed 0: ")
        assert list(caught.value.details["seeds"]) == ["1"]
        assert (out / "seed-1/result.json").exists()
    with pytest.raises(BadData) as missing:
        compare(out, metric="loss")
    assert "seed-0" in missing.value.what
    with pytest.raises(TrainingDiverged):
        train_bc(data, tmp_path / "none", config=config, updates=40, seeds=[0])


def test_that_nothing_was_there_to_resume_is_no_note_of_the_result(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data, begun = write_dataset(), {"config": config, "seeds": [4], "updates": 3, "resume": True}
    found = [train_bc(data, tmp_path / "runs", **begun) for _ in range(2)]  # type: ignore[arg-type]
    assert [one.notes for one in found] == [[], []]


def test_runs_of_several_seeds_are_replaced_only_when_asked(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "runs", config=config, seeds=2, updates=3)
    with pytest.raises(OutputExists):
        train_bc(data, tmp_path / "runs", config=config, seeds=2, updates=3)
    train_bc(data, tmp_path / "runs", config=config, seeds=3, updates=3, overwrite=True)
    assert json.loads((tmp_path / "runs/seeds.json").read_text())["seeds"] == [0, 1, 2]
    (tmp_path / "runs/seeds.json").write_text("{")
    with pytest.raises(BadData):
        train_bc(data, tmp_path / "runs", config=config, seeds=2, updates=3, resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    with pytest.raises(OutputExists):
        train_bc(data, tmp_path / "other", config=config, seeds=2, updates=3, overwrite=True)


@pytest.mark.parametrize("wrong", ["x", "0", "1,1", "-2", "", [-1]])
def test_seeds_are_a_number_or_different_seeds(write_dataset: Write, tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(UsageError) as caught:
        train_bc(write_dataset(), tmp_path / "runs", seeds=wrong)
    assert caught.value.where == "--seeds"
    assert not (tmp_path / "runs").exists()


def test_a_seed_beside_seeds_is_refused(write_dataset: Write, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        train_bc(write_dataset(), tmp_path / "runs", seeds=2, seed=1)


def test_a_dry_run_writes_nothing(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    found = train_bc(write_dataset(), tmp_path / "runs", config=config, seeds=2, updates=3, dry_run=True)
    assert found.stopped_by == "dry-run"
    assert not (tmp_path / "runs").exists()


@pytest.mark.integration
def test_seeds_side_by_side_are_saved_when_the_command_is_stopped(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data, out = write_dataset(), tmp_path / "runs"
    command = [sys.executable, "-m", "offline_cli", "train-bc", str(data), "--out", str(out), "--config", str(config)]
    process = subprocess.Popen([*command, "--seeds", "2", "--updates", "1000000", "--quiet"])
    while not all((out / f"seed-{seed}/state.json").exists() for seed in (0, 1)):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    reached = max(json.loads((out / f"seed-{seed}/state.json").read_text())["update"] for seed in (0, 1))
    bound = str(reached + 10)
    done = subprocess.run([*command, "--resume", "--updates", bound, "--json"], capture_output=True, check=True)
    assert {one["updates"] for one in json.loads(done.stdout)["seeds"].values()} == {reached + 10}
