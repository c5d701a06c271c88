"""evaluate: the policy of a finished run, measured on its own episodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from edited_json import tell, told_in

from offline_cli.errors import (
    BadConfig,
    NoData,
    SpaceMismatch,
    StorageNotFound,
    TargetNotMet,
    Uncommitted,
)
from offline_cli.playing.evaluate import evaluate
from offline_cli.training.train import train_bc


@pytest.fixture
def run(write_dataset: Callable[..., Path], tmp_path: Path) -> Path:
    """A finished run that was trained with Sign-v0."""
    (tmp_path / "c.toml").write_text("hidden = [16]\nbatch_size = 64\nlr = 0.01\n")
    train_bc(write_dataset(), tmp_path / "run", config=tmp_path / "c.toml", env="Sign-v0", updates=60, eval_episodes=1)
    return tmp_path / "run"


def test_it_gives_mean_spread_and_interval_of_exactly_n_episodes(run: Path) -> None:
    result = evaluate(run, env="Sign-v0", episodes=40)
    assert result.episodes == 40
    assert 10 < result.return_mean < result.length_mean + 1e-9
    assert result.return_ci95 == pytest.approx(1.96 * result.return_std / 40**0.5)
    assert {"episodes", "return_mean", "return_std", "return_ci95", "length_mean"} <= result.as_dict().keys()
    json.dumps(result.as_dict())


def test_code_that_a_run_folder_names_is_not_imported(run: Path) -> None:
    tell(run / "policy.json", {**told_in(run / "policy.json"), "environment": "python:os:getcwd"})
    with pytest.raises(BadConfig):
        evaluate(run)


@pytest.mark.parametrize(("recorded_in", "is_offered"), [("Sign-v0", True), ("plant 4, night shift", False)])
def test_only_an_environment_that_can_be_made_is_offered(recorded_in: str, is_offered: bool, run: Path) -> None:
    environments = [{"id": recorded_in, "kwargs": {}, "wrappers": []}]
    tell(run / "policy.json", {**told_in(run / "policy.json"), "environment": None, "environments": environments})
    with pytest.raises(BadConfig) as caught:
        evaluate(run)
    assert (recorded_in in caught.value.fix, caught.value.where) == (is_offered, str(run))


def test_exploring_differs_from_greedy_and_repeats_with_its_seed(run: Path) -> None:
    greedy, one, two = (evaluate(run, episodes=30, explore=explore) for explore in (False, True, True))
    assert one.as_dict() == two.as_dict()
    assert one.return_mean < greedy.return_mean


def test_a_return_below_the_gate_is_exit_7_with_the_figures(run: Path) -> None:
    with pytest.raises(TargetNotMet) as caught:
        evaluate(run, episodes=5, min_return=1000)
    assert caught.value.exit_code == 7
    assert caught.value.details["episodes"] == 5
    assert evaluate(run, episodes=5, min_return=1).episodes == 5


def test_an_environment_that_does_not_fit_is_refused(run: Path) -> None:
    with pytest.raises(SpaceMismatch):
        evaluate(run, env="CartPole-v1")


def test_a_missing_folder_an_empty_one_and_an_unfinished_run_each_have_their_error(run: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageNotFound):
        evaluate(tmp_path / "none", env="Sign-v0")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoData):
        evaluate(tmp_path / "empty", env="Sign-v0")
    (run / "policy.safetensors").unlink()
    with pytest.raises(Uncommitted) as caught:
        evaluate(run, env="Sign-v0")
    assert "--resume" in caught.value.fix
