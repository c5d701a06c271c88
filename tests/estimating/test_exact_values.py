"""Estimates against values that are known exactly: ModelWin (Thomas and Brunskill 2016), and one state with a table of Q."""

from __future__ import annotations

import numpy as np
import pytest

from offline_cli.estimating.estimators import OF_WEIGHTS, Episodes, Values, distribution_free, estimates, kish
from offline_cli.estimating.intervals import Estimate, bootstrapped

L = 20
ALL_OF_WEIGHTS = (*OF_WEIGHTS, "dr", "wdr")


def model_win(chance: np.random.Generator, count: int, behaviour: float, target: float) -> tuple[Episodes, Values]:
    """Ten rounds of two steps: the first action leads to +1 with 0.4 or 0.6, else -1; the second does nothing. With exact Q.

    A policy takes the first action with the probability `behaviour` or `target`.
    """
    others = chance.random((count, L // 2, 2)) >= behaviour
    rewards = np.zeros((count, L // 2, 2))
    rewards[..., 0] = np.where(chance.random((count, L // 2)) < np.where(others[..., 0], 0.6, 0.4), 1, -1)
    played, wanted = (np.log(np.where(others, 1 - p, p)).ravel() for p in (behaviour, target))
    episodes = Episodes(np.full(count, L), rewards.ravel(), wanted, played)
    worth = value(target) / 10  # of a round
    left = np.stack([np.arange(10, 0, -1), np.arange(9, -1, -1)], -1) * worth  # V before each step
    now = np.where(others[..., 0], 0.2, -0.2) + left[:, 1]
    taken = np.stack([now, np.broadcast_to(left[:, 1], now.shape)], -1).ravel()
    after = np.tile(np.append(left.ravel()[1:], 0.0), count)
    return episodes, Values(np.full((1, count), value(target)), np.zeros(count, np.int64), taken, after)


def value(target: float) -> float:
    """Of a policy in ModelWin."""
    return 10 * 0.2 * (1 - 2 * target)


def covered(sets: int, count: int, target: float, draws: int = 1000) -> tuple[dict[str, int], dict[str, int]]:
    """In how many data sets intervals hold the value: bootstrapped, and distribution-free."""
    chance = np.random.default_rng(2026)
    usual, free = dict.fromkeys(ALL_OF_WEIGHTS, 0), dict.fromkeys(("is", "pdis"), 0)
    for number in range(sets):
        episodes, values = model_win(chance, count, 0.5, target)
        made = estimates(episodes, ALL_OF_WEIGHTS, values)
        for name, (low, high) in zip(made, bootstrapped(list(made.values()), number, draws), strict=True):
            usual[name] += low <= value(target) <= high
        for name in free:
            low, high = distribution_free(episodes, name)
            free[name] += low <= value(target) <= high
    return usual, free


def test_intervals_hold_the_value_in_95_of_100_data_sets() -> None:
    usual, free = covered(60, 1300, 0.4, draws=200)
    assert all(count >= 50 for count in usual.values()), usual
    assert all(count >= 57 for count in free.values()), free


@pytest.mark.nightly
@pytest.mark.parametrize("target", [0.27, 0.73])
def test_intervals_hold_the_value_at_500_effective_samples(target: float) -> None:
    usual, free = covered(400, 40_000, target)
    assert all(364 <= count <= 393 for count in usual.values()), usual
    assert all(count >= 380 for count in free.values()), free


@pytest.mark.parametrize(("target", "wanted"), [(0.27, 0.92), (0.73, -0.92)])
def test_values_of_model_win_are_found(target: float, wanted: float) -> None:
    episodes, values = model_win(np.random.default_rng(0), 20_000, 0.5, target)
    found = estimates(episodes, ("wis", "pdis", "wpdis", "dr", "wdr"), values)
    assert {name: one.value for name, one in found.items()} == pytest.approx(dict.fromkeys(found, wanted), abs=0.3)
    assert found["dr"].value == pytest.approx(wanted, abs=0.1)
    assert episodes.effective_samples == pytest.approx(20_000 / 1.2116**20, rel=0.5)


def test_policies_far_apart_have_few_effective_samples() -> None:
    episodes, _ = model_win(np.random.default_rng(0), 20_000, 0.27, 0.73)
    assert episodes.effective_samples < 50


def test_the_true_q_makes_doubly_robust_vary_less() -> None:
    episodes, values = model_win(np.random.default_rng(1), 4000, 0.5, 0.4)
    spread = {name: float(one.features.std()) for name, one in estimates(episodes, ("is", "pdis", "dr"), values).items()}
    assert spread["dr"] < spread["pdis"] < spread["is"]


def test_per_decision_is_whole_episodes_where_one_reward_comes_at_the_end() -> None:
    chance = np.random.default_rng(2)
    lengths = chance.integers(1, 9, 300)
    rewards = np.zeros(lengths.sum())
    rewards[np.cumsum(lengths) - 1] = chance.normal(size=300)
    target, behaviour = np.log(chance.uniform(0.1, 1, (2, lengths.sum())))
    found = estimates(Episodes(lengths, rewards, target, behaviour), OF_WEIGHTS)
    assert found["pdis"].value == pytest.approx(found["is"].value, abs=1e-12)


def test_an_ended_episode_keeps_its_weight_in_later_steps() -> None:
    episodes = Episodes(np.array([1, 2]), np.array([0.0, 0.0, 6.0]), np.log([0.5, 0.25, 0.5]), np.log([0.25, 0.5, 0.5]))
    assert estimates(episodes, ("wpdis",))["wpdis"].value == pytest.approx(6 * 0.5 / (2 + 0.5))


def test_rewards_are_discounted_by_their_step() -> None:
    episodes = Episodes(np.array([3]), np.array([1.0, 1.0, 1.0]), np.zeros(3), np.zeros(3), gamma=0.5)
    assert {name: one.value for name, one in estimates(episodes, OF_WEIGHTS).items()} == dict.fromkeys(OF_WEIGHTS, 1.75)


def test_weights_are_clipped() -> None:
    episodes = Episodes(np.array([1, 1]), np.array([1.0, 1.0]), np.log([0.9, 0.1]), np.log([0.1, 0.1]), clip=3.0)
    assert estimates(episodes, ("is",))["is"].value == pytest.approx(2.0)


def test_equal_weights_count_in_full_and_one_alone_once() -> None:
    assert kish(np.full(7, 1e-200)) == pytest.approx(7)
    assert kish(np.array([1e200, 1.0, 0.0])) == pytest.approx(1)
    assert kish(np.zeros(3)) == 0


@pytest.mark.parametrize("count", [400, 20_000])
def test_an_interval_of_a_mean_is_that_of_the_normal_distribution(count: int) -> None:
    values = np.random.default_rng(3).normal(5, 2, count)
    ((low, high),) = bootstrapped([Estimate(values[:, None], lambda means: means[..., 0])], 0)
    half = 1.96 * values.std() / count**0.5
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.15 * half)
