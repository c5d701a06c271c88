"""Structures and spaces: within one source, between several, and dimensions that carry no information.

* `CommonForm`: whether several sources can be one dataset: structures, spaces and action scales, as `convert` compares them.
  Less strict than within one source: an extra model output may have numbers of two dtypes, and gets one that holds both.
* `Structures`: whether all episodes have one structure and one pair of spaces, as a dataset must. Dtypes of observations and
  actions may differ (they get those of the spaces); an extra model output has no space to say which dtype is right, so there a
  dtype that differs is another structure.
* `Dimensions`: which dimensions are constant, or lie on a bound of their space. Observations, actions and rewards are checked,
  each element of a value by itself. A dimension is saturated where a tenth or more of its values, but not all, lie exactly on a
  finite bound of its Box, as after clipping; one that knows no value between its bounds (one-hot, on/off) is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.checking.validate.findings import Findings
from offline_cli.checking.validate.values import Bounds, bounds_of
from offline_cli.columns import Columns
from offline_cli.converting.fitting import extra_kinds
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.meanings import Meanings
from offline_cli.spaces import Space, describe, leaf_spaces, same_space
from offline_cli.trees import flatten

__all__ = ["CommonForm", "Dimensions", "Structures", "difference"]

Spaces = tuple[Space | None, Space | None]

SHARE: Final = 0.1  # of values on a bound
MAX_ELEMENTS: Final = 1024  # above, a value is an image: its pixels are not counted one by one


class CommonForm:
    """What the first source has, with which each later one is compared; one for all sources."""

    def __init__(self, *, compare_spaces: bool) -> None:
        """`compare_spaces`: the spaces that sources declare count, because no environment is named."""
        self._compare_spaces = compare_spaces
        self._first: tuple[str, dict[str, str], dict[str, str], Spaces] | None = None
        self._scale: tuple[str, str] | None = None

    def other_structure(self, source: str, batch: EpisodeBatch, spaces: Spaces) -> str:
        """How `batch`, whose source has `spaces`, differs from the first source, as text; empty where it does not.

        Shapes are compared where a space is not known; where both are, `other_spaces` reports it.
        """
        extra, shapes = extra_kinds(batch.extra), _shapes(batch)
        self._first = self._first or (source, extra, shapes, spaces)
        first, first_extra, first_shapes, first_spaces = self._first
        if source == first:
            return ""
        known = None not in spaces and None not in first_spaces
        found = difference(extra, first_extra, "extra ") or ("" if known else difference(shapes, first_shapes))
        return found and f"{found} in {first}"

    def other_spaces(self, source: str, spaces: Spaces) -> str:
        """How declared `spaces` differ from those of the first source, as text; after `other_structure`."""
        if not self._compare_spaces or self._first is None or source == self._first[0]:
            return ""
        for mine, theirs in zip(spaces, self._first[3], strict=True):
            if mine is not theirs and mine is not None and theirs is not None and not same_space(mine, theirs):
                return f"{describe(mine)}, before {describe(theirs)} in {self._first[0]}"
        return ""

    def other_scale(self, source: str, scale: str) -> str:
        """How the scale of a source with Box actions differs from the first such one's, as text."""
        self._scale = self._scale or (source, scale)
        return "" if scale == self._scale[1] else f"{scale}, before {self._scale[1]} in {self._scale[0]}"


def difference(mine: dict[str, str], first: dict[str, str], name: str = "") -> str:
    """The first path at which two structures differ, as text; empty where they do not."""
    path = next((path for path in {**mine, **first} if mine.get(path) != first.get(path)), None)
    return "" if path is None else f"{name}{path} is {mine.get(path, 'absent')}, before {first.get(path, 'absent')}"


def _shapes(batch: EpisodeBatch) -> dict[str, str]:
    trees = (("obs", batch.obs), ("actions", batch.actions))
    return {path: f"of shape {list(leaf.shape[1:])}" for name, tree in trees for path, leaf in flatten(tree, name)}


