"""Off-policy estimates of a policy's value from E episodes that another policy played.

    is       importance sampling: the whole return times the weight of the whole episode   Precup et al. 2000
    wis      the same, divided by the sum of weights                                       Precup et al. 2000
    pdis     per decision: each reward times the weight of the steps up to it              Precup et al. 2000
    wpdis    the same, divided by the sum of weights of each step                          Thomas 2015, 3.10
    dm       direct method: what a fitted Q says of first observations                     Le et al. 2019
    dr       doubly robust: dm, corrected by pdis of Q's errors                            Jiang and Li 2016
    wdr      weighted doubly robust                                                        Thomas and Brunskill 2016

An episode that has ended stays in a state without rewards, where both policies do the same: it keeps its last weight in the
sums of later steps. (Packages that drop it there, or give it the weight 0, change the estimate with the lengths of episodes.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.sparse import coo_array, hstack

from offline_cli.estimating.intervals import Array, Estimate, bernstein, bootstrapped, ratio

__all__ = ["ALL", "OF_VALUES", "OF_WEIGHTS", "Episodes", "Values", "distribution_free", "estimated", "estimates"]

OF_WEIGHTS: Final = ("is", "wis", "pdis", "wpdis")
OF_VALUES: Final = ("dm", "dr", "wdr")
ALL: Final = (*OF_WEIGHTS, *OF_VALUES)
MOST: Final = 300.0  # of a log weight: its square is a float64, and the effective sample size is 1 far below
RISK: Final = 0.025  # on each side of an interval
LEAST: Final = 50  # effective episodes
LEAST_SHARE: Final = 0.01  # of the episodes, unless they are
ENOUGH: Final = 1000
UNCORRECTED: Final = ("is", "pdis", "wpdis")  # estimates that weights of the wrong sum shift
FAR: Final = 0.25  # of the sum of weights from 1, for estimates that divide by it
BEYOND: Final = 0.05  # share of the policy's actions that the behaviour never takes
SPARSE: Final = 8  # times as many steps, if all episodes were as long as the longest, from which on features are sparse


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """What M fitted Q functions say of N steps of E episodes."""

    first: Array  # (M, E) of each function: V of the first observation
    fold: NDArray[np.int64]  # (E,) the function that has not learned from the episode; the others' errors there are too small
    taken: Array  # (N,) its Q(s, a) of the recorded action
    after: Array  # (N,) its V of the next observation; 0 after the end of the task


@dataclass(frozen=True)
class Episodes:
    """N steps of E episodes, one after the other."""

    lengths: NDArray[np.int64]  # (E,) at least 1
    rewards: Array  # (N,)
    target: Any = None  # (N,) log-probability of each recorded action by the policy; None: it has none
    behaviour: Any = None  # (N,) by the recorded policy
    gamma: float = 1.0
    clip: float | None = None  # the largest weight; None: any

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(E,) the first step of each episode."""
        return np.asarray(np.cumsum(self.lengths) - self.lengths)

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """(N,) of each step in its episode, from 0."""
        return np.asarray(np.arange(len(self.rewards)) - np.repeat(self.starts, self.lengths))

    @cached_property
    def discounts(self) -> Array:
        """(N,) gamma to the power of the step's number."""
        return np.asarray(np.power(self.gamma, self.numbers, dtype=np.float64))

    def summed(self, values: NDArray[Any]) -> Array:
        """(E,) sums over the steps of each episode of values (N,)."""
        return np.asarray(np.add.reduceat(values, self.starts))

    @cached_property
    def returns(self) -> Array:
        """(E,) discounted."""
        return self.summed(self.rewards * self.discounts)

    @cached_property
    def ratios(self) -> Array:
        """(N,) log of the policy's probability over the behaviour's; 0 where the latter is 0."""
        never = np.isneginf(self.behaviour)
        return np.where(never, 0.0, self.target - np.where(never, 0.0, self.behaviour))

    @cached_property
    def weights(self) -> Array:
        """(N,) of the steps of the episode so far."""
        steps = pl.DataFrame({"log": self.ratios, "episode": np.repeat(np.arange(len(self.lengths)), self.lengths)})
        logs = steps.select(pl.col("log").cum_sum().over("episode"))["log"].to_numpy()
        return np.asarray(np.minimum(np.exp(np.minimum(logs, MOST)), math.inf if self.clip is None else self.clip))

    @cached_property
    def whole(self) -> Array:
        """(E,) weights of whole episodes."""
        return np.asarray(self.weights[self.starts + self.lengths - 1])

    @property
    def effective_samples(self) -> float:
        """Kish's, of whole episodes."""
        return kish(self.whole)


