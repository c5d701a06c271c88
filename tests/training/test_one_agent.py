"""`train --agent`: one agent of a game learns from its own episodes, and is checked in the game beside the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, StorageNotFound, TargetNotMet, UsageError
from offline_cli.playing.evaluate import evaluate
from offline_cli.recording.record import record
from offline_cli.training.train import train, train_bc

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
SEESAW = "python:agent_games:Seesaw"
SMALL: dict[str, Any] = {"hidden": (8,), "batch_size": 32, "device": "cpu"}
PUSH = "mate=python:agent_games:push"


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Games of two agents of different spaces, whose datasets are `games/rider` and `games/mate`."""
    folder = tmp_path_factory.mktemp("seesaw") / "games"
    policies = ["rider=python:agent_games:balance", "mate=random"]
    record(SEESAW, folder, policy=policies, episodes=12, device="cpu")
    return folder


@pytest.fixture
def teams(make_batch: Make) -> EpisodeBatch:
    """Twelve episodes of two agents in turn, who act by one module."""
    return replace(make_batch(), agent_ids=("red", "blue") * 6, module_ids=("shared",) * 12)


def weights(run: Path) -> bytes:
    return (run / "policy.safetensors").read_bytes()


def checked(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "eval_return_mean" in row]


# ---- whose episodes ----


@pytest.mark.parametrize("how", [{}, {"val_fraction": 0.25, "streaming": True}], ids=str)
def test_the_chosen_agent_learns_as_from_a_dataset_of_its_own(
    how: dict[str, Any], teams: EpisodeBatch, write_dataset: Write, tmp_path: Path
) -> None:
    alone = write_dataset(teams.select(range(1, 12, 2)), name="alone")
    chosen = train_bc(write_dataset(teams), tmp_path / "chosen", agent="blue", updates=8, **SMALL, **how)
    train_bc(alone, tmp_path / "run", updates=8, **SMALL, **how)
    assert chosen.episodes == 6
    assert weights(tmp_path / "chosen") == weights(tmp_path / "run")


def test_an_agent_that_is_not_there_is_refused_with_those_that_are(
    teams: EpisodeBatch, write_dataset: Write, tmp_path: Path
) -> None:
    with pytest.raises(BadConfig, match=r"'green'.* red \(6\), blue \(6\)") as caught:
        train_bc(write_dataset(teams), tmp_path / "run", agent="green", updates=2, **SMALL)
    assert "--agent red" in caught.value.fix
    assert not (tmp_path / "run").exists()


def test_data_without_agents_has_none_to_choose(write_dataset: Write, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="12"):
        train_bc(write_dataset(), tmp_path / "run", agent="red", updates=2, **SMALL)


def test_agent_and_module_name_one_selection(make_batch: Make, write_dataset: Write, tmp_path: Path) -> None:
    names = {"agent_ids": ("red", "red", "blue") * 4, "module_ids": ("old", "new", "new") * 4}
    data = write_dataset(replace(make_batch(), **names))
    with pytest.raises(BadConfig, match=r"old \(4\), new \(4\)"):
        train(data, tmp_path / "run", agent="red", updates=2, **SMALL)
    assert train(data, tmp_path / "run", agent="red", module_id="new", updates=2, **SMALL).episodes == 4
    with pytest.raises(BadConfig, match=r"'old'.* new \(4\)"):
        train(data, tmp_path / "other", agent="blue", module_id="old", updates=2, **SMALL)


def test_a_resumed_run_keeps_its_agent_and_takes_no_other(teams: EpisodeBatch, write_dataset: Write, tmp_path: Path) -> None:
    data = write_dataset(teams)
    train_bc(data, tmp_path / "run", agent="red", updates=4, **SMALL)
    with pytest.raises(BadConfig, match=r"red.*blue"):
        train_bc(data, tmp_path / "run", agent="blue", resume=True, updates=8)
    assert train_bc(data, tmp_path / "run", resume=True, updates=8).episodes == 6


# ---- checks in the game ----


