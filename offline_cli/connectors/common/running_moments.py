"""Count, mean and spread of rows that come bit by bit, from several places; refuses to forget: no row counts twice or never.

Source: Chan, Golub, LeVeque 1979 (updating formulae for sums of squares about the mean). All in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Moments"]


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Of `count` rows of one shape: their mean, and the sum of squared distances from it."""

    count: int
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> Moments:
        """Of no rows yet."""
        return cls(0, np.zeros(shape), np.zeros(shape))

    @classmethod
    def of(cls, rows: NDArray[Any]) -> Moments:
        """Of rows (N, *shape), in two passes."""
        if not len(rows):
            return cls.none(rows.shape[1:])
        mean = np.add.reduce(rows, 0, dtype=np.float64) / len(rows)
        return cls(len(rows), mean, np.add.reduce(np.square(rows - mean), 0))

    def with_(self, other: Moments) -> Moments:
        """Of the rows of both."""
        if not other.count or not self.count:
            return self if self.count else other
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        return Moments(count, mean, self.m2 + other.m2 + np.square(apart) * (self.count * other.count / count))

    @property
    def std(self) -> NDArray[np.float64]:
        """The standard deviation of a sample (N - 1); zeros for fewer than two rows."""
        return np.sqrt(self.m2 / (self.count - 1)) if self.count > 1 else np.zeros_like(self.m2)

    def along(self, rows: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(N, *shape) each: mean and std after each of `rows` (N, *shape) in turn, as if they came one by one."""
        counts = np.arange(self.count + 1.0, self.count + 1.0 + len(rows)).reshape(-1, *[1] * self.mean.ndim)
        from_start = rows - self.mean
        means = self.mean + np.add.accumulate(from_start, 0) / counts
        from_last = from_start  # each row's distance from the mean before it
        np.subtract(rows[1:], means[:-1], out=from_last[1:])
        m2 = self.m2 + np.add.accumulate(from_last * (rows - means), 0)
        fewer = counts - 1 if self.count else np.maximum(counts - 1, 1)
        return means, np.sqrt(np.maximum(m2, 0) / fewer)

    def state(self) -> dict[str, Any]:
        """As plain values and arrays."""
        return {"count": self.count, "mean": self.mean.copy(), "m2": self.m2.copy()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Moments:
        """What `state` gave. Raises KeyError, TypeError, ValueError, OverflowError for what is none."""
        count = int(state["count"])
        mean, m2 = np.array(state["mean"], np.float64), np.array(state["m2"], np.float64)
        if count < 0 or np.any(m2 < 0):
            raise ValueError(f"a count of {count}, or squares, below zero")
        return cls(count, mean, m2)
