"""Statistics of every column in one pass, in float64: count, min and max exact, mean and std to 1e-12; merged in shard order.

Each block is centred on its own mean before it is squared, blocks are joined by Chan's formula, and a mean is kept in two
parts, so that a large offset costs no digits. Leaves of up to 1,024 elements have figures per element, larger ones (images) one
for all. NaN and infinities are counted and left out of mean and std, which divides by n. A column that changes shape raises.
Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.datasets.manifest import Statistics
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.tally import UNFINISHED
from offline_cli.trees import flatten

__all__ = ["PARTS", "ColumnStatistics", "Spread", "SpreadBuilder", "StatisticsBuilder", "means_over_time"]

MAX_ELEMENTS = 1024
FAR = 1000  # a mean of so many standard deviations is kept in one part without loss
CHUNK = 1 << 17  # elements turned to float64 at once: a MiB, which stays in the cache
PLURALS = {Columns.OBS: "observations", Columns.ACTIONS: "actions", Columns.REWARDS: "rewards"}
QUANTILES = (0, 1, 5, 25, 50, 75, 95, 99, 100)  # percent
MAX_SPREADS: Final = 16  # of one leaf; a larger one has one for all its elements
RUNS: Final = 1 << 12  # that are counted at most, of which the parts shown are made
PARTS: Final = 32
HUGE: Final = 1e300


@dataclass(frozen=True, slots=True, eq=False)
class ColumnStatistics:
    """Figures of one leaf: arrays (d,), one entry per element of a value, or one for all elements of a large leaf."""

    dtype: str
    shape: tuple[int, ...]  # of one value
    pooled: bool  # one figure for all elements of a value
    count: int  # values per element, NaN and infinities included
    nan: NDArray[np.int64]
    infinite: NDArray[np.int64]
    finite: NDArray[np.int64]  # values that mean and std are of
    min: NDArray[Any]  # in the column's own dtype; NaN left out
    max: NDArray[Any]
    mean: NDArray[np.float64]
    mean_rest: NDArray[np.float64]  # the rounding error of the mean: far from zero, it would cost std its digits
    m2: NDArray[np.float64]  # sum of squared distances from the mean

    @staticmethod
    def of(leaf: NDArray[Any]) -> ColumnStatistics:
        """Figures of the values (N, *shape) of one leaf, N at least 1."""
        pooled = math.prod(shape := leaf.shape[1:]) > MAX_ELEMENTS
        rows = leaf.reshape(-1, 1) if pooled else leaf.reshape(len(leaf), -1)
        if rows.dtype == np.bool_:
            rows = rows.view(np.uint8)
        step = max(1, CHUNK // max(1, rows.shape[1]))
        parts = [_moments(rows[i : i + step], str(leaf.dtype), shape, pooled) for i in range(0, len(rows), step)]
        total = parts[0]
        for part in parts[1:]:
            total = total.merged(part)
        return total

    @staticmethod
    def of_json(node: Mapping[str, Any]) -> ColumnStatistics | None:
        """Figures that a manifest has, to be merged with others; None where that would lose digits, or where they are none.

        A manifest keeps a mean in one part: far from zero, its rounding error is more than 1e-12 of the std.
        """
        try:
            dtype, shape, pooled, count = (
                np.dtype(node["dtype"]),
                tuple(node["shape"]),
                bool(node["pooled"]),
                int(node["count"]),
            )
            own = np.dtype(np.uint8) if dtype.kind == "b" else dtype
            nan, infinite = (_column(node[name], np.dtype(np.int64)) for name in ("nan", "infinite"))
            low, high = (_column(node[name], own) for name in ("min", "max"))
            mean, std = (_column(node[name], np.dtype(np.float64)) for name in ("mean", "std"))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        width = 1 if pooled else math.prod(shape)
        if dtype.kind not in "biuf" or any(len(part) != width for part in (nan, infinite, low, high, mean, std)):
            return None
        finite, constant = count - nan - infinite, low == high
        if not (constant | np.isnan(mean) | (np.abs(mean) <= FAR * std)).all():
            return None
        mean = np.where(constant & np.isfinite(mean), low, np.where(finite > 0, mean, 0.0)).astype(np.float64)
        m2 = np.where((finite > 0) & ~constant, std * std * finite, 0.0)
        return ColumnStatistics(str(dtype), shape, pooled, count, nan, infinite, finite, low, high, mean, np.zeros(width), m2)

    def merged(self, later: ColumnStatistics) -> ColumnStatistics:
        """Figures of these values and the `later` ones together."""
        finite = self.finite + later.finite
        share = np.divide(later.finite, finite, out=np.zeros(len(finite)), where=finite > 0)
        with np.errstate(all="ignore"):  # values near the largest float64 may overflow: then there is no mean or std
            delta = (later.mean - self.mean) + (later.mean_rest - self.mean_rest)
            mean, rest = _two_sum(self.mean, self.mean_rest + delta * share)
            m2 = self.m2 + later.m2 + delta * delta * self.finite * share
        floats = np.result_type(self.min, later.min).kind == "f"
        smallest, largest = (np.fmin, np.fmax) if floats else (np.minimum, np.maximum)
        return replace(
            self,
            dtype=str(np.result_type(self.dtype, later.dtype)),
            count=self.count + later.count,
            nan=self.nan + later.nan,
            infinite=self.infinite + later.infinite,
            finite=finite,
            min=smallest(self.min, later.min),
            max=largest(self.max, later.max),
            mean=mean,
            mean_rest=rest,
            m2=m2,
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values; per-element figures nested like a value, numbers that JSON lacks as "inf", "-inf" or null."""
        with np.errstate(all="ignore"):
            std = np.sqrt(self.m2 / self.finite)
        mean = np.where(self.finite > 0, self.mean, np.nan)
        figures = {"nan": self.nan, "infinite": self.infinite, "min": self.min, "max": self.max, "mean": mean, "std": std}
        shape = () if self.pooled else self.shape
        nested = {name: plain_numbers(values.reshape(shape).tolist()) for name, values in figures.items()}
        return {"dtype": self.dtype, "shape": list(self.shape), "pooled": self.pooled, "count": self.count, **nested}


