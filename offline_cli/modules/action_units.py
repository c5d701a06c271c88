"""Scaling of Box actions between environment units and network units.

A network works in about [-1, 1] whatever the bounds, and its outputs are stretched to them for the environment. Data of the
scale `env` is brought there before it is learned from; data of the scale `normalized`, a module's own outputs, is there
already: both teach the same policy. Decisions, which are RLlib's (`normalize_action`, `unsquash_action`) wherever it has one:

* A Box without a bound somewhere is not scaled at all: its units are the environment's. The largest number of a wide dtype,
  which some environments put there in place of infinity, is not a bound.
* Integer boxes are recorded in the environment's units at either scale. Networks work in [-1, 1] there too.
* A normalized action beyond [-1, 1] is learned as it was recorded. What goes to an environment is clipped to its bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.spaces import Space, leaf_spaces, map_space
from offline_cli.trees import Tree, flatten, unflatten_like

__all__ = ["ForEnvironment", "Span", "in_network_units", "network_space", "span_of"]

ROWS: Final = 1 << 16  # scaled at a time: float64 in between, and no second copy of all the actions


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """The bounds of a Box, all of them finite: arrays of the Box's shape, in the environment's units.

    They have the Box's own dtype where its width fits into that, so that `stretched` gives RLlib's numbers bit for bit.
    """

    low: NDArray[Any]
    width: NDArray[Any]

    def normalised(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """(B, *shape) in [-1, 1] within the bounds."""
        half = self.width.astype(np.float64) / 2
        divisor = np.where(half > 0, half, 1.0)  # in dimensions of a single value any will do
        within: NDArray[np.float64] = (values.astype(np.float64) - (self.low + half)) / divisor
        return within

    def stretched(self, values: NDArray[Any]) -> NDArray[Any]:
        """(B, *shape) in the environment's units: the way back."""
        found: NDArray[Any] = self.low + (values + 1.0) * self.width / 2.0
        return found


def span_of(space: spaces.Box) -> Span | None:
    """The bounds that actions are scaled by; None for unbounded spaces."""
    dtype, low, high = np.dtype(space.dtype), space.low.astype(np.float64), space.high.astype(np.float64)
    if dtype.kind == "f":  # many a float64 box has float32's
        limit = float(np.finfo(np.float16 if dtype.itemsize == 2 else np.float32).max)
    else:
        limit = float(np.iinfo(dtype).max) if dtype.itemsize >= 4 else float("inf")
    if not ((np.abs(low) < limit) & (np.abs(high) < limit)).all():
        return None
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            width = space.high - space.low
        if np.isfinite(width).all():
            low, high = space.low, space.high
    return Span(low, high - low)


class ForEnvironment:
    """Actions, leaves (B, *shape), as an environment with this action space takes them: its units, bounds and dtypes."""

    def __init__(self, space: Space, stretched_by: Space | None = None, *, normalized: bool = True) -> None:
        """`normalized`: boxes are in about [-1, 1], and stretched to the bounds of `stretched_by` (None: of `space`), which has
        the same structure; else they are clipped alone.
        """
        self._leaves, self._normalized = leaf_spaces(space), normalized
        by = leaf_spaces(stretched_by or space)
        boxes = {path: leaf for path, leaf in by.items() if normalized and isinstance(leaf, spaces.Box)}
        self._spans = {path: span_of(leaf) for path, leaf in boxes.items()}

    def __call__(self, actions: Tree) -> Tree:
        """New arrays: environments may write into them."""
        return unflatten_like(actions, [self._fitted(path, np.asarray(leaf)) for path, leaf in flatten(actions)])

    def _fitted(self, path: str, values: NDArray[Any]) -> NDArray[Any]:
        space = self._leaves[path]
        if not isinstance(space, spaces.Box):
            return values.astype(space.dtype)
        dtype, span = np.dtype(space.dtype), self._spans.get(path)
        if self._normalized and values.dtype.kind in "iub" and dtype.kind in "iu":  # choices, counted from the lowest
            values = space.low + values
        elif span is not None:
            values = span.stretched(values)
        values = np.clip(values, space.low, space.high)
        return (np.rint(values) if dtype.kind in "iu" else values).astype(dtype, copy=False)


def in_network_units(actions: Tree, space: Space, *, action_scale: str) -> Tree:
    """Recorded actions (leaves (N, *shape)) as a network learns them: Box leaves with bounds in about [-1, 1], float32.

    `action_scale`: `env` or `normalized`, of the boxes that are not integers. Boxes of floats that need no scaling become
    float32 nevertheless; all other leaves stay as they are.
    """
    parts = leaf_spaces(space)
    return unflatten_like(actions, [_scaled(leaf, parts[path], action_scale) for path, leaf in flatten(actions)])


def _scaled(leaf: NDArray[Any], space: Space, action_scale: str) -> NDArray[Any]:
    if not isinstance(space, spaces.Box):
        return leaf
    floats = np.dtype(space.dtype).kind == "f"
    span = None if floats and action_scale == "normalized" else span_of(space)
    if span is None:
        return leaf.astype(np.float32, copy=False) if floats else leaf
    scaled = np.empty(leaf.shape, np.float32)
    for first in range(0, len(leaf), ROWS):
        scaled[first : first + ROWS] = span.normalised(leaf[first : first + ROWS])
    return scaled


def network_space(space: Space) -> Space:
    """The space of what `in_network_units` gives for actions of `space`: its boxes have no bounds, for values lie beyond."""

    def unbounded(leaf: Space) -> Space:
        if not isinstance(leaf, spaces.Box) or (span_of(leaf) is None and np.dtype(leaf.dtype).kind != "f"):
            return leaf
        return spaces.Box(-np.inf, np.inf, leaf.shape, np.float32)

    return map_space(unbounded, space)
