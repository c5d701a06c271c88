"""Evaluations: the same episodes in any number of slots and runners, whatever way an environment resets itself."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli.environments import open_environment
from offline_cli.errors import BadConfig, BadData, UsageError
from offline_cli.playing.evaluate import evaluate
from offline_cli.playing.plan import ROUND, EvaluationPlan
from offline_cli.playing.returns import play
from offline_cli.playing.slots import Purpose
from offline_cli.policies.piped_policy import PlaySpec
from offline_cli.recording.record import record
from offline_cli.training.train import train_bc

ENV = "recording_envs:Count-v0"
FILTER: dict[str, Any] = {"name": "mean_std_filter"}
STACK: dict[str, Any] = {"name": "frame_stacking", "num_frames": 4}
MANNERS = [{"num_envs": 1}, {"num_envs": 37}, pytest.param({"num_envs": 3, "num_env_runners": 2}, marks=pytest.mark.nightly)]
pytestmark = pytest.mark.filterwarnings("ignore:.*missing AutoresetMode metadata")


def figures(run: Any, env: str, **options: Any) -> dict[str, Any]:
    return evaluate(run, env=env, device="cpu", **options).as_dict()


# ---- any number of slots and runners ----


@pytest.mark.parametrize("manner", MANNERS, ids=lambda manner: "-".join(map(str, manner.values())))
@pytest.mark.parametrize("explore", [False, True], ids=["greedy", "explore"])
@pytest.mark.parametrize(
    ("env", "pieces", "episodes"),
    [(ENV, (), 40), ("CartPole-v1", (), 2 * ROUND + 9), (ENV, (FILTER, STACK), 40)],
    ids=["sync", "own class", "pieces"],
)
def test_slots_and_runners_do_not_matter(
    env: str,
    pieces: Any,
    episodes: int,
    explore: bool,
    manner: dict[str, int],
    run_folder: Callable[..., Path],
    run_through_pieces: Callable[..., str],
) -> None:
    run = run_through_pieces(*pieces, env=env) if pieces else run_folder(env)
    options: dict[str, Any] = {"episodes": episodes, "explore": explore, "seed": 3}
    assert figures(run, env, **options, **manner) == figures(run, env, **options)


@pytest.mark.parametrize("explore", [False, True], ids=["greedy", "explore"])
def test_slots_do_not_matter_to_a_policy_with_memory(explore: bool) -> None:
    from recording_pieces import memory

    options: dict[str, Any] = {"seed": 1, "purpose": Purpose.EVALUATE, "explore": explore, "pieces": PlaySpec()}
    with open_environment(ENV) as environment:
        found = [play(memory, environment, 30, num_envs=slots, **options) for slots in (16, 1, 7)]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].returns, other.returns)
        np.testing.assert_array_equal(found[0].lengths, other.lengths)


def test_drawn_actions_of_an_episode_do_not_depend_on_how_many_are_played(run_folder: Callable[..., Path]) -> None:
    from recording_pieces import careless

    options: dict[str, Any] = {"seed": 1, "purpose": Purpose.EVALUATE, "explore": True}
    with open_environment(ENV) as environment:
        few, many = (play(careless, environment, episodes, **options) for episodes in (20, 50))
    assert few.returns.tolist() == many.returns[:20].tolist()


@pytest.mark.parametrize("way", ["sync", "vector_entry_point"])
def test_runners_share_all_episodes_and_each_plays_its_own(way: str) -> None:
    for runners, episodes in itertools.product((1, 2, 3, 5), (1, ROUND, ROUND + 1, 3 * ROUND, 5 * ROUND - 7)):
        plan = EvaluationPlan("Any-v0", {}, (), "run", False, 0, way, 16, runners, "cpu", episodes=episodes)
        shares = [plan.indices(runner, np.arange(plan.share(runner))) for runner in range(runners)]
        assert sorted(np.concatenate(shares).tolist()) == list(range(episodes))


# ---- ways in which an own vector class resets itself ----


@pytest.mark.parametrize("way", ["NextStep", "SameStep", "Disabled"])
def test_an_own_class_is_evaluated_whatever_way_it_resets_itself(way: str, run_folder: Callable[..., Path]) -> None:
    env = f"recording_envs:Own{way}-v0"
    lengths = 1 + np.arange(6)  # of the first episode of each slot
    told = evaluate(run_folder(ENV), env=env, episodes=6, device="cpu")
    assert told.length_mean == lengths.mean()
    assert told.return_mean == (lengths * (lengths + 1) / 2).mean()
    assert told.return_max == 21


@pytest.mark.parametrize("way", ["NextStep", "SameStep", "Disabled"])
def test_training_checks_an_own_class_whatever_way_it_resets_itself(way: str, tmp_path: Path) -> None:
    env = f"recording_envs:Own{way}-v0"
    record(env, tmp_path / "D", policy="random", episodes=6, vectorize="vector_entry_point", num_envs=3, device="cpu")
    options: dict[str, Any] = {"updates": 4, "eval_every": 2, "eval_episodes": 5, "batch_size": 16, "device": "cpu"}
    told = train_bc(str(tmp_path / "D"), tmp_path / "run", env=env, **options)
    lengths = 1 + np.arange(5)
    assert told.eval_return_mean == (lengths * (lengths + 1) / 2).mean()


# ---- what goes wrong ----


@pytest.mark.parametrize("runners", [0, pytest.param(2, marks=pytest.mark.integration)])
def test_an_environment_that_raises_is_named_with_its_episode_and_seed(runners: int, run_folder: Callable[..., Path]) -> None:
    run = run_folder(ENV)
    with pytest.raises(BadData, match="the environment raised SystemExit") as caught:
        evaluate(run, env="python:recording_envs:exits", episodes=40, num_env_runners=runners, device="cpu")
    assert caught.value.where.startswith("python:recording_envs:exits, episode")
    assert "its seed was" in caught.value.fix


@pytest.mark.nightly
@pytest.mark.parametrize("runners", [0, 1])
def test_a_step_that_takes_longer_than_it_may_ends_an_evaluation(runners: int, run_folder: Callable[..., Path]) -> None:
    run = run_folder(ENV)
    with pytest.raises(BadData, match=r"longer than --step-timeout 0\.5 s") as caught:
        options: dict[str, Any] = {"num_env_runners": runners, "step_timeout": 0.5, "device": "cpu"}
        evaluate(run, env="python:recording_envs:dawdles", episodes=3, **options)
    assert "episode" in caught.value.where


@pytest.mark.integration
def test_a_runner_that_dies_ends_an_evaluation_which_nothing_resumes(
    run_folder: Callable[..., Path], pipeline_file: Callable[..., str]
) -> None:
    dying = pipeline_file({"use": "recording_pieces:Dying"}, kind="env_to_module")
    with pytest.raises(BadData, match="ended with exit code 9") as caught:
        evaluate(run_folder(ENV), env=ENV, episodes=40, num_env_runners=1, env_to_module=dying, device="cpu")
    assert caught.value.fix == "--num-env-runners 0 shows what happens"


def test_numbers_of_slots_and_runners_that_make_no_sense_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--step-timeout 0 .*--num-envs 0.*--num-env-runners -1"):
        evaluate(tmp_path, num_envs=0, num_env_runners=-1, step_timeout=0)


def test_pieces_that_no_runner_can_get_are_refused(run_folder: Callable[..., Path]) -> None:
    from recording_pieces import scaled

    with pytest.raises(BadConfig, match="no other process can get"):
        evaluate(run_folder(ENV), env=ENV, num_env_runners=1, env_to_module=lambda env: scaled(env))


def test_infos_that_no_dataset_could_hold_do_not_matter(run_folder: Callable[..., Path]) -> None:
    assert evaluate(run_folder(ENV), env="python:recording_envs:handles", episodes=40, device="cpu").episodes == 40


@pytest.mark.integration
def test_the_command_takes_slots_and_runners(run_folder: Callable[..., Path], child_env: dict[str, str]) -> None:
    command = [
        sys.executable,
        "-m",
        "offline_cli",
        "evaluate",
        str(run_folder(ENV)),
        "--env",
        ENV,
        "--episodes",
        "20",
        "--json",
    ]
    shared = ["--num-envs", "3", "--num-env-runners", "2", "--step-timeout", "60", "--device", "cpu"]
    told = [
        subprocess.run([*command, *more], env=child_env, capture_output=True, text=True, check=True) for more in ([], shared)
    ]
    assert json.loads(told[0].stdout) == json.loads(told[1].stdout)
    assert json.loads(told[0].stdout)["episodes"] == 20
