"""What a manifest measures of its episodes: counts, returns and lengths, for which no step is decoded.

Figures of columns are computed when they are asked for (`inspect --deep`, checking/column_statistics.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.datasets.manifest import Counts, Statistics
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.tally import UNFINISHED
from offline_cli.trees import leaves

__all__ = ["EpisodeStatistics", "not_finite", "plain_numbers"]

QUANTILES: Final = (0, 1, 5, 25, 50, 75, 95, 99, 100)  # percent


@dataclass(slots=True)
class EpisodeStatistics:
    """Collects them, block by block."""

    _returns: list[NDArray[np.float64]] = field(default_factory=list)
    _lengths: list[NDArray[np.int64]] = field(default_factory=list)
    episodes: int = 0
    steps: int = 0
    terminated: int = 0
    truncated: int = 0
    unfinished: int = 0  # neither flag

    def add(self, batch: EpisodeBatch) -> None:
        """Count the episodes of `batch`."""
        self._add(batch.returns, batch.lengths, batch.terminated, batch.truncated)

    def add_plain(self, table: Any) -> None:
        """Count episodes by their plain columns, a pa.Table."""
        names = (Columns.RETURN, Columns.LENGTH, Columns.TERMINATED, Columns.TRUNCATED)
        self._add(*(table.column(name).to_numpy() for name in names))

    def _add(
        self,
        returns: NDArray[np.float64],
        lengths: NDArray[np.int64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
    ) -> None:
        self._returns.append(returns)
        self._lengths.append(lengths)
        self.episodes += len(lengths)
        self.steps += int(lengths.sum())
        self.terminated += int(np.count_nonzero(terminated))
        self.truncated += int(np.count_nonzero(truncated))
        self.unfinished += int(np.count_nonzero(~(terminated | truncated)))

    def include(self, other: EpisodeStatistics) -> None:
        """Count the episodes of `other` after these."""
        self._returns += other._returns
        self._lengths += other._lengths
        for name in ("episodes", "steps", "terminated", "truncated", "unfinished"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def counts(self, assumptions: Mapping[str, int]) -> Counts:
        """The sizes. Unfinished are episodes with neither flag, and those assumed to be truncated because their recording broke
        off. Assumptions are counted in blocks, maybe beyond a limit: no more are unfinished than did not terminate.
        """
        unfinished = min(self.unfinished + assumptions.get(UNFINISHED, 0), self.episodes - self.terminated)
        return Counts(self.episodes, self.steps, self.terminated, self.truncated, unfinished)

    def as_json(self) -> Statistics:
        """The manifest's `statistics`."""
        returns = np.concatenate([np.zeros(0), *self._returns])
        lengths = np.concatenate([np.zeros(0, np.int64), *self._lengths])
        return cast(Statistics, {"return": _distribution(returns), "length": _distribution(lengths)})


def _distribution(values: NDArray[Any]) -> dict[str, Any]:
    """Figures of one number per episode: NaN left out, mean, std and quantiles of what is finite."""
    known, finite = values[~np.isnan(values)], values[np.isfinite(values)]
    with np.errstate(all="ignore"):  # returns near the largest float64 may overflow
        spread = [float(finite.mean()), float(finite.std())] if len(finite) else [None, None]
        quantiles = np.quantile(finite, np.array(QUANTILES) / 100).tolist() if len(finite) else [None] * len(QUANTILES)
    ends = [known.min().item(), known.max().item()] if len(known) else [None, None]
    figures = dict(zip(("min", "max", "mean", "std"), plain_numbers([*ends, *spread]), strict=True))
    return {"count": len(values), **figures, "quantiles": dict(zip(map(str, QUANTILES), plain_numbers(quantiles), strict=True))}


def plain_numbers(values: Any) -> Any:
    """`values` (numbers in lists) with "inf", "-inf" and null for what JSON has no number for."""
    if isinstance(values, list):
        return [plain_numbers(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return None if math.isnan(values) else str(values)
    return values


def not_finite(batch: EpisodeBatch) -> Counter[str]:
    """NaN and infinite values by kind, `nan-in-rewards` for one, last observations included."""
    trees = {
        "observations": [batch.obs],
        "actions": [batch.actions],
        "rewards": [batch.rewards],
        "extras": batch.extra.values(),
    }
    found = Counter[str]()
    for kind, group in trees.items():
        for leaf in (leaf for tree in group for leaf in leaves(tree)):
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                found[f"nan-in-{kind}"] += int(np.isnan(leaf).sum())
                found[f"infinite-in-{kind}"] += int(np.isinf(leaf).sum())
    return +found
