"""95% intervals of estimates that are functions of means over episodes.

Every estimate of this package is `combine(mean over episodes of features)`, so a bootstrap draw is one row of a matrix product,
and leaving an episode out is a subtraction. `scipy.stats.bootstrap` was looked at: it calls the statistic on resampled arrays
(1,000 draws of 100,000 episodes are 10^8 rows), and its BCa jackknife is quadratic in the episodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.special import ndtr, ndtri

__all__ = ["Array", "Estimate", "bernstein", "bootstrapped", "ratio"]

DRAWS: Final = 1000
MOST_BCA: Final = 10_000  # episodes; above these the percentile interval, from which BCa hardly differs
AT_A_TIME: Final = 1 << 22  # draws times episodes or features

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """`combine`, from (..., K) means to (...) values, of `features` (E, K), a row for each episode."""

    features: Any  # an array, or a sparse one of scipy
    combine: Callable[[Array], Array] = itemgetter((..., 0))

    @property
    def value(self) -> float:
        """The estimate."""
        return float(self.combine(self.features.mean(axis=0)))


def bootstrapped(estimates: Sequence[Estimate], seed: int, draws: int = DRAWS) -> list[tuple[float, float]]:
    """Low and high of each, all from the same draws of E episodes: BCa up to 10,000 episodes, percentiles above.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, 13.3 and 14.3.
    """
    count, chance = estimates[0].features.shape[0], np.random.default_rng(seed)
    size = max(1, AT_A_TIME // max(count, *(one.features.shape[1] for one in estimates)))
    drawn: list[list[Array]] = [[] for _ in estimates]
    for part in (range(first, min(first + size, draws)) for first in range(0, draws, size)):
        shares = np.stack([np.bincount(chance.integers(0, count, count), minlength=count) for _ in part]) / count
        for one, values in zip(estimates, drawn, strict=True):
            values.append(one.combine(shares @ one.features))
    return [_limits(one, np.concatenate(values)) for one, values in zip(estimates, drawn, strict=True)]


def _limits(estimate: Estimate, drawn: Array) -> tuple[float, float]:
    """Of values drawn (D,); of BCa, quantiles that are corrected for bias and skewness, where anything varies. NaN of a single
    episode.
    """
    ends, (count, width) = np.array([0.025, 0.975]), estimate.features.shape
    if count < 2:
        return math.nan, math.nan
    below = np.mean(drawn < estimate.value) + np.mean(drawn == estimate.value) / 2
    if count <= MOST_BCA and 0 < below < 1:
        sums, size = count * estimate.features.mean(axis=0), max(1, AT_A_TIME // width)
        parts = (estimate.features[first : first + size] for first in range(0, count, size))
        dense = (part.toarray() if issparse(part) else part for part in parts)
        without = np.concatenate([estimate.combine((sums - part) / (count - 1)) for part in dense])
        deviations = without.mean() - without
        if (spread := float((deviations**2).sum()) ** 1.5) > 0:
            bias, skew = ndtri(below), float((deviations**3).sum()) / (6 * spread)
            ends = ndtr(bias + (bias + ndtri(ends)) / (1 - skew * (bias + ndtri(ends))))
    low, high = np.quantile(drawn, ends)
    return float(low), float(high)


def bernstein(values: Array, bound: float, risk: float) -> float:
    """What the mean of the values' distribution, all from 0 to `bound`, is not below but with a chance of `risk`.

    Source: Maurer and Pontil 2009, Empirical Bernstein bounds, theorem 4.
    """
    count, log = len(values), math.log(2 / risk)
    width = math.sqrt(2 * float(values.var(ddof=1)) * log / count) + 7 * bound * log / (3 * (count - 1))
    return float(values.mean()) - width


def ratio(top: Array, bottom: Array) -> Array:
    """`top / bottom`, and 0 where the latter is 0."""
    return np.asarray(np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0))
