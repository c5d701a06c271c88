"""The smallest and largest value that a space allows, element by element; refuses nothing.

Actions of the scale `normalized` lie in [-1, 1] where their Box has a bound on every side and holds floats; no other leaf has
more than one scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.formats.source import NORMALIZED_SCALE, UNKNOWN_SCALE
from offline_cli.spaces import Space

__all__ = ["Bounds", "bounds_of"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one leaf space allows."""

    low: NDArray[Any]  # shape of one value, or ()
    high: NDArray[Any]
    categories: bool  # whole numbers, each of which stands for something

    @property
    def is_finite(self) -> bool:
        """Whether values can lie on a bound at all."""
        return bool(np.isfinite(self.low).any() or np.isfinite(self.high).any())

    def outside(self, leaf: NDArray[Any]) -> NDArray[np.bool_] | None:
        """(rows, *shape) values beyond a bound, or between categories; None where there are none. NaN and infinities: no."""
        values = leaf.view(np.uint8) if leaf.dtype == np.bool_ else leaf
        floats = values.dtype.kind == "f"
        with np.errstate(invalid="ignore"):
            if len(values) and not (self.categories and floats):
                low, high = values.min(axis=0), values.max(axis=0)  # NaN where there is one: then look at every value
                if not (low != low).any() and not ((low < self.low) | (high > self.high)).any():
                    return None
            bad = (values < self.low) | (values > self.high)
            if self.categories and floats:
                bad |= values != np.floor(values)
        if floats:
            bad &= np.isfinite(values)
        return np.asarray(bad) if bad.any() else None


def bounds_of(space: Space, *, scale: str = UNKNOWN_SCALE) -> Bounds | None:
    """The bounds of a leaf space; `scale`: that of actions. None for a space without any."""
    match space:
        case spaces.Box():
            low, high = space.low, space.high
            if scale == NORMALIZED_SCALE and low.dtype.kind == "f" and np.isfinite(low).all() and np.isfinite(high).all():
                low, high = np.full_like(low, -1), np.full_like(high, 1)
            return Bounds(low, high, categories=False)
        case spaces.Discrete():
            first, last = int(space.start), int(space.start) + int(space.n) - 1
            return Bounds(np.asarray(first), np.asarray(last), categories=True)
        case spaces.MultiDiscrete():
            return Bounds(space.start, space.start + space.nvec - 1, categories=True)
        case spaces.MultiBinary():
            return Bounds(np.asarray(0), np.asarray(1), categories=True)
    return None
