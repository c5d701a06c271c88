"""Estimates against exact values of ICU-Sepsis (Choudhary et al. 2024), intensive care as a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offline_cli.estimating.estimators import Episodes, estimates

pytestmark = pytest.mark.nightly
LIVING = 713  # states before the three final ones


@pytest.fixture(scope="module")
def care() -> Any:
    """Transitions (S, A, S), rewards, chances of the first state; the clinicians' and the optimal policy (S, A)."""
    sepsis = pytest.importorskip("icu_sepsis.envs.sepsis").ICUSepsisEnv()
    moves, rewards, first = sepsis._tx_mat, sepsis._r_mat, sepsis._d_0
    clinicians = np.where(sepsis._expert_policy.sum(1, keepdims=True) == 0, 1 / 25, sepsis._expert_policy)
    gains, value = (moves * rewards).sum(-1), np.zeros(len(moves))
    for _ in range(2000):
        q = gains + moves @ value
        q[LIVING:] = 0
        value = q.max(1)
    return moves, rewards, first, clinicians, np.eye(25)[q.argmax(1)]


def value(care: Any, policy: Any) -> float:
    """By linear solve, at gamma 1."""
    moves, rewards, first = care[:3]
    chances = np.einsum("sa,sat->st", policy, moves)[:LIVING, :LIVING]
    gains = np.einsum("sa,sat,sat->s", policy, moves, rewards)[:LIVING]
    return float(first[:LIVING] @ np.linalg.solve(np.eye(LIVING) - chances, gains))


def patients(care: Any, target: Any, seed: int, count: int = 10_000) -> Episodes:
    """Treated by the clinicians."""
    moves, rewards, first, clinicians = care[:4]
    chance, rows = np.random.default_rng(seed), []
    state, who = chance.choice(len(first), count, p=first), np.arange(count)
    while len(state):
        dose = (chance.random((len(state), 1)) > clinicians[state].cumsum(1)).sum(1).clip(max=24)
        after = (chance.random((len(state), 1)) > moves[state, dose].cumsum(1)).sum(1).clip(max=len(first) - 1)
        rows.append(np.stack([who, state, dose, rewards[state, dose, after]], 1))
        state, who = after[after < LIVING], who[after < LIVING]
    steps = np.concatenate(rows)
    steps = steps[np.argsort(steps[:, 0], kind="stable")]
    state, dose = steps[:, 1].astype(int), steps[:, 2].astype(int)
    lengths = np.bincount(steps[:, 0].astype(int))
    return Episodes(lengths, steps[:, 3], np.log(target[state, dose]), np.log(clinicians[state, dose]))


def test_exact_values_are_the_published_ones(care: Any) -> None:
    uniform = np.full_like(care[3], 1 / 25)
    assert [value(care, one) for one in (uniform, care[3], care[4])] == pytest.approx([0.7801, 0.7818, 0.8751], abs=1e-4)


@pytest.mark.parametrize(("share", "error", "least"), [(0.05, 0.015, 1000), (0.2, 0.06, 100)])
def test_weighted_importance_sampling_is_near_the_value(care: Any, share: float, error: float, least: int) -> None:
    target = (1 - share) * care[3] + share * care[4]
    errors, effective = [], []
    for seed in range(20):
        episodes = patients(care, target, seed)
        errors.append(abs(estimates(episodes, ("wis",))["wis"].value - value(care, target)))
        effective.append(episodes.effective_samples)
    assert np.median(errors) <= error
    assert np.median(effective) >= least
