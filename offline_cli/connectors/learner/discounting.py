"""Discounted sums from the right, over many episodes at once; refuses nothing.

y[t] = x[t] + factor[t] * y[t + 1], with a factor of 0 where an episode ends, in log2(longest run) passes over whole arrays
instead of one step of Python per timestep. Source: Hillis, Steele 1986 (data parallel algorithms), for a linear recurrence.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["discounted", "factors"]


def discounted(values: NDArray[np.float64], factor: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N,) of values and factors (N,); the last factor is taken for 0."""
    sums, reach = values.astype(np.float64), factor.astype(np.float64)
    if len(reach):
        reach[-1] = 0.0
    hop = 1
    while hop < len(sums) and reach.any():
        sums[:-hop] += reach[:-hop] * sums[hop:]
        reach[:-hop] *= reach[hop:]
        reach[-hop:] = 0.0
        hop *= 2
    return sums


def factors(lengths: NDArray[np.int64], gamma: float) -> NDArray[np.float64]:
    """(N,) `gamma` at every step of episodes of these lengths but their last, 0 there."""
    steps = np.full(int(lengths.sum()), float(gamma))
    steps[np.cumsum(lengths)[lengths > 0] - 1] = 0.0
    return steps
