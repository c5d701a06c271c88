"""Values of environments and policies as arrays in the dtypes of their space; ValueError for what the space cannot hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.episode_spaces import category_bounds, space_tree
from offline_cli.spaces import Space, describe, leaf_spaces
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["category_check", "fitted", "fitter"]


def fitter(space: Space, noun: str = "an observation") -> Callable[[Any], Tree]:
    """A function that converts one value of `space` to arrays in the space's dtypes; `noun` names the value in messages.

    It raises ValueError for another structure or shape, and for numbers that the leaf's dtype cannot hold.
    """
    like = space_tree(space)
    if isinstance(like, (dict, tuple)):
        return lambda value: map_leaves(lambda leaf, part: _fitted_leaf(part, leaf, noun), like, value)
    shape, dtype = space.shape or (), np.dtype(space.dtype)

    def fit(value: Any) -> Tree:
        if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:  # the usual case, and quick
            return value
        return _fitted_leaf(value, space, noun)

    return fit


def _fitted_leaf(value: Any, space: Space, noun: str) -> NDArray[Any]:
    value = np.asarray(value)
    if value.shape != (space.shape or ()):
        raise ValueError(f"{noun} of shape {value.shape}, and the space says {space.shape or ()}")
    return fitted(value, space.dtype, noun)


def fitted(values: NDArray[Any], dtype: Any, noun: str = "an observation") -> NDArray[Any]:
    """`values` as `dtype`, rounded where both are floats. Raises ValueError where that changes what they say."""
    if values.dtype == dtype:
        return values
    if values.dtype.kind not in "biufO":
        raise ValueError(f"{noun} of {values.dtype}, which is not numeric")
    with np.errstate(invalid="ignore", over="ignore"):  # NaN is not an integer, which the comparison finds
        turned = values.astype(dtype)
    rounded = values.dtype.kind == turned.dtype.kind == "f"
    if not rounded and not np.array_equal(turned, values):
        raise ValueError(f"{noun} of {values.dtype}, and the space's {np.dtype(dtype)} cannot hold its values")
    return turned


def category_check(space: Space, noun: str) -> Callable[[Tree], None]:
    """A function that raises ValueError for rows of `space` with values outside its categories."""
    parts = enumerate(leaf_spaces(space).values())
    bounds = [(at, part, *category_bounds(part)) for at, part in parts if not isinstance(part, spaces.Box)]

    def check(rows: Tree) -> None:
        found = leaves(rows)
        for at, part, low, high in bounds:
            bad = (found[at] < low) | (found[at] > high)
            if bad.any():
                raise ValueError(f"{noun} {found[at][bad].flat[0]}, which is no category of {describe(part)}")

    return check
