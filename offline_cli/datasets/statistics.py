"""Episode statistics of a manifest: counts, returns and lengths, computed without decoding steps.

Column statistics are computed on demand (`inspect --deep`, checking/column_statistics.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.datasets.manifest import Counts, Statistics
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.tally import UNFINISHED

QUANTILES: Final = (0, 1, 5, 25, 50, 75, 95, 99, 100)  # percent


class EpisodeStatistics:
    """Accumulates episode statistics batch by batch."""

    def __init__(self) -> None:
        self._parts: list[tuple[NDArray[Any], ...]] = []  # returns, lengths, terminated, truncated
        self.steps = 0
        self.unfinished = 0  # neither flag

    def add(self, batch: EpisodeBatch) -> None:
        """Add the episodes of `batch`."""
        self._add((batch.returns, batch.lengths, batch.terminated, batch.truncated))

    def add_plain(self, table: Any) -> None:
        """Add episodes from a pa.Table of plain columns."""
        names = (Columns.RETURN, Columns.LENGTH, Columns.TERMINATED, Columns.TRUNCATED)
        self._add(tuple(table.column(name).to_numpy() for name in names))

    def include(self, other: EpisodeStatistics) -> None:
        """Add the episodes of `other`."""
        for part in other._parts:
            self._add(part)

    def _add(self, part: tuple[NDArray[Any], ...]) -> None:
        self._parts.append(part)
        self.steps += int(part[1].sum())
        self.unfinished += int(np.count_nonzero(~(part[2] | part[3])))

    def _columns(self) -> list[NDArray[Any]]:
        nothing = tuple(np.zeros(0, kind) for kind in (np.float64, np.int64, np.bool_, np.bool_))
        return [np.concatenate(column) for column in zip(nothing, *self._parts, strict=True)]

    def counts(self, assumptions: Mapping[str, int]) -> Counts:
        """The counts. Unfinished episodes have neither flag, or were assumed to be truncated because their recording stopped.
        `assumptions` may count more episodes than were written, so unfinished is limited to the episodes not terminated.
        """
        _, lengths, *flags = self._columns()
        terminated, truncated = (int(np.count_nonzero(flag)) for flag in flags)
        unfinished = min(self.unfinished + assumptions.get(UNFINISHED, 0), len(lengths) - terminated)
        return Counts(len(lengths), self.steps, terminated, truncated, unfinished)

    def as_json(self) -> Statistics:
        """The manifest's `statistics`."""
        returns, lengths, *_ = self._columns()
        return cast(Statistics, {"return": _distribution(returns), "length": _distribution(lengths)})


def _distribution(values: NDArray[Any]) -> dict[str, Any]:
    """Statistics of one number per episode, without NaN; mean, std and quantiles of finite values only."""
    known, finite = values[~np.isnan(values)], values[np.isfinite(values)]
    with np.errstate(all="ignore"):  # returns near the largest float64 may overflow
        spread = [float(finite.mean()), float(finite.std())] if len(finite) else [None, None]
        quantiles = np.quantile(finite, np.array(QUANTILES) / 100).tolist() if len(finite) else [None] * len(QUANTILES)
    ends = [known.min().item(), known.max().item()] if len(known) else [None, None]
    figures = dict(zip(("min", "max", "mean", "std"), plain_numbers([*ends, *spread]), strict=True))
    return {"count": len(values), **figures, "quantiles": dict(zip(map(str, QUANTILES), plain_numbers(quantiles), strict=True))}


def plain_numbers(values: Any) -> Any:
    """`values` (numbers in lists) with "inf", "-inf" and null for numbers that JSON lacks."""
    if isinstance(values, list):
        return [plain_numbers(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return None if math.isnan(values) else str(values)
    return values
