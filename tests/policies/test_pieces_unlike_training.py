"""A policy in an environment that it was not trained for: said in every way of playing it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from offline_cli import evaluate, load_policy, record, train_bc
from offline_cli.cli.app import app
from offline_cli.errors import SpaceMismatch

FILTER = 'kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\nclip_by_value = {}\n'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Trained through a filter, on random CartPole."""
    record("CartPole-v1", tmp_path / "D", policy="random", episodes=5, device="cpu")
    train_bc(tmp_path / "D", tmp_path / "run", pipeline=piece(tmp_path / "trained.toml", 5.0), updates=2, device="cpu")
    return tmp_path / "run"


def piece(file: Path, clip: float) -> Path:
    file.write_text(FILTER.format(clip))
    return file


def test_an_environment_of_other_observations_is_told_as_that_and_not_as_a_broken_state(run: Path, tmp_path: Path) -> None:
    for play in (
        lambda: evaluate(run, env="Pendulum-v1", episodes=1),
        lambda: load_policy(run, env="Pendulum-v1"),
        lambda: record("Pendulum-v1", tmp_path / "out", policy=str(run), episodes=1),
    ):
        with pytest.raises(SpaceMismatch, match=r"observations: the policy takes Box\(4"):
            play()
    done = CliRunner().invoke(app, ["evaluate", str(run), "--env", "Pendulum-v1", "--episodes", "1"])
    assert done.exit_code == 4