def kish(weights: Array) -> float:
    """(sum of weights)^2 over the sum of their squares: how many equal ones would vary as much; 0 of none above 0."""
    scaled = weights / (weights.max() or 1.0)
    return float(scaled.sum() ** 2 / ((scaled**2).sum() or 1.0))


def estimates(episodes: Episodes, names: Sequence[str], values: Values | None = None) -> dict[str, Estimate]:
    """The estimates of those names, as what intervals are made of; `values`: for those of fitted Q functions."""
    return {name: _estimate(episodes, name, values) for name in names}


def _estimate(episodes: Episodes, name: str, values: Any) -> Estimate:
    if name == "dm":
        return Estimate(values.first.mean(0)[:, None])
    if name in ("is", "wis"):
        both = np.stack([episodes.whole * episodes.returns, episodes.whole], 1)
        return Estimate(both[:, :1]) if name == "is" else Estimate(both, lambda means: ratio(means[..., 0], means[..., 1]))
    start, gains = np.zeros((len(episodes.lengths), 1)), episodes.rewards
    if name in OF_VALUES:
        start = values.first[values.fold, np.arange(len(start))][:, None]  # by the function that did not learn from the episode
        gains = gains + episodes.gamma * values.after - values.taken
    weighed = episodes.weights * episodes.discounts * gains
    if name in ("pdis", "dr"):
        return Estimate(start + episodes.summed(weighed)[:, None])
    return _by_step(episodes, start, weighed)


def _by_step(episodes: Episodes, start: Array, weighed: Array) -> Estimate:
    """`start` (E, 1) and the sum over T steps of the mean of `weighed` (N,) over that of weights.

    Features are sparse where lengths differ much, so that one long episode does not make all as long: an ended episode's weight
    stands in the column of its length alone, from which on it is added up.
    """
    count, steps = len(episodes.lengths), int(episodes.lengths.max())
    shape, of, ended = (count, steps), np.repeat(np.arange(count), episodes.lengths), np.flatnonzero(episodes.lengths < steps)
    parts = [coo_array((one, (of, episodes.numbers)), shape) for one in (weighed, episodes.weights)]
    parts.append(coo_array((episodes.whole[ended], (ended, episodes.lengths[ended])), shape))
    features = hstack([coo_array(start), *parts], format="csr")

    def combine(means: Array) -> Array:
        gains, weights, kept = (means[..., 1 + part * steps :][..., :steps] for part in range(3))
        return np.asarray(means[..., 0] + ratio(gains, weights + np.cumsum(kept, -1)).sum(-1))

    return Estimate(features.toarray() if count * steps <= SPARSE * len(of) else features, combine)


def distribution_free(episodes: Episodes, name: str) -> tuple[float, float]:
    """An interval of the policy's value by `is` or `pdis` that needs no normal distribution; NaN for a single episode.

    It supposes that rewards (`is`: returns) lie between the smallest and the largest recorded one. What is above 0 is made
    smaller by clipping weights, here at the root of E, so that its mean is a lower bound; the upper one is that of the
    negative. Source: Thomas et al. 2015, High-confidence off-policy evaluation.
    """
    if (count := len(episodes.lengths)) < 2:
        return math.nan, math.nan
    clip = min(episodes.clip or math.inf, count**0.5)
    starts, weights, gains, discounts = episodes.starts, episodes.weights, episodes.rewards, episodes.discounts
    if name == "is":  # an episode is one step, whose reward is the return
        starts, weights, gains, discounts = np.arange(count), episodes.whole, episodes.returns, np.ones(count)
    weights, last, lasted = np.minimum(weights, clip), np.minimum(episodes.whole, clip), np.add.reduceat(discounts, starts)
    total, found = float(lasted.max()), []  # after its end an episode has rewards of 0 up to the longest one's
    for sign in (1, -1):
        known = np.append(sign * gains, [0.0] * bool((lasted < total).any()))
        least, most = float(known.min()), float(known.max())
        above = np.add.reduceat(weights * (sign * gains - least) * discounts, starts) - last * least * (total - lasted)
        found.append(sign * (bernstein(above, clip * (most - least) * total, RISK) + least * total))
    return found[0], found[1]


