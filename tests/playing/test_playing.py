"""Playing: exactly the first N episodes, each with its own seed and to its own end."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from offline_cli.environments import open_environment
from offline_cli.errors import BadData
from offline_cli.modules.policy_modules import build_module
from offline_cli.modules.rl_module import RLModule
from offline_cli.playing.returns import Played, play
from offline_cli.policies.policy import Purpose, reset_seed


def policy_for(name: str) -> RLModule:
    env = gym.make(name)
    scale = "env"
    return build_module(env.observation_space, env.action_space, hidden=[8], action_scale=scale)


def lengths_by_hand(count: int, seed: int) -> list[int]:
    return [int(np.random.default_rng(reset_seed(seed, i, Purpose.EVALUATE)).integers(5, 25)) for i in range(count)]


def test_exactly_the_first_n_started_count_each_with_its_own_seed(seeds: list[int | None]) -> None:
    env = open_environment("Sign-v0")
    played = play(policy_for("Sign-v0"), env, 50, seed=3, purpose=Purpose.EVALUATE)
    assert played.lengths.tolist() == lengths_by_hand(50, 3)
    assert sorted(filter(None, seeds)) == sorted(reset_seed(3, index, Purpose.EVALUATE) for index in range(50))


@pytest.mark.parametrize(("name", "explore"), [("CartPole-v1", True), ("Sign-v0", False)])
def test_the_same_seed_gives_the_same_episodes(name: str, explore: bool) -> None:
    module = policy_for(name)
    one, two, other = (
        play(module, open_environment(name), 12, seed=seed, purpose=Purpose.EVALUATE, explore=explore) for seed in (1, 1, 2)
    )
    assert one.returns.tolist() == two.returns.tolist()
    assert one.returns.tolist() != other.returns.tolist()


def test_no_two_purposes_share_a_seed() -> None:
    drawn = [{reset_seed(0, index, purpose) for index in range(5000)} for purpose in Purpose]
    assert sum(map(len, drawn)) == len(set().union(*drawn))
    assert all(0 <= seed < 2**31 for seeds in drawn for seed in seeds)


def test_the_interval_is_that_of_the_mean() -> None:
    played = Played(np.array([1.0, 3.0]), np.array([1, 1]))
    assert (played.mean, played.std) == (2.0, pytest.approx(np.sqrt(2)))
    assert played.ci95 == pytest.approx(1.96)
    assert Played(np.array([5.0]), np.array([2])).ci95 is None


@pytest.mark.parametrize("name", ["Numberless-v0", "Misshapen-v0"])
def test_what_an_environment_says_is_checked(name: str) -> None:
    with pytest.raises(BadData) as caught:
        play(policy_for(name), open_environment(name), 3, seed=0, purpose=Purpose.EVALUATE)
    assert caught.value.where.startswith(f"{name}, episode 0")
