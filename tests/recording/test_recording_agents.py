"""Games of several agents: what is recorded of each agent, and that nothing but the seed decides it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli.datasets.dataset import open_dataset
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, MissingPackage
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.policy import reset_seed as environment_seed
from offline_cli.recording.record import record
from offline_cli.training.train import train

WALKERS, HEAP = "python:agent_games:Walkers", "python:agent_games:Heap"
EXPERTS = {WALKERS: "python:agent_games:walk", HEAP: "python:agent_games:leave_four"}
Read = Callable[[Path], EpisodeBatch]
Same = Callable[[EpisodeBatch, EpisodeBatch], None]


def played(out: Path, env: str = WALKERS, games: int = 12, **options: Any) -> Path:
    record(env, out, **{"policy": EXPERTS.get(env, EXPERTS[WALKERS]), "episodes": games, "device": "cpu", **options})
    return out


def own_loop(env: str, games: int, seed: int = 0) -> list[dict[str, float]]:
    """The return of each agent, as PettingZoo's own loops sum it up."""
    module = importlib.import_module("agent_games")
    made, expert = getattr(module, env.rpartition(":")[2])(), getattr(module, EXPERTS[env].rpartition(":")[2])
    returns: list[dict[str, float]] = []
    for game in range(games):
        sums: dict[str, float] = {}
        if env == HEAP:
            made.reset(seed=environment_seed(seed, game))
            for agent in made.agent_iter():
                observation, reward, terminated, truncated, _ = made.last()
                sums[agent] = sums.get(agent, 0.0) + reward
                made.step(None if terminated or truncated else expert(observation))
        else:
            seen, _ = made.reset(seed=environment_seed(seed, game))
            while made.agents:
                seen, rewards, *_ = made.step({agent: expert(seen[agent]) for agent in made.agents})
                for agent, reward in rewards.items():
                    sums[agent] = sums.get(agent, 0.0) + reward
        returns.append(sums)
    return returns


def by_game(batch: EpisodeBatch) -> list[dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for game, agent, value in zip(batch.multi_agent_ids or (), batch.agent_ids or (), batch.returns.tolist(), strict=True):
        found.setdefault(str(game), {})[str(agent)] = value
    return list(found.values())


@pytest.mark.parametrize("env", [WALKERS, HEAP])
def test_the_returns_of_agents_are_those_of_pettingzoos_own_loop(env: str, tmp_path: Path, read: Read) -> None:
    found, wanted = by_game(read(played(tmp_path / "D", env))), own_loop(env, 12)
    assert [game.keys() for game in found] == [game.keys() for game in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other)


def test_an_agents_episode_is_what_it_was_shown_with_its_own_end(tmp_path: Path, read: Read) -> None:
    batch = read(played(tmp_path / "D", games=30))
    last = batch.obs_starts[1:] - 1
    there = np.isclose(batch.obs[last, 0], batch.obs[last, 1])
    np.testing.assert_array_equal(batch.terminated, there)
    np.testing.assert_array_equal(batch.truncated, ~there)
    assert set(there.tolist()) == {True, False}
    before, after = batch.acted_obs()[:, 0], batch.next_obs()[:, 0]
    np.testing.assert_allclose(10 * (after - before), np.clip(batch.actions - 1, -1 - 10 * (before + 1), None), atol=1e-5)
    late = np.array([agent == "helper" for agent in batch.agent_ids or ()])
    first = batch.obs[batch.obs_starts[:-1], 2] * 20
    np.testing.assert_allclose(first, np.where(late, 3, 0), atol=1e-5)
    assert 0 < late.sum() < 30


def test_the_module_of_an_agent_is_itself_where_each_has_a_policy_and_one_where_all_share_it(
    tmp_path: Path, read: Read
) -> None:
    each = ["left=python:agent_games:walk", "*r*=python:agent_games:stay"]
    batch = read(played(tmp_path / "A", policy=["left=python:agent_games:walk", *each[1:]]))
    assert batch.module_ids == batch.agent_ids
    right = np.repeat([agent != "left" for agent in batch.agent_ids or ()], batch.lengths)
    assert set(batch.actions[right].tolist()) == {1}
    assert set(read(played(tmp_path / "B")).module_ids or ()) == {"default_policy"}


@pytest.mark.parametrize(("format", "failing"), [("episodes", 11), ("columns", 20)])
def test_an_interrupted_recording_is_resumed_to_the_same_data(
    failing: int, format: str, tmp_path: Path, read: Read, same: Same, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"format": format, "max_rows_per_file": 4 if format == "episodes" else 30}
    whole, out = read(played(tmp_path / "A", **options)), tmp_path / "B"
    write, written = DatasetWriter.write, 0

    def failed(self: Any, batch: EpisodeBatch) -> None:
        nonlocal written
        for number in range(len(batch)):
            if written == failing:
                raise RuntimeError("the lamp fell over")
            written += 1
            write(self, batch.select(slice(number, number + 1)))

    with monkeypatch.context() as patched:
        patched.setattr(DatasetWriter, "write", failed)
        with pytest.raises(RuntimeError):
            played(out, **options)
    assert (out / "data").exists()
    played(out, resume=True, **options)
    same(whole, read(out))
    names = [sorted((tmp_path / where / "data").glob("*.parquet")) for where in "AB"]
    assert [file.read_bytes() for file in names[0]] == [file.read_bytes() for file in names[1]]


def test_what_is_whole_is_kept_where_the_environment_raises(tmp_path: Path, read: Read) -> None:
    with pytest.raises(BadData, match="the field is flooded") as caught:
        played(tmp_path / "D", env_kwargs={"fail_at": 17}, num_envs=1, games=40, seed=1)
    assert "reset seed" in caught.value.fix
    assert open_dataset(str(tmp_path / "D")).manifest.complete is False
    for found, wanted in zip(by_game(read(tmp_path / "D")), own_loop(WALKERS, 7, seed=1), strict=True):
        assert found == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("rule", "named"),
    [("leaves", "terminated or truncated"), ("unknown", "stranger"), ("unseen", "observation")],
)
def test_an_environment_that_breaks_a_rule_of_pettingzoo_is_named(rule: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=named):
        played(tmp_path / "D", "python:agent_games:Strange", env_kwargs={"rule": rule})


