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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.estimating.intervals import Array, Estimate, bernstein, ratio

__all__ = ["ALL", "OF_VALUES", "OF_WEIGHTS", "Episodes", "Values", "distribution_free", "estimates"]

OF_WEIGHTS: Final = ("is", "wis", "pdis", "wpdis")
OF_VALUES: Final = ("dm", "dr", "wdr")
ALL: Final = (*OF_WEIGHTS, *OF_VALUES)
MOST: Final = 300.0  # of a log weight: its square is a float64, and the effective sample size is 1 far below
RISK: Final = 0.025  # on each side of an interval


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """What M fitted Q functions say of N steps of E episodes."""

    first: Array  # (M, E) of each function: V of the first observation
    fold: NDArray[np.int64]  # (E,) the function that has not learned from the episode; the others' errors there are too small
    taken: Array  # (N,) its Q(s, a) of the recorded action
    after: Array  # (N,) its V of the next observation; 0 after the end of the task

    @property
    def unseen(self) -> Array:
        """(E, 1) V of the first observation by the function that has not learned from the episode."""
        return self.first[self.fold, np.arange(len(self.fold))][:, None]


@dataclass(frozen=True)
class Episodes:
    """N steps of E episodes, one after the other."""

    lengths: NDArray[np.int64]  # (E,) at least 1
    rewards: Array  # (N,)
    target: Array | None = None  # (N,) log-probability of each recorded action by the policy; None: it has none
    behaviour: Array | None = None  # (N,) by what played
    gamma: float = 1.0
    clip: float | None = None  # the largest weight; None: any

    @cached_property
    def longest(self) -> int:
        """T."""
        return int(self.lengths.max())

    def padded(self, values: Array) -> Array:
        """(E, T) of values (N,); 0 after the end."""
        found = np.zeros((len(self.lengths), self.longest))
        found[np.arange(self.longest) < self.lengths[:, None]] = values
        return found

    @cached_property
    def discounted(self) -> Array:
        """(E, T) rewards, each times gamma to the power of its step."""
        return self.padded(self.rewards) * self.discounts

    @cached_property
    def discounts(self) -> Array:
        """(T,)."""
        found: Array = np.power(self.gamma, np.arange(self.longest), dtype=np.float64)
        return found

    @cached_property
    def returns(self) -> Array:
        """(E,) discounted."""
        found: Array = self.discounted.sum(1)
        return found

    @cached_property
    def ratios(self) -> Array:
        """(N,) log of the policy's probability over the behaviour's; 0 where the latter is 0."""
        assert self.target is not None, "weights need both"
        assert self.behaviour is not None, "weights need both"
        return np.where(
            np.isneginf(self.behaviour), 0.0, self.target - np.where(np.isneginf(self.behaviour), 0, self.behaviour)
        )

    @cached_property
    def weights(self) -> Array:
        """(E, T) of the steps so far."""
        found: Array = np.exp(np.minimum(np.cumsum(self.padded(self.ratios), 1), MOST))
        return found if self.clip is None else np.minimum(found, self.clip)

    @property
    def effective_samples(self) -> float:
        """Kish's, of whole episodes."""
        return kish(self.weights[:, -1])


def kish(weights: Array) -> float:
    """(sum of weights)^2 over the sum of their squares: how many equal ones would vary as much; 0 of none above 0."""
    largest = float(weights.max())
    scaled = weights / largest if largest > 0 else weights
    return float(ratio(scaled.sum(keepdims=True) ** 2, (scaled**2).sum(keepdims=True))[0])


def estimates(episodes: Episodes, names: Sequence[str], values: Values | None = None) -> dict[str, Estimate]:
    """The estimates of those names, as what intervals are made of; `values`: for those of fitted Q functions."""
    return {name: _made(episodes, name, values) for name in names}


def _made(episodes: Episodes, name: str, values: Values | None) -> Estimate:
    if name == "dm":
        assert values is not None, "of fitted values"
        return Estimate(values.first.mean(0)[:, None], _first)
    weights, steps = episodes.weights, episodes.longest
    last = weights[:, -1:]
    if name == "is":
        return Estimate(last * episodes.returns[:, None], _first)
    if name == "wis":
        return Estimate(np.hstack([last * episodes.returns[:, None], last]), lambda means: ratio(means[..., 0], means[..., 1]))
    if name in ("pdis", "wpdis"):
        start, gains = np.zeros((len(weights), 1)), weights * episodes.discounted
    else:
        assert values is not None, "of fitted values"
        errors = episodes.rewards + episodes.gamma * values.after - values.taken
        start, gains = values.unseen, weights * episodes.padded(errors) * episodes.discounts
    if name in ("pdis", "dr"):
        return Estimate(start + gains.sum(1, keepdims=True), _first)

    def weighted(means: Array) -> Array:
        found: Array = means[..., 0] + ratio(means[..., 1 : steps + 1], means[..., steps + 1 :]).sum(-1)
        return found

    return Estimate(np.hstack([start, gains, weights]), weighted)


def _first(means: Array) -> Array:
    return means[..., 0]


def distribution_free(episodes: Episodes, name: str) -> tuple[float, float]:
    """An interval of the policy's value by `is` or `pdis` that needs no normal distribution.

    It supposes that rewards (`is`: returns) lie between the smallest and the largest recorded one. What is above 0 is made
    smaller by clipping weights, here at the root of E, so that its mean is a lower bound; the upper one is that of the
    negative. Source: Thomas et al. 2015, High-confidence off-policy evaluation.
    """
    clip = len(episodes.lengths) ** 0.5 if episodes.clip is None else min(episodes.clip, len(episodes.lengths) ** 0.5)
    if name == "is":
        weights, gains, discounts = np.minimum(episodes.weights[:, -1:], clip), episodes.returns[:, None], np.ones(1)
    else:
        weights, gains, discounts = np.minimum(episodes.weights, clip), episodes.padded(episodes.rewards), episodes.discounts
    ends = []
    for sign in (1, -1):
        least, most = float((sign * gains).min()), float((sign * gains).max())
        above = (weights * (sign * gains - least) * discounts).sum(1)
        bound = clip * (most - least) * float(discounts.sum())
        ends.append(sign * (bernstein(above, bound, RISK) + least * float(discounts.sum())))
    return ends[0], ends[1]
