"""Aggregates of scores over tasks and runs, with stratified bootstrap intervals.

Definitions: Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice; equal to the package
rliable's (stored answers: tests/testdata/rliable), which needs arch, absl and seaborn, and as many runs of every task.
`scipy.stats.bootstrap` was looked at: it has no strata. Ranks, trimmed means and Wilson's interval are scipy's.

Scores of one algorithm are a list of arrays (N_t,), the N_t runs of task t; drawn again they are arrays (D, N_t).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, rankdata, trim_mean

__all__ = [
    "DRAWS",
    "Interval",
    "difference",
    "improvement",
    "iqm",
    "mean",
    "median",
    "probability_of_improvement",
    "profile",
    "success_rate",
    "with_interval",
]

DRAWS: Final = 10_000
AT_A_TIME: Final = 1 << 20  # scores that are drawn at a time
ENDS: Final = (0.025, 0.975)

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
    found: Array = _task_means(scores).mean(axis=-1)
    return found


def median(scores: Scores) -> Array:
    """Median over tasks of the means over runs."""
    found: Array = np.median(_task_means(scores), axis=-1)
    return found


def iqm(scores: Scores) -> Array:
    """Interquartile mean: of all runs of all tasks, without the lowest and the highest quarter (rounded down)."""
    found: Array = trim_mean(np.concatenate(list(scores), axis=-1), 0.25, axis=-1)
    return found


def improvement(scores: Scores, others: Scores) -> Array:
    """Probability that a run of `scores` is better than one of `others` on the same task, averaged over tasks; ties count half.

    It is the Mann-Whitney statistic over the number of pairs.
    """
    found = []
    for ours, theirs in zip(scores, others, strict=True):
        count = ours.shape[-1]
        ranks = rankdata(np.concatenate([ours, theirs], axis=-1), axis=-1)[..., :count]
        found.append((ranks.sum(axis=-1) - count * (count + 1) / 2) / (count * theirs.shape[-1]))
    together: Array = np.mean(found, axis=0)
    return together


def profile(scores: Scores, thresholds: Array) -> Array:
    """Share of the runs of all tasks whose score is above each threshold (H,): the performance profile."""
    every = np.sort(np.concatenate(list(scores)))
    shares: Array = 1 - np.searchsorted(every, thresholds, side="right") / len(every)
    return shares


def success_rate(scores: Scores, threshold: float) -> Interval:
    """Share of the runs with a score of at least `threshold`, with Wilson's interval (Wilson 1927)."""
    every = np.concatenate(list(scores)) >= threshold
    tested = binomtest(int(every.sum()), len(every))
    limits = tested.proportion_ci(0.95, method="wilson")
    return Interval(float(tested.statistic), float(limits.low), float(limits.high))


def with_interval(statistic: Callable[[Scores], Array], scores: Scores, *, seed: int = 0, draws: int = DRAWS) -> Interval:
    """`statistic` of the scores, and its percentile interval where the runs of each task are drawn again."""
    return _interval(statistic(scores), [scores], lambda drawn: statistic(drawn[0]), seed, draws)


def probability_of_improvement(scores: Scores, others: Scores, *, seed: int = 0, draws: int = DRAWS) -> Interval:
    """See `improvement`; the runs of both are drawn again, independently."""
    return _interval(improvement(scores, others), [scores, others], lambda drawn: improvement(*drawn), seed, draws)


def difference(
    statistic: Callable[[Scores], Array], scores: Scores, others: Scores, *, seed: int = 0, draws: int = DRAWS
) -> Interval:
    """`statistic` of the scores less that of `others`; the runs of both are drawn again, independently."""
    value = statistic(scores) - statistic(others)
    return _interval(value, [scores, others], lambda drawn: statistic(drawn[0]) - statistic(drawn[1]), seed, draws)


def _interval(
    value: Array, every: Sequence[Scores], statistic: Callable[[Sequence[Scores]], Array], seed: int, draws: int
) -> Interval:
    if any(all(len(task) < 2 for task in scores) for scores in every):
        return Interval(float(value), None, None)
    drawn = np.concatenate([statistic(again) for again in _drawn(every, seed, draws)])
    low, high = np.quantile(drawn, ENDS)
    return Interval(float(value), float(low), float(high))


def _drawn(every: Sequence[Scores], seed: int, draws: int) -> Iterator[Sequence[Scores]]:
    """Runs of each task drawn with replacement, as often as there are; in parts that bound memory."""
    chance = np.random.default_rng(seed)
    size = max(1, AT_A_TIME // sum(task.shape[-1] for scores in every for task in scores))
    for first in range(0, draws, size):
        count = min(size, draws - first)
        yield [[task[chance.integers(0, len(task), (count, len(task)))] for task in scores] for scores in every]


def _task_means(scores: Scores) -> Array:
    found: Array = np.stack([task.mean(axis=-1) for task in scores], axis=-1)
    return found
