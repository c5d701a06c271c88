"""Statistics of columns, computed by `inspect` in one pass over the steps, in float64.

A column is a leaf of the observations acted on, actions, rewards or extra model outputs, named by its dotted path. Leaves of up
to 1,024 elements have statistics per element, larger ones (images) one for all. NaN and infinities are counted, and excluded
from mean and std (population). Batches are combined by Chan's formula: min and max are exact, mean and std to nine digits.
Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.datasets.statistics import plain_numbers
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.trees import flatten

MAX_ELEMENTS: Final = 1024
CHUNK: Final = 1 << 17  # elements converted to float64 at a time: 1 MiB, which fits into the CPU cache


def columns_of(batch: EpisodeBatch) -> Iterator[tuple[str, NDArray[Any]]]:
    """The numeric columns of a batch: path and leaf (N, *shape)."""
    trees = {Columns.OBS: batch.acted_obs(view=True), Columns.ACTIONS: batch.actions, Columns.REWARDS: batch.rewards}
    trees |= {name: batch.extra[name] for name in sorted(batch.extra)}
    for name, tree in trees.items():
        yield from ((path, leaf) for path, leaf in flatten(tree, name) if leaf.dtype.kind in "biuf" and leaf.size)


class _ColumnFigures:
    """Running statistics of a column: arrays (d,), one entry per element of a value, or one for all of a large leaf."""

    def __init__(self, leaf: NDArray[Any]) -> None:
        elements = math.prod(leaf.shape[1:])
        self.dtype, self.shape, self.is_pooled = leaf.dtype, leaf.shape[1:], elements > MAX_ELEMENTS
        width = 1 if self.is_pooled else elements
        self.count = 0  # values per element, including NaN and infinities
        self.nan, self.finite = np.zeros(width, np.int64), np.zeros(width, np.int64)
        self.low, self.high = np.zeros((2, 0), leaf.dtype)  # in the column's dtype, without NaN
        self.mean, self.m2 = np.zeros((2, width))  # m2: sum of squared distances from the mean

    def add(self, leaf: NDArray[Any]) -> None:
        """Add the values (N, *shape) of a batch."""
        self.dtype = np.result_type(self.dtype, leaf.dtype)
        leaf = leaf.view(np.uint8) if leaf.dtype == np.bool_ else leaf
        rows = leaf.reshape(-1, 1) if self.is_pooled else leaf.reshape(len(leaf), -1)
        step = max(1, CHUNK // rows.shape[1])
        for start in range(0, len(rows), step):
            self._add_moments(rows[start : start + step])

    def _add_moments(self, rows: NDArray[Any]) -> None:
        own = np.ascontiguousarray(rows.T)  # (d, N): numpy sums contiguous memory pairwise
        values = own.astype(np.float64)
        good = np.isfinite(values)
        known, self.count, self.nan = good.sum(1), self.count + len(rows), self.nan + np.isnan(values).sum(1)
        total = self.finite + known
        with np.errstate(all="ignore"):  # values near the largest float64 may overflow: mean and std are then undefined
            mean = np.where(good, values, 0.0).sum(1) / np.maximum(known, 1)
            m2 = np.square(np.where(good, values - mean[:, None], 0.0)).sum(1)
            share, delta = known / np.maximum(total, 1), mean - self.mean
            self.m2 = self.m2 + m2 + np.where(self.finite > 0, delta * delta, 0.0) * self.finite * share
            self.mean, self.finite = self.mean + delta * share, total
        low, high = np.fmin.reduce(own, axis=1), np.fmax.reduce(own, axis=1)
        is_first = not len(self.low)
        self.low, self.high = (low, high) if is_first else (np.fmin(self.low, low), np.fmax(self.high, high))

    def as_json(self) -> dict[str, Any]:
        """JSON values; per-element statistics are nested like a value; "inf", "-inf" and null for numbers that JSON lacks."""
        with np.errstate(all="ignore"):
            std = np.sqrt(self.m2 / self.finite)
        mean, infinite = np.where(self.finite > 0, self.mean, np.nan), self.count - self.finite - self.nan
        figures = {"nan": self.nan, "infinite": infinite, "min": self.low, "max": self.high, "mean": mean, "std": std}
        shape = () if self.is_pooled else self.shape
        nested = {name: plain_numbers(values.reshape(shape).tolist()) for name, values in figures.items()}
        told = {"dtype": str(self.dtype), "shape": list(self.shape), "pooled": self.is_pooled, "count": self.count}
        return {**told, **nested}


class ColumnsBuilder:
    """Accumulates statistics of all columns."""

    def __init__(self) -> None:
        self._columns: dict[str, _ColumnFigures] = {}

    def add(self, batch: EpisodeBatch) -> None:
        """Add `batch`. Raises BadEpisode if a column changes its shape."""
        for path, leaf in columns_of(batch):
            column = self._columns.setdefault(path, _ColumnFigures(leaf))
            if column.shape != leaf.shape[1:]:
                what = f"column {path!r} has values of shape {leaf.shape[1:]}, earlier ones of shape {column.shape}"
                fix = "write the two kinds of episodes to separate datasets"
                raise BadEpisode(what, where=f"batch from episode {batch.ids[0]}", fix=fix)
            column.add(leaf)

    def as_json(self) -> dict[str, Any]:
        """Statistics by path."""
        return {path: column.as_json() for path, column in self._columns.items()}