class Structures:
    """Compares every batch of one source with its first."""

    def __init__(
        self, findings: Findings, source: str, common: CommonForm, *, spaces_known: bool, compare_spaces: bool
    ) -> None:
        """`spaces_known`: shapes are compared with those instead; `compare_spaces`: what episodes declare counts.

        `common`: what is compared between sources.
        """
        self._findings, self._source, self._common = findings, source, common
        self._spaces_known, self._compare_spaces = spaces_known, compare_spaces
        self._first: dict[str, str] | None = None
        self._spaces: tuple[Space | None, Space | None] | None = None

    def see(self, batch: EpisodeBatch, spaces: tuple[Space | None, Space | None]) -> None:
        """Compare `batch`; `spaces`: those of its source, or else its own."""
        mine = _structure(batch, shapes=not self._spaces_known)
        self._first = self._first or mine
        other = difference(mine, self._first) or self._common.other_structure(self._source, batch, spaces)
        if other:
            self._add("mixed-structures", batch, other)
        other = self._own_difference((batch.observation_space, batch.action_space)) if self._compare_spaces else ""
        other = other or self._common.other_spaces(self._source, spaces)
        if other:
            self._add("mixed-spaces", batch, other)

    def _own_difference(self, spaces: tuple[Space | None, Space | None]) -> str:
        """How the spaces of a batch differ from those of the first one, as text."""
        if self._spaces is None:
            self._spaces = spaces
        other = [pair for pair in zip(spaces, self._spaces, strict=True) if pair[0] is not pair[1] and not same_space(*pair)]
        return f"{describe(other[0][0])}, before {describe(other[0][1])}" if other else ""

    def _add(self, code: str, batch: EpisodeBatch, example: str) -> None:
        places = (f"{self._source}, episode {episode}" for episode in batch.ids)
        self._findings.add(self._source, code, len(batch), places, example=example, episodes=batch.ids)


def _structure(batch: EpisodeBatch, *, shapes: bool) -> dict[str, str]:
    """What two batches must share, by path."""
    found = _shapes(batch) if shapes else {}
    for name, tree in batch.extra.items():
        found |= {path: f"{leaf.dtype} of shape {list(leaf.shape[1:])}" for path, leaf in flatten(tree, f"extra {name}")}
    return found


@dataclass(slots=True)
class _Leaf:
    """Figures of one leaf, arrays of the shape of one value."""

    rows: int
    low: NDArray[Any]
    high: NDArray[Any]
    bounds: Bounds | None  # None: saturation is meaningless here
    at_low: NDArray[np.int64]
    at_high: NDArray[np.int64]


class Dimensions:
    """Extremes of every dimension of one source."""

    def __init__(self, action_scale: str, meanings: Meanings) -> None:
        self._scale, self._meanings = action_scale, meanings
        self._leaves: dict[str, _Leaf] = {}

    def see(self, batch: EpisodeBatch, known: tuple[Space | None, Space | None]) -> None:
        """Add the observations acted on, actions and rewards of `batch`; `known`: their spaces."""
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
        """Report the constant and saturated dimensions."""
        for path, leaf in self._leaves.items():
            if leaf.rows < 2:
                continue
            constant = np.asarray(leaf.low == leaf.high)
            if constant.any():
                places = (f"{source}, {name} is always {leaf.low[at]!s}" for at, name in self._named(path, constant))
                findings.add(source, "constant-dimension", int(np.count_nonzero(constant)), places)
            self._tell_saturated(findings, source, path, leaf, constant)

    def _named(self, path: str, chosen: NDArray[np.bool_]) -> Iterator[tuple[tuple[int, ...], str]]:
        """Index and name of each chosen element."""
        for at in np.argwhere(chosen).tolist():
            yield tuple(at), self._meanings.named(path, at, chosen.shape)

    def _tell_saturated(self, findings: Findings, source: str, path: str, leaf: _Leaf, constant: NDArray[np.bool_]) -> None:
        on_bound = leaf.at_low + leaf.at_high
        saturated = np.asarray((on_bound >= SHARE * leaf.rows) & (on_bound < leaf.rows) & ~constant)
        if saturated.any():
            shares = on_bound / leaf.rows
            places = (f"{source}, {name}: {shares[at]:.0%} on a bound" for at, name in self._named(path, saturated))
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
