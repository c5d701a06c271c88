"""The 95% interval of a mean of few numbers, by Student's t: of seeds, or of paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def mean_interval(values: Sequence[float] | Any, axis: int = 0) -> tuple[Any, Any]:
    """Mean, and half the width of its interval, along `axis`; NaN of one value, which has no spread. NaN values are left out.

    Source: Student 1908, The probable error of a mean.
    """
    from scipy.special import stdtrit

    numbers = np.asarray(values, np.float64)
    known = np.isfinite(numbers)
    count = known.sum(axis)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, numbers, 0.0).sum(axis) / count
        squares = np.where(known, numbers - np.expand_dims(mean, axis), 0.0) ** 2
        half = stdtrit(count - 1.0, 0.975) * np.sqrt(squares.sum(axis) / (count - 1) / count)
    return mean, np.where(count > 1, half, np.nan)