@pytest.mark.parametrize(
    ("env", "policy", "said"),
    [
        (WALKERS, ["left=random"], "no policy for right, helper"),
        (WALKERS, ["left=random", "up=random", "right=random"], "no agent has this name; the agents are left, right, helper"),
        ("CartPole-v1", ["a=random", "b=random"], "has a single agent"),
    ],
)
def test_policies_that_do_not_fit_the_agents_are_a_mistake(env: str, policy: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadConfig) as caught:
        played(tmp_path / "D", env, policy=policy)
    assert said in str(caught.value)
    assert not (tmp_path / "D").exists()


UNLIKE = "python:agent_games:Unlike"


def test_agents_of_other_spaces_are_recorded_apart_each_with_its_own_and_learned_and_measured(
    tmp_path: Path, read: Read
) -> None:
    out = tmp_path / "D"
    told = record(UNLIKE, out, policy="random", episodes=6, device="cpu", seed=2)
    assert told.datasets == [str(out / "left"), str(out / "right")]
    kinds = {name: read(out / name) for name in ("left", "right")}
    assert {name: batch.obs.shape[1] for name, batch in kinds.items()} == {"left": 3, "right": 4}
    assert {name: set(batch.agent_ids or ()) for name, batch in kinds.items()} == {
        "left": {"left"},
        "right": {"right", "helper"},
    }
    assert told.episodes == sum(map(len, kinds.values()))
    returns = [sum(map(float, batch.rewards)) for batch in kinds.values()]
    assert told.return_mean == pytest.approx(sum(returns) / told.episodes)
    train(out / "left", tmp_path / "run", updates=2, hidden=(8,), device="cpu")
    found = evaluate("random", env=UNLIKE, policy=[f"left={tmp_path / 'run'}"], episodes=3, device="cpu")
    assert set(found.return_by_agent) >= {"left", "right"}


def test_agents_of_other_spaces_are_resumed_to_the_same_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"policy": "random", "num_envs": 2, "max_rows_per_file": 2}
    played(tmp_path / "A", UNLIKE, **options)
    write, written = DatasetWriter.write, 0

    def failed(self: Any, batch: EpisodeBatch) -> None:
        nonlocal written
        for number in range(len(batch)):
            if written == 16:
                raise RuntimeError("the lamp fell over")
            written += 1
            write(self, batch.select(slice(number, number + 1)))

    with monkeypatch.context() as patched:
        patched.setattr(DatasetWriter, "write", failed)
        with pytest.raises(RuntimeError):
            played(tmp_path / "B", UNLIKE, **options)
    for _ in range(2):  # the second time there is nothing left to do
        played(tmp_path / "B", UNLIKE, resume=True, **options)
        for kind in ("left", "right"):
            files = [sorted((tmp_path / where / kind / "data").iterdir()) for where in "AB"]
            assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]


def test_without_pettingzoo_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pettingzoo", "agent_games"):
        monkeypatch.setitem(importlib.sys.modules, name, None)  # type: ignore[attr-defined]
    with pytest.raises(MissingPackage) as caught:
        record("python:pettingzoo:parallel_env", tmp_path / "D", policy="random", episodes=1)
    assert caught.value.fix == "pip install 'offline-cli[pettingzoo]'"


@pytest.mark.parametrize("name", ["tictactoe_v3:env", "rps_v2:parallel_env"])
def test_real_games_of_pettingzoo_have_the_returns_of_its_own_loop(name: str, tmp_path: Path, read: Read) -> None:
    pytest.importorskip("pygame", reason="games of PettingZoo draw with pygame")
    module, make = name.split(":")
    policy = "python:agent_games:first_legal" if module == "tictactoe_v3" else "python:agent_games:stay"
    batch = read(played(tmp_path / "D", f"python:pettingzoo.classic.{name}", games=3, policy=policy))
    made = getattr(importlib.import_module(f"pettingzoo.classic.{module}"), make)()
    sums = dict.fromkeys(made.possible_agents, 0.0)
    if make == "env":
        made.reset(seed=environment_seed(0, 0))
        for agent in made.agent_iter():
            observation, reward, terminated, truncated, _ = made.last()
            sums[agent] += reward
            made.step(None if terminated or truncated else int(np.argmax(observation["action_mask"])))
    else:
        made.reset(seed=environment_seed(0, 0))
        while made.agents:
            for agent, reward in made.step(dict.fromkeys(made.agents, 1))[1].items():
                sums[agent] += reward
    assert by_game(batch) == [sums] * 3
    assert batch.truncated.all() == (make == "parallel_env")