# ---- what can be relied on ----


def estimated(
    episodes: Episodes, asked: Sequence[str], values: Values | None, seed: int, doubts: Sequence[str]
) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    """The mean return of the recorded episodes; each estimate, with its interval and whether it can be relied on."""
    made, told = estimates(episodes, asked, values), dict[str, Any]()
    (low, high), *limits = bootstrapped([Estimate(episodes.returns[:, None]), *made.values()], seed)
    recorded = {"value": float(episodes.returns.mean()), "low": low, "high": high}
    for (name, one), (low, high) in zip(made.items(), limits, strict=True):
        figures: dict[str, Any] = {"value": one.value, "low": low, "high": high}
        if name == "dm":  # Q functions may disagree by more than episodes do
            assert values is not None, "dm is made of them"
            apart = values.first.mean(1) - one.value
            figures |= {"low": low + float(apart.min()), "high": high + float(apart.max())}
            figures |= dict.fromkeys(("effective_samples", "without_support"))
        else:
            figures = figures if episodes.effective_samples > 0 else dict.fromkeys(figures, math.nan)  # no weight to average by
            figures["effective_samples"] = episodes.effective_samples
            figures["without_support"] = float((episodes.summed(np.isneginf(episodes.target)) > 0).mean())
        if name in ("is", "pdis"):
            figures["distribution_free"] = dict(zip(("low", "high"), distribution_free(episodes, name), strict=True))
        why = "; ".join([*doubts, *_doubts(episodes, name, figures["value"], values)])
        told[name] = {**figures, "reliable": not why, "reason": why or None}
    return recorded, told


def _doubts(episodes: Episodes, name: str, value: float, values: Any) -> Iterator[str]:
    """Why the estimate may mislead."""
    if name == "dm":  # of 10 intervals of a table's dm none held the value of ICU-Sepsis, where those of dr all did
        yield "its interval does not hold the error of Q; dr and wdr correct it by weights"
        return
    count, weights, effective = len(episodes.lengths), episodes.whole, episodes.effective_samples
    if not math.isfinite(value):
        yield "it is no finite number"
    if name in OF_VALUES and not episodes.returns.min() <= value <= episodes.returns.max():
        yield "it lies beyond all recorded returns"
    if name in OF_VALUES and np.count_nonzero(values.after[episodes.starts + episodes.lengths - 1]) > count / 2:
        yield "most episodes were cut, and it counts rewards beyond"
    if episodes.clip is not None and episodes.weights.max() >= episodes.clip:  # a bias, which its interval does not show
        yield "--clip cuts weights, which shifts it towards the recorded policy"
    if np.isneginf(episodes.behaviour).any():
        yield "recorded actions have the probability 0"
    sums = episodes.summed(np.exp(np.minimum(episodes.ratios, MOST)) - 1)
    mass, error = 1 + sums.sum() / len(episodes.rewards), sums.std() * count**0.5 / len(episodes.rewards)
    if mass < 1 - BEYOND - 3 * error:
        yield f"the recorded policy never takes {1 - mass:.0%} of the policy's actions"
    elif mass > 1 + BEYOND + 3 * error:
        yield f"weights of steps are {mass:.3g} on average, not 1: these are not the probabilities of the recorded policy"
    allowed = BEYOND if name in UNCORRECTED else FAR
    if abs(weights.mean() - 1) > allowed + 3 * weights.std() / count**0.5:
        yield f"weights of episodes are {weights.mean():.3g} on average, not 1: large ones are too few or too many"
    if count < LEAST:
        yield f"estimates need {LEAST} or more episodes, not {count:,}"
    elif effective < max(LEAST, min(LEAST_SHARE * count, ENOUGH)):
        yield f"{count:,} episodes count as {effective:.3g}: the policy acts too differently from the recorded one"
