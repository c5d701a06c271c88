"""Aggregates of scores over tasks and runs, with stratified bootstrap intervals.

Definitions: Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice; equal to the package
rliable's (stored answers: tests/testdata/rliable), which needs arch, absl and seaborn, and as many runs of every task.
`scipy.stats.bootstrap` was looked at: it refuses tasks with a single run. Mann-Whitney's statistic, trimmed means and Wilson's
interval are scipy's.

Scores of one algorithm are a list of arrays (N_t,), the N_t runs of task t; drawn again they are arrays (D, N_t).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, mannwhitneyu, trim_mean

__all__ = ["Interval", "improvement", "interval", "iqm", "iqm_difference", "mean", "median", "profile", "success_rate"]

DRAWS: Final = 10_000
AT_A_TIME: Final = 1 << 20  # scores that are drawn at a time

Array = NDArray[np.float64]
Scores = Sequence[Array]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95% interval; no ends where an algorithm has one run of each task, which has no spread."""

    value: float
    low: float | None
    high: float | None


def mean(scores: Scores) -> Array:
    """Mean over tasks of the means over runs."""
    return np.asarray(np.mean([task.mean(-1) for task in scores], 0))


def median(scores: Scores) -> Array:
    """Median over tasks of the means over runs."""
    return np.asarray(np.median([task.mean(-1) for task in scores], 0))


def iqm(scores: Scores) -> Array:
    """Interquartile mean: of all runs of all tasks, without the lowest and the highest quarter (rounded down)."""
    return np.asarray(trim_mean(np.concatenate(scores, -1), 0.25, axis=-1))


def iqm_difference(scores: Scores, others: Scores) -> Array:
    """Interquartile mean of the scores less that of `others`."""
    return iqm(scores) - iqm(others)


def improvement(scores: Scores, others: Scores) -> Array:
    """Probability that a run of `scores` is better than one of `others` on the same task, averaged over tasks; ties count half.

    It is the Mann-Whitney statistic over the number of pairs.
    """
    pairs = [*zip(scores, others, strict=True)]
    wins = [mannwhitneyu(ours, theirs, axis=-1, method="asymptotic").statistic for ours, theirs in pairs]
    each = [won / (ours.shape[-1] * theirs.shape[-1]) for won, (ours, theirs) in zip(wins, pairs, strict=True)]
    return np.asarray(np.mean(each, 0))


def profile(scores: Scores, thresholds: Array) -> Array:
    """Share of the runs of all tasks whose score is above each threshold (H,): the performance profile."""
    return np.asarray((np.concatenate(scores) > thresholds[:, None]).mean(-1))


def success_rate(scores: Scores, threshold: float) -> Interval:
    """Share of the runs with a score of at least `threshold`, with Wilson's interval (Wilson 1927)."""
    every = np.concatenate(scores) >= threshold
    tested = binomtest(int(every.sum()), len(every))
    limits = tested.proportion_ci(0.95, method="wilson")
    return Interval(float(tested.statistic), float(limits.low), float(limits.high))


def interval(statistic: Callable[..., Array], *every: Scores, seed: int = 0, draws: int = DRAWS) -> Interval:
    """`statistic` of the scores of one or more algorithms, with a percentile interval: runs of each task are drawn again."""
    value, chance, drawn = float(statistic(*every)), np.random.default_rng(seed), []
    if any(all(len(task) < 2 for task in scores) for scores in every):
        return Interval(value, None, None)
    size = max(1, AT_A_TIME // sum(len(task) for scores in every for task in scores))
    for count in (min(size, draws - first) for first in range(0, draws, size)):
        again = [[task[chance.integers(0, len(task), (count, len(task)))] for task in scores] for scores in every]
        drawn.append(statistic(*again))
    low, high = np.quantile(np.concatenate(drawn), (0.025, 0.975))
    return Interval(value, float(low), float(high))
