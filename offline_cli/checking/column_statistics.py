"""Figures and histograms of columns, computed by `inspect` while it reads the steps: float64, in one pass.

A column is a leaf of observations acted on, actions, rewards or extra model outputs, named by its dotted path. Leaves of up to
1,024 elements have figures per element, larger ones (images) one for all. NaN and infinities are counted, and left out of mean
and std, which divides by n. Blocks are joined by Chan's formula: min and max are exact, mean and std to nine digits.
Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
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


@dataclass(frozen=True, slots=True, eq=False)
class ColumnStatistics:
    """Figures of one column: arrays (d,), one entry per element of a value, or one for all elements of a large leaf."""

    dtype: str
    shape: tuple[int, ...]  # of one value
    count: int  # values per element, NaN and infinities included
    nan: NDArray[np.int64]
    infinite: NDArray[np.int64]
    min: NDArray[Any]  # in the column's own dtype; NaN left out
    max: NDArray[Any]
    mean: NDArray[np.float64]  # 0 where no value is finite
    m2: NDArray[np.float64]  # sum of squared distances from the mean

    @property
    def finite(self) -> NDArray[np.int64]:
        """(d,) values that mean and std are of."""
        return self.count - self.nan - self.infinite

    @staticmethod
    def of(leaf: NDArray[Any]) -> ColumnStatistics:
        """Figures of the values (N, *shape) of one leaf, N at least 1."""
        rows = leaf.reshape(-1, 1) if math.prod(leaf.shape[1:]) > MAX_ELEMENTS else leaf.reshape(len(leaf), -1)
        rows = rows.view(np.uint8) if rows.dtype == np.bool_ else rows
        step = max(1, CHUNK // max(1, rows.shape[1]))
        total, *parts = (_moments(rows[i : i + step], str(leaf.dtype), leaf.shape[1:]) for i in range(0, len(rows), step))
        for part in parts:
            total = total.merged(part)
        return total

    def merged(self, later: ColumnStatistics) -> ColumnStatistics:
        """Figures of these values and the `later` ones together."""
        finite = self.finite + later.finite
        share = later.finite / np.maximum(finite, 1)
        with np.errstate(all="ignore"):  # values near the largest float64 may overflow: then there is no mean or std
            delta = later.mean - self.mean
            mean, m2 = self.mean + delta * share, self.m2 + later.m2 + delta * delta * self.finite * share
        return replace(
            self,
            dtype=str(np.result_type(self.dtype, later.dtype)),
            **{name: getattr(self, name) + getattr(later, name) for name in ("count", "nan", "infinite")},
            min=np.fmin(self.min, later.min),
            max=np.fmax(self.max, later.max),
            mean=mean,
            m2=m2,
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values; per-element figures nested like a value, numbers that JSON lacks as "inf", "-inf" or null."""
        with np.errstate(all="ignore"):
            std = np.sqrt(self.m2 / self.finite)
        mean, pooled = np.where(self.finite > 0, self.mean, np.nan), math.prod(self.shape) > MAX_ELEMENTS
        figures = {"nan": self.nan, "infinite": self.infinite, "min": self.min, "max": self.max, "mean": mean, "std": std}
        shape = () if pooled else self.shape
        nested = {name: plain_numbers(values.reshape(shape).tolist()) for name, values in figures.items()}
        return {"dtype": self.dtype, "shape": list(self.shape), "pooled": pooled, "count": self.count, **nested}


def _moments(rows: NDArray[Any], dtype: str, shape: tuple[int, ...]) -> ColumnStatistics:
    own = np.ascontiguousarray(rows.T)  # (d, N): sums along memory are pairwise
    values, count = own.astype(np.float64), len(rows)
    good = np.isfinite(values)
    nan, known = np.isnan(values).sum(1), good.sum(1)
    with np.errstate(all="ignore"):  # overflow, as above
        mean = np.where(good, values, 0.0).sum(1) / np.maximum(known, 1)
        m2 = np.square(np.where(good, values - mean[:, None], 0.0)).sum(1)
    low, high = np.fmin.reduce(own, axis=1), np.fmax.reduce(own, axis=1)
    return ColumnStatistics(dtype, shape, count, nan, count - known - nan, low, high, mean, m2)


@dataclass(slots=True)
class ColumnsBuilder:
    """Collects the figures of all columns, batch by batch."""

    columns: dict[str, ColumnStatistics] = field(default_factory=dict)

    def add(self, batch: EpisodeBatch) -> None:
        """Count `batch`. Raises BadEpisode where a column changes its shape."""
        for path, leaf in columns_of(batch):
            before, new = self.columns.get(path), ColumnStatistics.of(leaf)
            if before is not None and before.shape != new.shape:
                what = f"column {path!r} has values of shape {new.shape}, before of {before.shape}"
                fix = "write the two kinds into two datasets"
                raise BadEpisode(what, where=f"batch from episode {batch.ids[0]}", fix=fix)
            self.columns[path] = new if before is None else before.merged(new)

    def as_json(self) -> dict[str, Any]:
        """Figures by path."""
        return {path: column.as_json() for path, column in self.columns.items()}


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


@dataclass(slots=True)
class SpreadBuilder:
    """Collects how all columns are spread, by path: each element, or a large leaf as a whole."""

    columns: dict[str, list[Spread]] = field(default_factory=dict)
    episodes: dict[str, Spread] = field(default_factory=lambda: {"return": Spread(), "length": Spread()})

    def add(self, batch: EpisodeBatch) -> None:
        """Count `batch`: observations acted on, actions, rewards, extra model outputs."""
        self.episodes["return"].add(batch.returns)
        self.episodes["length"].add(batch.lengths)
        for path, leaf in columns_of(batch):
            rows = leaf.reshape(len(leaf), -1) if math.prod(leaf.shape[1:]) <= MAX_SPREADS else leaf.reshape(-1, 1)
            found = self.columns.setdefault(path, [Spread() for _ in range(rows.shape[1])])
            for number, one in enumerate(found):
                for start in range(0, len(rows), CHUNK):
                    one.add(rows[start : start + CHUNK, number])

    def as_json(self) -> dict[str, Any]:
        """`return`, `length` and `columns`; of a column a list."""
        columns = {path: [one.as_json() for one in found] for path, found in self.columns.items()}
        return {**{name: one.as_json() for name, one in self.episodes.items()}, "columns": columns}


def means_over_time(leaf: NDArray[Any], parts: int) -> list[list[float | None]]:
    """Means of up to `parts` equal stretches of a leaf (T, *shape), NaN and infinities left out: of each element of a value, or
    of all together where it is large.
    """
    edges = np.unique(np.linspace(0, len(leaf), parts + 1).astype(np.int64))
    rows = leaf.reshape(len(leaf), -1)
    elements = rows.T if rows.shape[1] <= MAX_SPREADS else [rows]
    return [[_mean(values[start:stop]) for start, stop in pairwise(edges.tolist())] for values in elements]


def _mean(values: NDArray[Any]) -> float | None:
    known = values.astype(np.float64)
    known = known[np.isfinite(known)]
    largest = float(np.abs(known).max(initial=0.0)) or 1.0  # of large values the sum would overflow
    return float((known / largest).mean() * largest) if len(known) else None
