"""`--track`: what goes to metrics.jsonl goes to trackers too. Their packages are stand-ins (tests/support/fake_trackers.py)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_trackers import TRACKERS, Kept
from signal_at import signal_at

from offline_cli.errors import BadConfig, Interrupted, MissingPackage
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
OPTIONS: dict[str, Any] = {"updates": 40, "val_fraction": 0.25, "eval_every": 15}
EACH = pytest.mark.parametrize("name", TRACKERS)


def figures(run: Path) -> dict[int, dict[str, float]]:
    """The rows of metrics.jsonl, by update."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["update"]: {key: one for key, one in row.items() if key != "update" and one is not None} for row in rows}


@EACH
def test_a_tracker_gets_every_row_by_its_update_and_the_configuration_once(
    name: str, kept: dict[str, Kept], write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    train_bc(write_dataset(), tmp_path / "run", config=config, track=[name], **OPTIONS)
    told = kept[name]
    assert told.rows == figures(tmp_path / "run")
    assert {"loss", "val_loss"} <= told.rows[40].keys()
    assert [str(one["batch_size"]) for one in told.configs] == ["32"]
    assert len(told.closed) == 1
    assert not any(other.opened for key, other in kept.items() if key != name)


def test_trackers_keep_all_below_the_run_folder_and_use_no_network(
    kept: dict[str, Kept], write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train_bc(write_dataset(), run, config=config, track=TRACKERS, updates=3)
    assert kept["tensorboard"].opened[0]["log_dir"] == str(run / "tensorboard")
    assert (kept["wandb"].opened[0]["mode"], kept["wandb"].opened[0]["dir"]) == ("offline", str(run))
    assert kept["mlflow"].opened[0]["uri"] == f"sqlite:///{run / 'mlflow' / 'mlflow.db'}"
    assert os.environ["TRACKIO_DIR"] == str(run / "trackio")


def test_environment_variables_of_the_user_win(
    kept: dict[str, Kept], write_dataset: Write, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = {"WANDB_MODE": "online", "WANDB_PROJECT": "walking", "MLFLOW_TRACKING_URI": "http://mlflow:5000"}
    for name, value in {**mine, "TRACKIO_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    train_bc(write_dataset(), tmp_path / "run", config=config, track=TRACKERS, updates=3)
    assert (kept["wandb"].opened[0]["mode"], kept["wandb"].opened[0]["project"]) == ("online", "walking")
    assert kept["mlflow"].opened[0]["uri"] == "http://mlflow:5000"
    assert os.environ["TRACKIO_DIR"] == str(tmp_path)


@EACH
def test_a_resumed_run_goes_on_in_the_same_run_of_the_tracker(
    name: str, kept: dict[str, Kept], write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    data, run, told = write_dataset(), tmp_path / "run", kept[name]
    with pytest.raises(Interrupted):
        train_bc(data, run, config=config, track=[name], on_progress=signal_at(21), **OPTIONS)
    assert len(told.closed) == 1
    train_bc(data, run, resume=True)
    assert told.rows == figures(run)
    assert (len(told.ids), len(set(told.ids)), len(told.configs), len(told.closed)) == (2, 1, 1, 2)


def test_a_tracker_that_is_not_installed_is_named_with_what_to_install(
    write_dataset: Write, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingPackage) as caught:
        train_bc(write_dataset(), tmp_path / "run", config=config, track=["wandb"], updates=3)
    assert (caught.value.exit_code, caught.value.fix) == (6, "pip install 'offline-cli[wandb]'")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("fails", ["open", "log", "close"])
@EACH
def test_a_tracker_that_fails_is_one_warning_and_training_goes_on(
    name: str,
    fails: str,
    kept: dict[str, Kept],
    write_dataset: Write,
    config: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept[name].fails = fails
    other = "wandb" if name != "wandb" else "trackio"
    result = train_bc(write_dataset(), tmp_path / "run", config=config, track=[name, other], **OPTIONS)
    assert result.updates == 40
    assert [name in text for text in caplog.messages if text.startswith("warning")] == [True]
    assert kept[other].rows == figures(tmp_path / "run")
    assert len(kept[name].closed) == (fails != "open")


def test_a_run_folder_in_a_bucket_is_not_tracked(kept: dict[str, Kept], write_dataset: Write, config: Path) -> None:
    with pytest.raises(BadConfig) as caught:
        train_bc(write_dataset(), "memory://runs/tracked", config=config, track=["wandb"], updates=3)
    assert caught.value.where == "--track"
    assert not kept["wandb"].opened
