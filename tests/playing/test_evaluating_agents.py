"""`evaluate` in environments of several agents: who plays what, and the returns of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offline_cli.environments import open_environment
from offline_cli.errors import BadConfig, BadData, OfflineCliError, SpaceMismatch
from offline_cli.playing.evaluate import evaluate
from offline_cli.playing.returns import play
from offline_cli.policies.policy import Purpose, RandomPolicy, stand_in
from offline_cli.policies.run_policy import load_policy
from offline_cli.recording.record import record
from offline_cli.training.train import train

WALKERS = "python:agent_games:Walkers"
HEAP = "python:agent_games:Heap"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Games of three agents, each by a module of its own."""
    folder = tmp_path_factory.mktemp("games") / "D"
    policies = [f"{agent}=python:agent_games:walk" for agent in ("left", "right", "helper")]
    record(WALKERS, folder, policy=policies, episodes=20, device="cpu")
    return folder


@pytest.fixture(scope="module")
def runs(data: Path) -> dict[str, Path]:
    """A run for the module of the one that is there first, and one for that of the one that comes later."""
    options: dict[str, Any] = {"hidden": (16,), "batch_size": 64, "updates": 60, "device": "cpu"}
    for module in ("left", "helper"):
        train(data, data.parent / module, module_id=module, **options)
    return {module: data.parent / module for module in ("left", "helper")}


@pytest.fixture(scope="module")
def run(runs: dict[str, Path]) -> Path:
    return runs["left"]


def found(run: Path | str, **options: Any) -> dict[str, Any]:
    told = evaluate(run, **{"env": WALKERS, "episodes": 12, "device": "cpu", **options}).as_dict()
    return {name: value for name, value in told.items() if name not in ("seconds",)}


def test_each_agent_may_play_by_a_run_of_its_own(runs: dict[str, Path]) -> None:
    alone = found(runs["left"])
    told = found(runs["left"], policy=[f"helper={runs['helper']}"])
    assert told["return_by_agent"]["left"] == alone["return_by_agent"]["left"]
    assert told["return_by_agent"]["helper"] != alone["return_by_agent"]["helper"]


def test_a_run_of_one_agent_that_plays_all_of_them_is_noted(run: Path) -> None:
    (note,) = found(run, episodes=2)["notes"]
    assert all(one in note for one in (str(run), "left", "right", "helper", "--policy"))
    assert "notes" not in found(run, episodes=2, policy=["*=random", f"left={run}"])


def test_outputs_that_policies_do_not_share_are_noted_only_where_they_would_be_recorded(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policies = ["*=random", f"left={run}"]
    evaluate(run, env=WALKERS, policy=policies, episodes=2, device="cpu")
    assert not caplog.records
    record(WALKERS, tmp_path / "games", policy=policies, episodes=2, device="cpu")
    assert ["action_logp" in one.getMessage() for one in caplog.records] == [True]


def test_a_return_is_the_sum_over_agents_of_a_game(run: Path) -> None:
    told = found(run, episodes=40)
    assert set(told["return_by_agent"]) == {"left", "right", "helper"}
    assert told["return_by_agent"]["left"]["games"] == 40
    assert 0 < told["return_by_agent"]["helper"]["games"] <= 40
    total = sum(one["return_mean"] * one["games"] for one in told["return_by_agent"].values())
    assert told["return_mean"] == pytest.approx(total / 40)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"env": "CartPole-v1", "policy": ["left=random"]}, BadConfig),
        ({"env": HEAP}, SpaceMismatch),
        ({"policy": ["up=random"]}, BadConfig),
        ({"env_to_module": [{"name": "mean_std_filter"}]}, OfflineCliError),
    ],
)
def test_what_cannot_be_played_is_named(options: dict[str, Any], kind: type[OfflineCliError], run: Path) -> None:
    with pytest.raises(kind):
        found(run, **options)


def test_a_reward_that_is_no_number_is_not_taken_for_an_absent_agent(run: Path) -> None:
    with pytest.raises(BadData):
        found(run, env="python:agent_games:Strange", env_kwargs={"rule": "nan"})


def test_one_learned_agent_is_checked_in_its_game_beside_the_policies_of_the_others(run: Path) -> None:
    how: dict[str, Any] = {"seed": 0, "purpose": Purpose.EVALUATE, "num_envs": 12}
    with open_environment(WALKERS) as game:
        assert game.agents is not None
        others = {agent: RandomPolicy(stand_in(agent, spaces)) for agent, spaces in game.agents.items()}
        checked = play(load_policy(run).module, game, 12, agent="left", others=others, **how).of_agent("left")
    measured = found("random", policy=[f"left={run}"], num_envs=12)["return_by_agent"]["left"]
    assert (len(checked.returns), checked.mean, checked.std) == (
        measured["games"],
        measured["return_mean"],
        measured["return_std"],
    )


def test_a_run_is_not_measured_among_several_agents_without_saying_which_one_it_learns(data: Path, tmp_path: Path) -> None:
    with pytest.raises(BadConfig) as caught:
        train(data, tmp_path / "run", module_id="left", updates=2, device="cpu", env=WALKERS)
    assert caught.value.where == "--env"
