"""Evaluations in slots, and on worker processes; own vector classes, whatever way they reset themselves."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli.errors import BadConfig, BadData, UsageError
from offline_cli.playing.evaluate import evaluate
from offline_cli.playing.plan import ROUND, EvaluationPlan

ENV = "recording_envs:Count-v0"
FILTER: dict[str, Any] = {"name": "mean_std_filter"}
pytestmark = pytest.mark.filterwarnings("ignore:.*missing AutoresetMode metadata")


def figures(run: Any, env: str = ENV, **options: Any) -> dict[str, Any]:
    return evaluate(run, env=env, device="cpu", seed=3, explore=True, **options).as_dict()


@pytest.mark.parametrize(("env", "episodes"), [(ENV, 20), ("CartPole-v1", ROUND + 9)], ids=["sync", "own class"])
def test_the_same_call_gives_the_same_figures(env: str, episodes: int, run_folder: Callable[..., Path]) -> None:
    run = run_folder(env)
    assert figures(run, env, episodes=episodes, num_envs=7) == figures(run, env, episodes=episodes, num_envs=7)


@pytest.mark.integration
def test_workers_share_the_episodes_of_a_policy_between_pieces(
    run_through_pieces: Callable[..., str], run_folder: Callable[..., Path], pipeline_file: Callable[..., str]
) -> None:
    run = run_through_pieces(FILTER, env=ENV)
    here, there = figures(run, episodes=20, num_envs=3), figures(run, episodes=20, num_envs=3, num_env_runners=2)
    assert here == there
    dying = pipeline_file({"use": "recording_pieces:Dying"}, kind="env_to_module")
    with pytest.raises(BadData) as raised:
        evaluate(run_folder(ENV), env=ENV, episodes=40, num_env_runners=1, env_to_module=dying, device="cpu")
    assert raised.value.exit_code == 3
    with pytest.raises(BadData) as raised:
        evaluate(run, env="python:recording_envs:exits", episodes=40, num_env_runners=2, device="cpu")
    assert raised.value.where.startswith("python:recording_envs:exits, episode")


@pytest.mark.parametrize("way", ["sync", "vector_entry_point"])
def test_runners_share_all_episodes_and_each_plays_its_own(way: str) -> None:
    for runners, episodes in itertools.product((1, 2, 3, 5), (1, ROUND, ROUND + 1, 3 * ROUND, 5 * ROUND - 7)):
        plan = EvaluationPlan("Any-v0", {}, (), "run", False, 0, way, 16, runners, "cpu", episodes=episodes)
        shares = [plan.indices(runner, np.arange(plan.share(runner))) for runner in range(runners)]
        assert sorted(np.concatenate(shares).tolist()) == list(range(episodes))


@pytest.mark.parametrize("way", ["NextStep", "SameStep", "Disabled"])
def test_an_own_class_is_evaluated_whatever_way_it_resets_itself(way: str, run_folder: Callable[..., Path]) -> None:
    lengths = 1 + np.arange(6)  # of the first episode of each slot
    told = evaluate(run_folder(ENV), env=f"recording_envs:Own{way}-v0", episodes=6, device="cpu")
    assert told.length_mean == lengths.mean()
    assert told.return_mean == (lengths * (lengths + 1) / 2).mean()


def test_an_environment_that_raises_is_named_with_its_episode_and_seed(run_folder: Callable[..., Path]) -> None:
    with pytest.raises(BadData) as caught:
        evaluate(run_folder(ENV), env="python:recording_envs:exits", episodes=40, device="cpu")
    assert caught.value.where.startswith("python:recording_envs:exits, episode")
    assert "its seed was" in caught.value.fix


def test_numbers_of_slots_and_runners_that_make_no_sense_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--num-envs 0.*--num-env-runners -1"):
        evaluate(tmp_path, num_envs=0, num_env_runners=-1)


def test_pieces_that_no_worker_can_get_are_refused(run_folder: Callable[..., Path]) -> None:
    from recording_pieces import scaled

    with pytest.raises(BadConfig):
        evaluate(run_folder(ENV), env=ENV, num_env_runners=1, env_to_module=lambda env: scaled(env))
