"""Which dimensions say nothing, having one value throughout or lying on a bound of their space; refuses nothing.

Observations, actions and rewards are looked at, each element of a value by itself. A dimension is saturated where a tenth or
more of its values, but not all, lie exactly on a finite bound of its Box, as after clipping; one that knows no value between
its bounds (one-hot, on/off) is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.datasets.validate.bounds import Bounds, bounds_of
from offline_cli.datasets.validate.findings import Findings
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import flatten

__all__ = ["Dimensions"]

SHARE: Final = 0.1  # of values on a bound
MAX_ELEMENTS: Final = 1024  # above, a value is an image: its pixels are not counted one by one


@dataclass(slots=True)
class _Leaf:
    """Figures of one leaf, arrays of the shape of one value."""

    rows: int
    low: NDArray[Any]
    high: NDArray[Any]
    bounds: Bounds | None  # None: saturation means nothing here
    at_low: NDArray[np.int64]
    at_high: NDArray[np.int64]


class Dimensions:
    """Extremes of every dimension of one source."""

    def __init__(self, action_scale: str) -> None:
        self._scale = action_scale
        self._leaves: dict[str, _Leaf] = {}

    def see(self, batch: EpisodeBatch, known: tuple[Space | None, Space | None]) -> None:
        """Take in the observations acted on, actions and rewards of `batch`; `known`: their spaces."""
        if not batch.num_steps:
            return
        for name, tree, space in ((Columns.OBS, batch.obs, known[0]), (Columns.ACTIONS, batch.actions, known[1])):
            parts = {} if space is None else leaf_spaces(space, name)
            for path, leaf in flatten(tree, name):
                self._see(path, leaf, parts.get(path))
        self._see(Columns.REWARDS, batch.rewards, None)

    def _see(self, path: str, leaf: NDArray[Any], space: Space | None) -> None:
        if leaf.dtype.kind not in "biuf" or not leaf.size:
            return
        low, high = _extremes(leaf)
        before = self._leaves.get(path)
        if before is None:
            bounds = _saturable(leaf, space, self._scale if path.startswith(Columns.ACTIONS) else "")
            none = np.zeros(leaf.shape[1:], np.int64)
            before = self._leaves[path] = _Leaf(0, low, high, bounds, none, none.copy())
        elif before.low.shape != leaf.shape[1:]:
            return  # reported as mixed structures
        before.rows += len(leaf)
        before.low, before.high = np.fmin(before.low, low), np.fmax(before.high, high)
        if before.bounds is not None:
            before.at_low += np.count_nonzero(leaf == before.bounds.low, axis=0)
            before.at_high += np.count_nonzero(leaf == before.bounds.high, axis=0)

    def tell(self, findings: Findings, source: str) -> None:
        """Report the dimensions of all that was seen."""
        for path, leaf in self._leaves.items():
            if leaf.rows < 2:
                continue
            constant = np.asarray(leaf.low == leaf.high)
            if constant.any():
                places = (f"{source}, {name} is always {leaf.low[at]!s}" for at, name in _named(path, constant))
                findings.add(source, "constant-dimension", int(np.count_nonzero(constant)), places)
            self._tell_saturated(findings, source, path, leaf, constant)

    def _tell_saturated(self, findings: Findings, source: str, path: str, leaf: _Leaf, constant: NDArray[np.bool_]) -> None:
        on_bound = leaf.at_low + leaf.at_high
        saturated = np.asarray((on_bound >= SHARE * leaf.rows) & (on_bound < leaf.rows) & ~constant)
        if saturated.any():
            shares = on_bound / leaf.rows
            places = (f"{source}, {name}: {shares[at]:.0%} on a bound" for at, name in _named(path, saturated))
            findings.add(source, "saturated-dimension", int(np.count_nonzero(saturated)), places)


def _extremes(leaf: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Smallest and largest value of each element; NaN is left out."""
    values = leaf.view(np.uint8) if leaf.dtype == np.bool_ else leaf
    low, high = values.min(axis=0), values.max(axis=0)
    if values.dtype.kind == "f" and np.isnan(low).any():
        low, high = np.fmin.reduce(values, axis=0), np.fmax.reduce(values, axis=0)
    return np.asarray(low), np.asarray(high)


def _saturable(leaf: NDArray[Any], space: Space | None, scale: str) -> Bounds | None:
    """The bounds that values of a Box of floats may lie on."""
    if not isinstance(space, spaces.Box) or leaf.dtype.kind != "f" or leaf.shape[1:] != space.shape:
        return None
    bounds = bounds_of(space, scale=scale)
    if bounds is None or not bounds.is_finite or math.prod(leaf.shape[1:]) > MAX_ELEMENTS:
        return None
    low, high = (np.where(np.isfinite(side), side, np.nan) for side in (bounds.low, bounds.high))  # nothing equals NaN
    return Bounds(low, high, categories=False)


def _named(path: str, chosen: NDArray[np.bool_]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Index and name of each chosen element: `obs[3]`."""
    for at in np.argwhere(chosen).tolist():
        yield tuple(at), f"{path}[{', '.join(map(str, at))}]" if at else path
