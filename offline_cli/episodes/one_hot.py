"""Choices as float32 vectors of ones and zeros: the one place that knows how, for getters, pieces and networks.

Discrete(n) becomes one vector (n,), MultiDiscrete one (sum of nvec,): those of its components, one after the other, in C order
where there are several axes. Choices count from `start`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.errors import BadEpisode

__all__ = ["choice_counts", "hot_size", "one_hot_leaf"]

FIX = "give the space of this data, or correct the data"


def choice_counts(space: spaces.Discrete[Any] | spaces.MultiDiscrete) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(counts, starts), both (components,): how many choices each component has, and which number is its first."""
    if isinstance(space, spaces.Discrete):
        return np.array([int(space.n)]), np.array([int(space.start)])
    return space.nvec.ravel().astype(np.int64), space.start.ravel().astype(np.int64)


def hot_size(space: spaces.Discrete[Any] | spaces.MultiDiscrete) -> int:
    """The length of a one-hot vector."""
    return int(choice_counts(space)[0].sum())


def one_hot_leaf(values: Any, space: spaces.Discrete[Any] | spaces.MultiDiscrete, *, where: str) -> NDArray[np.float32]:
    """(..., size) for choices (..., *space.shape).

    Raises BadEpisode for a value that is no choice of its component (fractions included), and for another shape.
    """
    counts, starts = choice_counts(space)
    given, shape = np.asarray(values), space.shape or ()
    if given.shape[given.ndim - len(shape) :] != shape:
        raise BadEpisode(f"values of shape {given.shape} for {space}", where=where, fix=FIX)
    flat = given.reshape(*given.shape[: given.ndim - len(shape)], len(counts))
    choices = flat - starts if flat.dtype.kind in "iub" else _whole(flat, space, where) - starts
    outside = (choices < 0) | (choices >= counts)
    if outside.any():
        raise _refused(flat, outside, space, where, "is outside")
    hot = np.zeros((*flat.shape[:-1], int(counts.sum())), np.float32)
    np.put_along_axis(hot, choices.astype(np.int64, copy=False) + (np.cumsum(counts) - counts), 1.0, axis=-1)
    return hot


def _whole(flat: NDArray[Any], space: Any, where: str) -> NDArray[Any]:
    """The same numbers. Raises BadEpisode for text, and for numbers with a fraction, which a cast would round in silence."""
    if flat.dtype.kind != "f":
        raise BadEpisode(f"values of type {flat.dtype} for {space}", where=where, fix=FIX)
    broken = flat != np.floor(flat)  # NaN, too
    if broken.any():
        raise _refused(flat, broken, space, where, "is no whole number, as a choice of")
    return flat


def _refused(flat: NDArray[Any], bad: NDArray[np.bool_], space: Any, where: str, why: str) -> BadEpisode:
    *row, component = (int(i) for i in np.argwhere(bad)[0])
    counts, starts = choice_counts(space)
    first, last = int(starts[component]), int(starts[component] + counts[component]) - 1
    place = tuple(int(i) for i in np.unravel_index(component, space.shape)) if space.shape else ()
    which = f" in component {place[0] if len(place) == 1 else place}" if place else ""
    at = f"{where}, row {row[0] if len(row) == 1 else tuple(row)}" if row else where
    what = f"a value of {flat[(*row, component)]}{which} {why} {space} ({first} to {last})"
    return BadEpisode(what, where=at, fix=FIX)