def test_checks_measure_the_return_of_the_learned_agent_beside_the_others(games: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {**SMALL, "env": SEESAW, "agent": "rider", "updates": 6, "eval_every": 3, "eval_episodes": 4}
    result = train(games / "rider", tmp_path / "run", policy=[PUSH], **options)
    assert [(row["eval_return_mean"], row["eval_return_std"]) for row in checked(tmp_path / "run")] == [(12.0, 0.0)] * 2
    assert (result.eval_return_mean, result.eval_episodes) == (12.0, 4)
    train(games / "rider", tmp_path / "beside-random", **options)
    assert 0 < checked(tmp_path / "beside-random")[0]["eval_return_mean"] < 12


def test_a_target_for_the_learned_agent_ends_the_run(games: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {**SMALL, "env": SEESAW, "agent": "rider", "updates": 6, "eval_every": 3, "eval_episodes": 4}
    assert train(games / "rider", tmp_path / "run", until_return="rider=11.5", policy=[PUSH], **options).stopped_by == "target"
    with pytest.raises(TargetNotMet):
        train(games / "rider", tmp_path / "other", until_return="rider=11.5", **options)


def test_the_other_agents_may_play_by_runs(games: Path, tmp_path: Path) -> None:
    train(games / "mate", tmp_path / "mate", updates=2, **SMALL)
    options: dict[str, Any] = {**SMALL, "env": SEESAW, "agent": "rider", "updates": 2, "eval_every": 2, "eval_episodes": 4}
    train(games / "rider", tmp_path / "run", policy=[f"mat*={tmp_path / 'mate'}"], **options)
    told = evaluate(tmp_path / "mate", env=SEESAW, policy=[f"rider={tmp_path / 'run'}"], episodes=4, device="cpu")
    assert told.return_by_agent["mate"]["return_mean"] == 400.0
    assert checked(tmp_path / "run")


def test_a_resumed_run_is_the_undisturbed_one_and_code_that_plays_is_named_again(games: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {**SMALL, "env": SEESAW, "agent": "rider", "eval_every": 2, "eval_episodes": 3}
    train(games / "rider", tmp_path / "whole", updates=8, policy=[PUSH], **options)
    train(games / "rider", tmp_path / "cut", updates=4, policy=[PUSH], **options)
    with pytest.raises(BadConfig) as caught:
        train(games / "rider", tmp_path / "cut", updates=8, resume=True, env=SEESAW)
    assert PUSH in caught.value.fix
    train(games / "rider", tmp_path / "cut", updates=8, resume=True, env=SEESAW, policy=[PUSH])
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    assert len(checked(tmp_path / "cut")) == 4


def test_a_run_is_resumed_beside_the_opponents_that_it_was_checked_beside(games: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {**SMALL, "env": SEESAW, "agent": "rider", "eval_every": 2, "eval_episodes": 3}
    train(games / "mate", tmp_path / "mate", updates=2, **SMALL)
    train(games / "rider", tmp_path / "run", updates=4, policy=[f"mate={tmp_path / 'mate'}"], **options)
    train(games / "mate", tmp_path / "mate", updates=2, seed=1, overwrite=True, **SMALL)
    with pytest.raises(BadConfig, match="mate"):
        train(games / "rider", tmp_path / "run", updates=8, resume=True, env=SEESAW)
    assert len(checked(tmp_path / "run")) == 2


def test_games_that_the_learned_agent_took_no_part_in_do_not_count(tmp_path: Path) -> None:
    walkers = "python:agent_games:Walkers"
    record(walkers, tmp_path / "games", policy=["*=random"], episodes=12, device="cpu")
    options: dict[str, Any] = {**SMALL, "env": walkers, "agent": "helper", "updates": 2, "eval_every": 2, "eval_episodes": 40}
    others = [f"{agent}=python:agent_games:walk" for agent in ("left", "right")]  # who may be there before the helper comes
    result = train(tmp_path / "games", tmp_path / "run", policy=others, **options)
    assert result.eval_episodes is not None
    assert 0 < result.eval_episodes < 40


@pytest.mark.parametrize(
    ("options", "kind", "where"),
    [
        ({}, BadConfig, "--env"),
        ({"agent": "nobody"}, BadConfig, "--agent"),
        ({"agent": "rider", "policy": ["up=random"]}, BadConfig, "--policy"),
        ({"agent": "rider", "policy": ["rider=random"]}, BadConfig, "--policy"),
        ({"agent": "rider", "policy": ["mate=nowhere"]}, StorageNotFound, "nowhere"),
        ({"agent": "rider", "policy": ["mate=rllib:x"]}, UsageError, "--policy"),
        ({"agent": "rider", "until_return": "mate=3"}, BadConfig, "--until-return"),
        ({"agent": "rider", "until_return": "rider=much"}, UsageError, "--until-return"),
        ({"agent": "rider", "env": "CartPole-v1", "policy": [PUSH]}, BadConfig, "--policy"),
        ({"policy": [PUSH]}, UsageError, "options"),
    ],
    ids=str,
)
def test_what_cannot_be_checked_is_refused_before_anything_is_written(
    options: dict[str, Any], kind: type[Exception], where: str, games: Path, tmp_path: Path
) -> None:
    with pytest.raises(kind) as caught:
        train(games / "rider", tmp_path / "run", **{**SMALL, "env": SEESAW, "updates": 2, **options})
    assert vars(caught.value)["where"].startswith(where)
    assert not (tmp_path / "run").exists()
