"""Figures and histograms of columns, computed by `inspect` while it reads the steps: float64, in one pass.

A column is a leaf of observations acted on, actions, rewards or extra model outputs, named by its dotted path. Leaves of up to
1,024 elements have figures per element, larger ones (images) one for all. NaN and infinities are counted, and left out of mean
and std, which divides by n. Blocks are joined by Chan's formula: min and max are exact, mean and std to nine digits.
Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.datasets.statistics import plain_numbers
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.trees import flatten

MAX_ELEMENTS: Final = 1024
CHUNK: Final = 1 << 17  # elements turned to float64 at once: a MiB, which stays in the cache
MAX_SPREADS: Final = 16  # of one leaf; a larger one has one for all its elements
MOST_RUNS: Final = 1 << 12  # ranges of values that are counted, of which the parts shown are made
PARTS: Final = 32


def columns_of(batch: EpisodeBatch) -> Iterator[tuple[str, NDArray[Any]]]:
    """The columns of numbers of a batch: path and leaf (N, *shape)."""
    trees = {Columns.OBS: batch.acted_obs(view=True), Columns.ACTIONS: batch.actions, Columns.REWARDS: batch.rewards}
    trees |= {name: batch.extra[name] for name in sorted(batch.extra)}
    for name, tree in trees.items():
        yield from ((path, leaf) for path, leaf in flatten(tree, name) if leaf.dtype.kind in "biuf" and leaf.size)


class _ColumnFigures:
    """Figures of one column so far: arrays (d,), an entry per element of a value, or one for all elements of a large leaf."""

    def __init__(self, leaf: NDArray[Any]) -> None:
        elements = math.prod(leaf.shape[1:])
        self.dtype, self.shape, self.is_pooled = leaf.dtype, leaf.shape[1:], elements > MAX_ELEMENTS
        width = 1 if self.is_pooled else elements
        self.count = 0  # values per element, NaN and infinities included
        self.nan, self.finite = np.zeros(width, np.int64), np.zeros(width, np.int64)
        self.low, self.high = np.zeros((2, 0), leaf.dtype)  # in the column's own dtype; NaN left out
        self.mean, self.m2 = np.zeros((2, width))  # m2: sum of squared distances from the mean
        self.spreads = [Spread() for _ in range(elements if elements <= MAX_SPREADS else 1)]

    def add(self, leaf: NDArray[Any]) -> None:
        """Count the values (N, *shape) of one batch."""
        self.dtype = np.result_type(self.dtype, leaf.dtype)
        leaf = leaf.view(np.uint8) if leaf.dtype == np.bool_ else leaf
        rows = leaf.reshape(-1, 1) if self.is_pooled else leaf.reshape(len(leaf), -1)
        step = max(1, CHUNK // rows.shape[1])
        for start in range(0, len(rows), step):
            self._add_moments(rows[start : start + step])
        rows = leaf.reshape(-1, len(self.spreads))
        for number, spread in enumerate(self.spreads):
            for start in range(0, len(rows), CHUNK):
                spread.add(rows[start : start + CHUNK, number])

    def _add_moments(self, rows: NDArray[Any]) -> None:
        own = np.ascontiguousarray(rows.T)  # (d, N): sums along memory are pairwise
        values = own.astype(np.float64)
        good = np.isfinite(values)
        known, self.count, self.nan = good.sum(1), self.count + len(rows), self.nan + np.isnan(values).sum(1)
        total = self.finite + known
        with np.errstate(all="ignore"):  # values near the largest float64 may overflow: then there is no mean or std
            mean = np.where(good, values, 0.0).sum(1) / np.maximum(known, 1)
            m2 = np.square(np.where(good, values - mean[:, None], 0.0)).sum(1)
            share, delta = known / np.maximum(total, 1), mean - self.mean
            self.m2 = self.m2 + m2 + np.where(self.finite > 0, delta * delta, 0.0) * self.finite * share
            self.mean, self.finite = self.mean + delta * share, total
        low, high = np.fmin.reduce(own, axis=1), np.fmax.reduce(own, axis=1)
        is_first = not len(self.low)
        self.low, self.high = (low, high) if is_first else (np.fmin(self.low, low), np.fmax(self.high, high))

    def as_json(self) -> dict[str, Any]:
        """Plain values; per-element figures nested like a value, numbers that JSON lacks as "inf", "-inf" or null."""
        with np.errstate(all="ignore"):
            std = np.sqrt(self.m2 / self.finite)
        mean, infinite = np.where(self.finite > 0, self.mean, np.nan), self.count - self.finite - self.nan
        figures = {"nan": self.nan, "infinite": infinite, "min": self.low, "max": self.high, "mean": mean, "std": std}
        shape = () if self.is_pooled else self.shape
        nested = {name: plain_numbers(values.reshape(shape).tolist()) for name, values in figures.items()}
        told = {"dtype": str(self.dtype), "shape": list(self.shape), "pooled": self.is_pooled, "count": self.count}
        return {**told, **nested}


class ColumnsBuilder:
    """Collects figures and histograms of all columns, and histograms of returns and lengths, batch by batch."""

    def __init__(self) -> None:
        self._columns: dict[str, _ColumnFigures] = {}
        self._episodes = {"return": Spread(), "length": Spread()}

    def add(self, batch: EpisodeBatch) -> None:
        """Count `batch`. Raises BadEpisode where a column changes its shape."""
        self._episodes["return"].add(batch.returns)
        self._episodes["length"].add(batch.lengths)
        for path, leaf in columns_of(batch):
            column = self._columns.setdefault(path, _ColumnFigures(leaf))
            if column.shape != leaf.shape[1:]:
                what = f"column {path!r} has values of shape {leaf.shape[1:]}, before of {column.shape}"
                fix = "write the two kinds into two datasets"
                raise BadEpisode(what, where=f"batch from episode {batch.ids[0]}", fix=fix)
            column.add(leaf)

    def as_json(self) -> dict[str, Any]:
        """Figures by path."""
        return {path: column.as_json() for path, column in self._columns.items()}

    def histograms(self) -> dict[str, Any]:
        """`return`, `length` and `columns`; of a column a list, an entry per element, or one for a large leaf as a whole."""
        columns = {path: [one.as_json() for one in column.spreads] for path, column in self._columns.items()}
        return {**{name: one.as_json() for name, one in self._episodes.items()}, "columns": columns}


# ---- how values are spread ----


@dataclass(slots=True)
class Spread:
    """Counts of finite values that come in blocks: of each value while they are few, else of ranges of neighbours."""

    low: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # (K,) ascending
    high: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # (K,) of each range, below the next `low`
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # (K,)

    def add(self, values: NDArray[Any]) -> None:
        """Count `values` (N,)."""
        known = values.astype(np.float64)
        found, times = np.unique(known[np.isfinite(known)] + 0.0, return_counts=True)  # no negative zeros
        at = np.searchsorted(self.high, found)  # the first range that does not end before
        within = np.append(self.low, np.inf)[at] <= found
        np.add.at(self.counts, at[within], times[within])
        new = found[~within]
        order = np.argsort(low := np.concatenate([self.low, new]))
        self.low, self.high = low[order], np.concatenate([self.high, new])[order]
        self.counts = np.concatenate([self.counts, times[~within]])[order]
        if len(self.counts) > MOST_RUNS:
            self.low, self.high, self.counts = self._joined(MOST_RUNS // 4)

    def _joined(self, parts: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        """The ranges in about `parts` of one count each; one that has more is a part by itself."""
        ends = np.cumsum(self.counts)
        alone = np.cumsum((self.counts * parts > ends[-1]) | (len(ends) <= parts))
        part = (ends - 1) * parts // ends[-1] + alone + np.append(0, alone[:-1])
        first = np.flatnonzero(np.diff(part, prepend=-1))
        return self.low[first], self.high[np.append(first[1:], len(part)) - 1], np.add.reduceat(self.counts, first)

    def as_json(self) -> dict[str, list[Any]]:
        """The values in parts, ascending: what each is between, and how many are in it; each value by itself up to PARTS."""
        found = self._joined(PARTS) if len(self.counts) else (self.low, self.high, self.counts)
        return {name: part.tolist() for name, part in zip(("low", "high", "counts"), found, strict=True)}


def means_over_time(leaf: NDArray[Any], parts: int) -> list[list[float | None]]:
    """Means of up to `parts` equal stretches of a leaf (T, *shape), NaN and infinities left out: of each element of a value, or
    of all together where it is large.
    """
    rows = leaf.reshape(len(leaf), -1)
    elements = rows.T if rows.shape[1] <= MAX_SPREADS else rows.reshape(1, -1)
    return [[_mean(part) for part in np.array_split(values, min(parts, len(leaf)))] for values in elements]


def _mean(values: NDArray[Any]) -> float | None:
    known = values[np.isfinite(values)].astype(np.float64)
    largest = float(np.abs(known).max(initial=0.0)) or 1.0  # of large values the sum would overflow
    return float((known / largest).mean() * largest) if len(known) else None
