"""Estimates against values that are known exactly: ModelWin (Thomas and Brunskill 2016), and a gridworld as a table."""

from __future__ import annotations

import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from corridor_walks import walks
from scipy import stats
from tables import Array, Table, run_of

from offline_cli import write_dataset
from offline_cli.estimating.estimators import OF_WEIGHTS, Episodes, Values, distribution_free, estimated, estimates, kish
from offline_cli.estimating.evaluate_offline import evaluate_offline
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


@pytest.mark.parametrize(
    ("sets", "count", "draws", "least", "most", "least_free"),
    [
        pytest.param(60, 25_000, 200, 50, 60, 57, marks=pytest.mark.integration),
        pytest.param(400, 40_000, 1000, 364, 393, 380, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("target", [0.27, 0.73])
def test_intervals_hold_the_value_at_500_effective_samples(
    target: float, sets: int, count: int, draws: int, least: int, most: int, least_free: int
) -> None:
    usual, free = covered(sets, count, target, draws)
    assert all(least <= count <= most for count in usual.values()), usual
    assert all(count >= least_free for count in free.values()), free


@pytest.mark.parametrize(("target", "wanted"), [(0.27, 0.92), (0.73, -0.92)])
def test_values_of_model_win_are_found(target: float, wanted: float) -> None:
    episodes, values = model_win(np.random.default_rng(0), 20_000, 0.5, target)
    found = estimates(episodes, ("wis", "pdis", "wpdis", "dr", "wdr"), values)
    assert {name: one.value for name, one in found.items()} == pytest.approx(dict.fromkeys(found, wanted), abs=0.3)
    assert found["dr"].value == pytest.approx(wanted, abs=0.1)
    assert episodes.effective_samples == pytest.approx(20_000 / 1.2116**20, rel=0.5)


def test_policies_far_apart_have_about_9_effective_samples_in_100_000() -> None:
    episodes, _ = model_win(np.random.default_rng(0), 100_000, 0.27, 0.73)
    assert 2 < episodes.effective_samples < 30


def rounds() -> Table:
    """ModelWin as a table: three states in each round."""
    moves = np.zeros((31, 2, 31))
    for first in range(0, 30, 3):
        moves[first, :, first + 1 : first + 3] = [[0.4, 0.6], [0.6, 0.4]]
        moves[first + 1 : first + 3, :, first + 3] = 1
    moves[30, :, 30] = 1
    rewards = np.zeros_like(moves)
    rewards[:30:3] = np.tile([0.0, 1.0, -1.0], 11)[:31]
    return Table(moves, rewards, np.eye(31)[0], living=30)


def always(chance: float) -> Array:
    """(S, A) the first action has that probability in all states of `rounds`."""
    return np.tile([chance, 1 - chance], (31, 1))


@pytest.mark.parametrize("target", [0.27, 0.73])
def test_the_direct_method_is_near_the_value_of_model_win(target: float, tmp_path: Path) -> None:
    walks = rounds().recorded(always(0.5), 2000, 0)
    write_dataset(walks, tmp_path / "walks")
    found = evaluate_offline(run_of(always(target), walks, tmp_path), tmp_path / "walks", explore=True, estimators=("dm",))
    assert rounds().value(always(target)) == pytest.approx(value(target))
    assert found.estimates["dm"]["value"] == pytest.approx(value(target), abs=0.2)


def test_policies_far_apart_are_refused(tmp_path: Path) -> None:
    walks = rounds().recorded(always(0.27), 2000, 0)
    write_dataset(walks, tmp_path / "walks")
    found = evaluate_offline(run_of(always(0.73), walks, tmp_path), tmp_path / "walks", explore=True)
    assert {name: one["reliable"] for name, one in found.estimates.items()} == dict.fromkeys(OF_WEIGHTS, False)
    assert found.estimates["wis"]["effective_samples"] < 50


@pytest.fixture(scope="module")
def lake() -> tuple[float, Episodes, Values]:
    """A slippery gridworld with 1 at its goal alone: the value of a policy, recordings of another one, and the exact Q."""
    moves, rewards = np.zeros((17, 4, 17)), np.zeros((17, 4, 17))
    moves[16, :, 16] = 1
    for state, actions in gym.make("FrozenLake-v1").unwrapped.P.items():  # type: ignore[attr-defined]
        for action, reached in actions.items():
            for chance, after, reward, ends in reached:
                moves[state, action, 16 if ends else after] += chance
                rewards[state, action, 16 if ends else after] += reward
    table, played = Table(moves, rewards, np.eye(17)[0], living=16), np.full((17, 4), 0.25)
    target = 0.8 * played + 0.2 * table.optimal()
    found = table.recorded(played, 4000, 0)
    states, after = np.delete(found.obs, found.obs_starts[1:] - 1), np.delete(found.obs, found.obs_starts[:-1])
    logp = (np.log(one[states, found.actions]) for one in (target, played))
    q = table.q(target)
    v = (q * target).sum(1)
    values = Values(np.full((1, 4000), v[0]), np.zeros(4000, np.int64), q[states, found.actions], v[after])
    return table.value(target), Episodes(found.lengths, found.rewards, *logp), values


def test_the_true_q_makes_doubly_robust_vary_less_than_importance_sampling(lake: tuple[float, Episodes, Values]) -> None:
    exact, episodes, values = lake
    found = estimates(episodes, ("is", "dr"), values)
    spread = {name: float(one.features.std()) for name, one in found.items()}
    assert spread["dr"] < spread["is"]
    assert found["dr"].value == pytest.approx(exact, abs=4 * spread["dr"] / 4000**0.5)


def test_per_decision_is_whole_episodes_where_one_reward_comes_at_the_end(lake: tuple[float, Episodes, Values]) -> None:
    found = estimates(lake[1], OF_WEIGHTS)
    assert found["pdis"].value == pytest.approx(found["is"].value, abs=1e-12)
    assert found["is"].value > 0


def test_an_ended_episode_keeps_its_weight_in_later_steps() -> None:
    episodes = Episodes(np.array([1, 2]), np.array([0.0, 0.0, 6.0]), np.log([0.5, 0.25, 0.5]), np.log([0.25, 0.5, 0.5]))
    assert estimates(episodes, ("wpdis",))["wpdis"].value == pytest.approx(6 * 0.5 / (2 + 0.5))


def test_rewards_are_discounted_by_their_step() -> None:
    episodes = Episodes(np.array([3]), np.array([1.0, 1.0, 1.0]), np.zeros(3), np.zeros(3), gamma=0.5)
    assert {name: one.value for name, one in estimates(episodes, OF_WEIGHTS).items()} == dict.fromkeys(OF_WEIGHTS, 1.75)


def test_weights_are_clipped() -> None:
    episodes = Episodes(np.array([1, 1]), np.array([1.0, 1.0]), np.log([0.9, 0.1]), np.log([0.1, 0.1]), clip=3.0)
    assert estimates(episodes, ("is",))["is"].value == pytest.approx(2.0)


def of_walks(played: float, target: float, seed: int, **how: float) -> Episodes:
    """2,000 walks to the right with the probability `played`, for a policy with the probability `target`."""
    batch = walks(2000, seed, right=played)
    wanted, logp = np.log(np.where(batch.actions, target, 1 - target)), batch.extra["action_logp"]
    return Episodes(batch.lengths, batch.rewards, wanted, np.asarray(logp, np.float64), **how)


@pytest.mark.parametrize(
    ("played", "target", "clip", "reliable"), [(0.5, 0.4, 1, 0), (0.5, 0.4, 1.5, 0), (0.7, 0.6, 2, 0), (0.5, 0.4, 3, 10)]
)
def test_the_low_end_of_a_reliable_clipped_estimate_is_below_the_value(
    played: float, target: float, clip: float, reliable: int
) -> None:
    value = walks(100_000, 99, right=target).returns.mean()
    found = [estimated(of_walks(played, target, seed, clip=clip), ("wis",), None, 0, ())[1]["wis"] for seed in range(10)]
    assert sum(one["reliable"] for one in found) == reliable  # no weight is above 1.2 ** 6
    assert sum(one["low"] > value for one in found if one["reliable"]) <= 1


def test_doubly_robust_estimates_of_episodes_that_were_mostly_cut_are_refused() -> None:
    episodes = of_walks(0.5, 0.4, 0)
    ends, taken = episodes.starts + 5, np.zeros(12_000)
    values = [Values(np.full((1, 2000), 0.3), np.zeros(2000, np.int64), taken, taken.copy()) for _ in range(2)]
    values[1].after[ends[:1200]] = 0.01  # beyond cuts
    told = [estimated(episodes, ("dr", "wis"), one, 0, ())[1] for one in values]
    assert [{name: one["reliable"] for name, one in each.items()} for each in told] == [
        {"dr": True, "wis": True},
        {"dr": False, "wis": True},
    ]


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


def test_the_interval_of_few_skewed_values_is_the_bca_of_scipy() -> None:
    values = np.random.default_rng(0).exponential(size=50)
    ((low, high),) = bootstrapped([Estimate(values[:, None], lambda means: means[..., 0])], 0, 20_000)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="BCa", rng=1).confidence_interval
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.08 * values.std() / 50**0.5)


@pytest.mark.nightly
def test_estimates_of_100_000_episodes_of_20_steps_take_at_most_10_s(tmp_path: Path) -> None:
    """With reading and 1,000 bootstrap draws."""
    walks = rounds().recorded(always(0.5), 100_000, 0)
    write_dataset(walks, tmp_path / "walks")
    run = run_of(always(0.4), walks, tmp_path)
    start = time.perf_counter()
    found = evaluate_offline(run, tmp_path / "walks", explore=True, estimators=OF_WEIGHTS)
    assert time.perf_counter() - start <= 10
    assert (found.episodes, found.steps) == (100_000, 2_000_000)
    assert all(one["low"] < value(0.4) < one["high"] for one in found.estimates.values())