def _moments(rows: NDArray[Any], dtype: str, shape: tuple[int, ...], pooled: bool) -> ColumnStatistics:
    count, columns = rows.shape
    own = np.ascontiguousarray(rows.T)  # (d, N): sums along memory are pairwise, so exact to 1e-15
    values = own.astype(np.float64, copy=False)
    nan = infinite = np.zeros(columns, np.int64)
    finite = np.full(columns, count, np.int64)
    smallest: np.ufunc = np.minimum
    largest: np.ufunc = np.maximum
    good: NDArray[np.bool_] | None = None
    if rows.dtype.kind == "f" and not (is_finite := np.isfinite(values)).all():
        good, nan, finite = is_finite, np.isnan(values).sum(1), is_finite.sum(1)
        infinite = count - finite - nan
        smallest, largest = np.fmin, np.fmax  # which leave NaN out, and are several times slower
    low, high = smallest.reduce(own, axis=1), largest.reduce(own, axis=1)
    moments = _centred(values, finite, good)
    return ColumnStatistics(dtype, shape, pooled, count, nan, infinite, finite, low, high, *moments)


def _centred(
    values: NDArray[np.float64], finite: NDArray[np.int64], good: NDArray[np.bool_] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mean (d,), its rounding error, and the sum of squared distances from it, of values (d, N) where `good`."""
    known = np.maximum(finite, 1)
    with np.errstate(all="ignore"):  # overflow, as above
        kept = values if good is None else np.where(good, values, 0.0)
        mean = kept.sum(1) / known
        apart = kept - mean[:, None]
        if good is not None:
            apart[~good] = 0.0
        left = apart.sum(1)  # zero, except for rounding
        squares = np.square(apart, out=apart).sum(1)
        return *_two_sum(mean, left / known), np.maximum(squares - left * left / known, 0.0)


def _two_sum(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """a + b as the nearest float64 and the rest, exactly (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _column(figures: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Figures of a manifest, nested like a value, as an array (d,)."""
    values = np.array(figures, object).ravel().tolist()
    if dtype.kind == "f":
        values = [math.nan if value is None else float(value) for value in values]
    return np.array(values, dtype)


def plain_numbers(values: Any) -> Any:
    """`values` (numbers in lists) with "inf", "-inf" and null for what JSON has no number for."""
    if isinstance(values, list):
        return [plain_numbers(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return None if math.isnan(values) else str(values)
    return values


@dataclass(slots=True)
class StatisticsBuilder:
    """Collects the statistics of a dataset, block by block in shard order."""

    columns: dict[str, ColumnStatistics] = field(default_factory=dict)  # by dotted path: obs.camera, actions, action_logp
    _returns: list[NDArray[np.float64]] = field(default_factory=list)
    _lengths: list[NDArray[np.int64]] = field(default_factory=list)
    episodes: int = 0
    steps: int = 0
    terminated: int = 0
    truncated: int = 0
    unfinished: int = 0  # neither flag
    has_columns: bool = True  # False: figures of columns are left out, because nothing is decoded
    not_finite: Counter[str] = field(default_factory=Counter)  # NaN and infinite values by kind; those of last observations too

    @staticmethod
    def of_json(columns: Mapping[str, Any]) -> StatisticsBuilder:
        """The columns of a manifest's statistics, to be added to, without episodes.

        Where it has none, or `ColumnStatistics.of_json` would lose digits, columns are left out.
        """
        known = {path: ColumnStatistics.of_json(node) for path, node in columns.items()}
        found = {path: column for path, column in known.items() if column is not None}
        whole = bool(found) and len(found) == len(known)
        return StatisticsBuilder(found if whole else {}, has_columns=whole)

    def add_plain(self, table: Any) -> None:
        """Count episodes by their plain columns, a pa.Table; their columns are counted already, or left out."""
        lengths, returns, terminated, truncated = (
            table.column(name).to_numpy() for name in (Columns.LENGTH, Columns.RETURN, Columns.TERMINATED, Columns.TRUNCATED)
        )
        self._lengths.append(lengths)
        self._returns.append(returns)
        self.episodes += len(lengths)
        self.steps += int(lengths.sum())
        self.terminated += int(np.count_nonzero(terminated))
        self.truncated += int(np.count_nonzero(truncated))
        self.unfinished += int(np.count_nonzero(~(terminated | truncated)))

    def copy(self) -> StatisticsBuilder:
        """The same figures so far, to be added to by itself."""
        new = replace(self, columns=dict(self.columns), not_finite=self.not_finite.copy())
        new._returns, new._lengths = list(self._returns), list(self._lengths)
        return new

    def add(self, batch: EpisodeBatch) -> None:
        """Count `batch`: observations acted on, actions, rewards, extra model outputs. Raises BadEpisode on a new shape."""
        trees = {Columns.OBS: batch.acted_obs(view=True), Columns.ACTIONS: batch.actions, Columns.REWARDS: batch.rewards}
        trees |= {name: batch.extra[name] for name in sorted(batch.extra)}
        for name, tree in trees.items() if self.has_columns else ():
            for path, leaf in flatten(tree, name):
                if leaf.dtype.kind in "biuf" and leaf.size:
                    self._count_not_finite(name, self._add_leaf(path, leaf, batch))
        for _, leaf in flatten(batch.obs):
            last = leaf[batch.obs_starts[1:] - 1] if leaf.dtype.kind == "f" and leaf.size else leaf[:0]
            if not np.isfinite(last).all():
                self._count_not_finite(Columns.OBS, ColumnStatistics.of(last))
        self._returns.append(batch.returns)
        self._lengths.append(batch.lengths)
        self.episodes += len(batch)
        self.steps += batch.num_steps
        self.terminated += int(np.count_nonzero(batch.terminated))
        self.truncated += int(np.count_nonzero(batch.truncated))
        self.unfinished += int(np.count_nonzero(~(batch.terminated | batch.truncated)))

    def unfinished_with(self, assumptions: Mapping[str, int]) -> int:
        """Episodes whose recording broke off: those with neither flag, and those that are assumed to be truncated for it.

        Assumptions are counted in blocks, maybe beyond a limit: no more are unfinished than did not terminate.
        """
        return min(self.unfinished + assumptions.get(UNFINISHED, 0), self.episodes - self.terminated)

    def _count_not_finite(self, column: str, found: ColumnStatistics) -> None:
        if (found.finite != found.count).any():
            kind = PLURALS.get(column, "extras")
            self.not_finite[f"nan-in-{kind}"] += int(found.nan.sum())
            self.not_finite[f"infinite-in-{kind}"] += int(found.infinite.sum())
            self.not_finite = +self.not_finite  # no zeros

    def _add_leaf(self, path: str, leaf: NDArray[Any], batch: EpisodeBatch) -> ColumnStatistics:
        before, new = self.columns.get(path), ColumnStatistics.of(leaf)
        if before is not None and before.shape != new.shape:
            what = f"column {path!r} has values of shape {new.shape}, before of {before.shape}"
            raise BadEpisode(what, where=f"batch from episode {batch.ids[0]}", fix="write the two kinds into two datasets")
        self.columns[path] = new if before is None else before.merged(new)
        return new

    def per_episode(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Returns and lengths (E,), in order."""
        return np.concatenate([np.zeros(0), *self._returns]), np.concatenate([np.zeros(0, np.int64), *self._lengths])

    def as_json(self) -> Statistics:
        """The manifest's `statistics`."""
        returns, lengths = map(_distribution, self.per_episode())
        columns = {path: column.as_json() for path, column in self.columns.items()}
        return cast(Statistics, {"columns": columns, "return": returns, "length": lengths})


def _distribution(values: NDArray[Any]) -> dict[str, Any]:
    """Figures of one number per episode; quantiles are exact, interpolated between neighbours."""
    if not len(values):
        none = dict.fromkeys(("min", "max", "mean", "std"))
        return {"count": 0, **none, "quantiles": dict.fromkeys(map(str, QUANTILES))}
    figures = ColumnStatistics.of(values).as_json()
    finite = values[np.isfinite(values)]
    by = 4.0 if len(finite) and max(abs(finite.min()), abs(finite.max())) > HUGE else 1.0  # what is interpolated would overflow
    quantiles = (np.quantile(finite / by, np.array(QUANTILES) / 100) * by).tolist() if len(finite) else [None] * len(QUANTILES)
    kept = {name: figures[name] for name in ("count", "min", "max", "mean", "std")}
    return {**kept, "quantiles": dict(zip(map(str, QUANTILES), quantiles, strict=True))}


# ---- how values are spread ----


@dataclass(slots=True)
class Spread:
    """Counts of values that come in blocks: of each by itself while they are few, else of runs of neighbours.

    The bits of a float64 are an integer, here in the order of the values. A run is all values whose integers agree but for the
    last `shift` bits, which grow where there would be more than RUNS. So the result is the same in any blocks, and nothing is
    subtracted or divided that could overflow, or be 0. NaN and infinities are left out.
    """

    least: int = np.iinfo(np.int64).max  # as such integers: of all values
    most: int = np.iinfo(np.int64).min
    shift: int = 0
    runs: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # ascending
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, values: NDArray[Any]) -> None:
        """Count `values` (N,)."""
        known = values.astype(np.float64) + 0.0  # no negative zeros
        bits = _in_order(known[np.isfinite(known)].view(np.int64))
        if len(bits):
            self.least, self.most = min(self.least, int(bits.min())), max(self.most, int(bits.max()))
            runs, counts = np.unique(bits >> self.shift, return_counts=True)
            self._keep(np.concatenate([self.runs, runs]), np.concatenate([self.counts, counts]))

    def _keep(self, runs: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self.runs, at = np.unique(runs, return_inverse=True)
        self.counts = np.bincount(at, counts, len(self.runs)).astype(np.int64)
        if len(self.runs) > RUNS:
            apart = np.sort((self.runs[1:] ^ self.runs[:-1]).view(np.uint64))  # neighbours join where they differ in lower bits
            more = int(apart[-RUNS]).bit_length()
            self.shift += more
            self._keep(self.runs >> more, self.counts)

    def as_json(self) -> dict[str, list[Any]]:
        """The values in parts, ascending: what each is between, and how many are in it.

        Each value by itself up to PARTS; of more, quantiles: so many parts of about one count, and a run of more by itself.
        """
        if not len(self.runs):
            return {"low": [], "high": [], "counts": []}
        ends = np.cumsum(self.counts)
        alone = np.cumsum((self.counts * PARTS > ends[-1]) | (len(ends) <= PARTS))
        part = (ends - 1) * PARTS // ends[-1] + alone + np.append(0, alone[:-1])
        first = np.flatnonzero(np.diff(part, prepend=-1))
        lowest = self.runs[first] << self.shift
        highest = (self.runs[np.append(first[1:], len(part)) - 1] << self.shift) + ((1 << self.shift) - 1)
        low, high = (_in_order(edge.clip(self.least, self.most)).view(np.float64).tolist() for edge in (lowest, highest))
        return {"low": low, "high": high, "counts": np.add.reduceat(self.counts, first).tolist()}


def _in_order(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bits of float64 as integers in the order of the values, and back."""
    return bits ^ ((bits >> 63) & np.iinfo(np.int64).max)


@dataclass(slots=True)
class SpreadBuilder:
    """Collects how all columns are spread, by the paths of `StatisticsBuilder`: each element, or a large leaf as a whole."""

    columns: dict[str, list[Spread]] = field(default_factory=dict)
    episodes: dict[str, Spread] = field(default_factory=lambda: {"return": Spread(), "length": Spread()})

    def add(self, batch: EpisodeBatch) -> None:
        """Count `batch`: observations acted on, actions, rewards, extra model outputs."""
        self.episodes["return"].add(batch.returns)
        self.episodes["length"].add(batch.lengths)
        trees = {Columns.OBS: batch.acted_obs(view=True), Columns.ACTIONS: batch.actions, Columns.REWARDS: batch.rewards}
        for name, tree in {**trees, **batch.extra}.items():
            for path, leaf in flatten(tree, name):
                if leaf.dtype.kind in "biuf" and leaf.size:
                    self._add_leaf(path, leaf)

    def _add_leaf(self, path: str, leaf: NDArray[Any]) -> None:
        rows = leaf.reshape(len(leaf), -1) if math.prod(leaf.shape[1:]) <= MAX_SPREADS else leaf.reshape(-1, 1)
        found = self.columns.setdefault(path, [Spread() for _ in range(rows.shape[1])])
        for number, one in enumerate(found):
            for start in range(0, len(rows), CHUNK):
                one.add(rows[start : start + CHUNK, number])

    def as_json(self) -> dict[str, Any]:
        """`return`, `length` and `columns`, as in the manifest's `statistics`; of a column a list."""
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
