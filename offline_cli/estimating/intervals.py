"""95% intervals of estimates that are functions of means over episodes.

Every estimate of this package is `combine(mean over episodes of features)`, so a bootstrap draw is one row of a matrix product,
and leaving an episode out is a subtraction. `scipy.stats.bootstrap` was looked at: it calls the statistic on resampled arrays
(1,000 draws of 100,000 episodes are 10^8 rows), and its BCa jackknife is quadratic in the episodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.special import ndtr, ndtri

__all__ = ["DRAWS", "Estimate", "bernstein", "bootstrapped"]

DRAWS: Final = 1000
MOST_BCA: Final = 10_000  # episodes; above these the percentile interval, from which BCa hardly differs
LEVEL: Final = 0.95
AT_A_TIME: Final = 1 << 22  # draws times episodes or features

Array = NDArray[np.float64]
Combine = Callable[[Array], Array]


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """`combine`, from (..., K) means to (...) values, of `features` (E, K), a row for each episode."""

    features: Any  # an array, or a sparse one of scipy
    combine: Combine

    @property
    def value(self) -> float:
        """The estimate."""
        return float(self.combine(self.features.mean(axis=0)))


def bootstrapped(estimates: Sequence[Estimate], seed: int, draws: int = DRAWS) -> list[tuple[float, float]]:
    """Low and high of each, all from the same draws of E episodes: BCa up to 10,000 episodes, percentiles above.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, 13.3 and 14.3.
    """
    count, chance = estimates[0].features.shape[0], np.random.default_rng(seed)
    drawn: list[list[Array]] = [[] for _ in estimates]
    size = max(1, min(draws, AT_A_TIME // max(count, *(one.features.shape[1] for one in estimates))))
    for first in range(0, draws, size):
        chosen = [np.bincount(chance.integers(0, count, count), minlength=count) for _ in range(min(size, draws - first))]
        shares = np.stack(chosen) / count
        for one, values in zip(estimates, drawn, strict=True):
            values.append(one.combine(shares @ one.features))
    return [_limits(one, np.concatenate(values)) for one, values in zip(estimates, drawn, strict=True)]


def _limits(estimate: Estimate, drawn: Array) -> tuple[float, float]:
    ends = np.array([(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    count = estimate.features.shape[0]
    if 1 < count <= MOST_BCA:
        ends = _bca(estimate, drawn, ends, count)
    low, high = np.quantile(drawn, ends)
    return float(low), float(high)


def _bca(estimate: Estimate, drawn: Array, ends: Array, count: int) -> Array:
    """The quantiles of `drawn` to take, corrected for bias and skewness; `ends` where nothing varies."""
    below = np.mean(drawn < estimate.value) + np.mean(drawn == estimate.value) / 2
    sums, size = count * estimate.features.mean(axis=0), max(1, AT_A_TIME // estimate.features.shape[1])
    parts = (estimate.features[first : first + size] for first in range(0, count, size))
    rows = (part.toarray() if issparse(part) else part for part in parts)
    without = np.concatenate([estimate.combine((sums - part) / (count - 1)) for part in rows])
    deviations = without.mean() - without
    spread = float((deviations**2).sum()) ** 1.5
    if not 0 < below < 1 or not spread > 0:
        return ends
    bias, skew = ndtri(below), float((deviations**3).sum()) / (6 * spread)
    shifted = bias + ndtri(ends)
    found: Array = ndtr(bias + shifted / (1 - skew * shifted))
    return found


def bernstein(values: Array, bound: float, risk: float) -> float:
    """What the mean of the values' distribution, all from 0 to `bound`, is not below but with a chance of `risk`.

    Source: Maurer and Pontil 2009, Empirical Bernstein bounds, theorem 4.
    """
    count, log = len(values), math.log(2 / risk)
    if count < 2:
        return 0.0
    width = math.sqrt(2 * float(values.var(ddof=1)) * log / count) + 7 * bound * log / (3 * (count - 1))
    return float(values.mean()) - width


def ratio(top: Array, bottom: Array) -> Array:
    """`top / bottom`, and 0 where the latter is 0."""
    found: Array = np.divide(top, bottom, out=np.zeros(np.broadcast_shapes(top.shape, bottom.shape)), where=bottom > 0)
    return found


def as_json(limits: tuple[float, float]) -> dict[str, Any]:
    """An interval by its keys."""
    return {"low": limits[0], "high": limits[1]}
