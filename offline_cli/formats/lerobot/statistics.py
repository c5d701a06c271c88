"""Statistics as LeRobot keeps them: of each feature in each episode, and of all episodes together.

Quantiles of all are means of those of the episodes, weighted by their lengths, as LeRobot's own `aggregate_stats` makes them.
Source: lerobot 0.4.4, `datasets/compute_stats.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["NAMES", "Totals", "episode_statistics"]

QUANTILES: Final = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
NAMES: Final = ("min", "max", "mean", "std", "count", *QUANTILES)

Statistics = dict[str, NDArray[Any]]


def episode_statistics(values: NDArray[Any]) -> Statistics:
    """Of (T, ...) values of one feature: arrays (D,), D the size of the last dimension."""
    rows = values.reshape(len(values), -1) if values.ndim < 3 else values.reshape(-1, values.shape[-1])
    ordered = np.sort(rows, axis=0)
    found = {"min": ordered[0], "max": ordered[-1]}
    wide = ordered.astype(np.float64)
    found |= {"mean": wide.mean(axis=0), "std": wide.std(axis=0), "count": np.array([len(values)])}
    for name, share in QUANTILES.items():
        at = share * (len(wide) - 1)
        below = int(at)
        above = min(below + 1, len(wide) - 1)
        found[name] = wide[below] + (wide[above] - wide[below]) * (at - below)
    return found


class Totals:
    """Of all episodes, added one by one."""

    def __init__(self) -> None:
        self._of: dict[str, Statistics] = {}

    def add(self, feature: str, found: Statistics) -> None:
        """The statistics of another episode."""
        count = float(found["count"][0])
        sums = {name: found[name] * count for name in ("mean", *QUANTILES)}
        sums["squares"] = (found["std"] ** 2 + found["mean"] ** 2) * count
        known = self._of.get(feature)
        if known is None:
            self._of[feature] = {"min": found["min"], "max": found["max"], "count": np.array([count]), **sums}
            return
        known["min"], known["max"] = np.minimum(known["min"], found["min"]), np.maximum(known["max"], found["max"])
        known["count"] = known["count"] + count
        for name, value in sums.items():
            known[name] = known[name] + value

    def as_json(self) -> Mapping[str, Mapping[str, Any]]:
        """What `meta/stats.json` holds."""
        return {feature: self._json(known) for feature, known in self._of.items()}

    @staticmethod
    def _json(known: Statistics) -> Mapping[str, Any]:
        count = known["count"]
        mean = known["mean"] / count
        std = np.sqrt(np.maximum(known["squares"] / count - mean**2, 0.0))
        found: dict[str, Any] = {"min": known["min"], "max": known["max"], "mean": mean, "std": std}
        found |= {"count": count.astype(np.int64)} | {name: known[name] / count for name in QUANTILES}
        return {name: value.tolist() for name, value in found.items()}
