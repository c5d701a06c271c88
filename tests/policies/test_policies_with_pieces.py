"""A policy's files where it was trained through pieces: whatever is broken, missing or mixed up is an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_json import tell, told_in

from offline_cli import load_policy as policy_in_use
from offline_cli import record
from offline_cli.episodes.codec.arrays import pack, unpack
from offline_cli.errors import BadConfig, BadData, SpaceMismatch
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.train import train_bc

STATE, POLICY = "connectors.msgpack", "policy.json"


@pytest.fixture
def run(write_dataset: Callable[..., Path], tmp_path: Path) -> Path:
    """A finished run that was trained through a filter."""
    (tmp_path / "c.toml").write_text("hidden = [16]\nbatch_size = 64\n")
    (tmp_path / "pipeline.toml").write_text('kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n')
    train_bc(write_dataset(), tmp_path / "run", config=tmp_path / "c.toml", updates=2, pipeline=tmp_path / "pipeline.toml")
    return tmp_path / "run"


def changed(run: Path, change: Callable[[Any], Any]) -> None:
    state = unpack((run / STATE).read_bytes(), where="test")
    change(state)
    (run / STATE).write_bytes(pack(state))


def described_as(**other: Any) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        described = told_in(run / POLICY)
        described["pipeline"] = {**described["pipeline"], **other}
        tell(run / POLICY, described)

    return change


def told(**other: Any) -> Callable[[Path], None]:
    return lambda run: tell(run / POLICY, {**told_in(run / POLICY), **other})


def objects(run: Path) -> None:
    (run / STATE).write_bytes(pack({"x": np.zeros(2)}).replace(b"<f8", b"|O8"))


@pytest.mark.parametrize(
    ("breaking", "match"),
    [
        (described_as(document=[1]), "pipeline"),
        (told(version=6), "version"),
        (told(gaussian={"mean": "sinh", "log_std": [-5, 2]}), "gaussian"),
        (told(gaussian={"mean": "tanh", "log_std": [2, -5]}), "gaussian"),
        (objects, "O8"),
    ],
)
def test_broken_files_are_bad_data(run: Path, breaking: Callable[[Path], None], match: str) -> None:
    breaking(run)
    with pytest.raises(BadData, match=match) as caught:
        load_policy(str(run))
    assert str(run) in caught.value.where


@pytest.mark.parametrize(
    "change", [lambda state: state["MeanStdFilter"]["obs"].pop("m2"), lambda state: state.update(MeanStdFilter=[1])]
)
def test_a_state_that_fits_no_piece_is_an_error(run: Path, change: Callable[[Any], Any]) -> None:
    changed(run, change)
    with pytest.raises((BadData, BadConfig)) as caught:
        evaluate(run, env="Sign-v0", episodes=1)
    assert caught.value.exit_code in (3, 4)


def test_an_environment_of_other_observations_is_told_as_that_and_not_as_a_broken_state(run: Path, tmp_path: Path) -> None:
    for play in (
        lambda: evaluate(run, env="CartPole-v1", episodes=1),
        lambda: policy_in_use(run, env="CartPole-v1"),
        lambda: record("CartPole-v1", tmp_path / "out", policy=str(run), episodes=1),
    ):
        with pytest.raises(SpaceMismatch, match=r"Box\(3"):
            play()
