"""Policy, the interface of everything that plays (observations and uniform numbers in, actions out), and the policy `random`.

`uniform_values` and `uniform_drawer` make values of a space that can be stored from uniform numbers, distributed as those of
`space.sample`: bounded dimensions are uniform, half-bounded ones exponential from their bound, unbounded ones normal, as in
gymnasium. The policy `random` draws every action this way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.spaces import Space, check_supported
from offline_cli.trees import Tree

__all__ = ["Acted", "Policy", "RandomPolicy", "sampled", "uniform_drawer", "uniform_size", "uniform_values"]

EDGE = 2.0**-53
Chance = NDArray[np.float64]


@dataclass(slots=True, eq=False)  # not frozen: one is made at every step, which that would slow down threefold
class Acted:
    """The actions of a policy for B observations."""

    actions: Tree  # leaves (B, ...): as they are recorded
    for_env: Tree  # leaves (B, ...): as the environment takes them
    extras: Mapping[str, Tree] = field(default_factory=dict)  # extra model outputs by name: leaves (B, ...)


class Policy(Protocol):
    """A policy ready to play in one environment."""

    fingerprint: str  # distinguishes it from others by content, where the content can be known
    action_scale: str  # "env" | "normalized": of the recorded actions
    chance_size: int  # uniform numbers that a row takes per step; 0: it leaves nothing to chance
    rows_alike: bool  # a row's result depends on the row alone, whatever the shape of the batch
    shows_numbers: bool  # what it computes actions from is in `extras`, so that a difference in the last bit can be seen

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """Observations: leaves (B, ...); chance: (B, chance_size), uniform in [0, 1)."""


def uniform_size(space: Space) -> int:
    """How many uniform numbers a value of `space` takes. Raises UnsupportedSpace."""
    check_supported(space, where="a space to draw from")
    inner = getattr(space, "spaces", None)
    if inner is None:
        return math.prod(space.shape or ())
    return sum(map(uniform_size, inner.values() if hasattr(inner, "values") else inner))


def uniform_drawer(space: Space) -> Callable[[Chance], Tree]:
    """`uniform_values` of one space, for callers that draw at every step."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return lambda chance: uniform_values(space, chance)
    draw, shape = _leaf(space), (-1, *(space.shape or ()))
    return lambda chance: draw(chance.reshape(shape))


def uniform_values(space: Space, chance: Chance) -> Tree:
    """Values: leaves (B, *shape), for `chance` (B, uniform_size(space)), uniform in [0, 1)."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = list(space.spaces.values()) if isinstance(space, spaces.Dict) else list(space.spaces)
        cuts = np.cumsum([uniform_size(part) for part in parts])[:-1]
        values = [uniform_values(part, piece) for part, piece in zip(parts, np.split(chance, cuts, axis=1), strict=True)]
        return dict(zip(space.spaces, values, strict=True)) if isinstance(space, spaces.Dict) else tuple(values)
    return _leaf(space)(chance.reshape(-1, *(space.shape or ())))


def sampled(space: Space, count: int) -> Tree:
    """`count` typical values of `space`, always the same: floats within a few units of 0 where the bounds allow it."""
    return _everyday(space, np.random.default_rng(0), count)


def _everyday(space: Space, rng: np.random.Generator, count: int) -> Tree:
    if isinstance(space, spaces.Dict):
        return {key: _everyday(part, rng, count) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_everyday(part, rng, count) for part in space.spaces)
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f":
        return np.clip(rng.normal(size=(count, *space.shape)), space.low, space.high).astype(space.dtype)
    return uniform_values(space, rng.random((count, uniform_size(space))))


def _leaf(space: Space) -> Callable[[Chance], NDArray[Any]]:
    match space:
        case spaces.Discrete(start=0):  # the usual one, at every step: what is not negative is rounded down by the cast
            count, dtype = int(space.n), space.dtype
            return lambda chance: (chance * count).astype(dtype)
        case spaces.Discrete():
            return lambda chance: (space.start + np.floor(chance * int(space.n))).astype(space.dtype)
        case spaces.MultiDiscrete():
            return lambda chance: (space.start + np.floor(chance * space.nvec)).astype(space.dtype)
        case spaces.MultiBinary():
            return lambda chance: (chance >= 0.5).astype(space.dtype)
        case spaces.Box():
            return lambda chance: _box(space, chance)
    raise AssertionError(space)  # check_supported refuses every other type


def _box(space: spaces.Box, chance: Chance) -> NDArray[Any]:
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    whole = np.dtype(space.dtype).kind in "iub"
    values = _unbounded(chance, low, high)
    bounded = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore", over="ignore"):  # unbounded dimensions are not taken from here
        values = np.where(bounded, low + chance * (high - low + whole), values)
    values = np.clip(np.floor(values) if whole else values, low, high)
    return values.astype(space.dtype)


def _unbounded(chance: Chance, low: Any, high: Any) -> Chance:
    """Draws for dimensions without one bound or both."""
    exponential = -np.log1p(-chance)
    free = ~np.isfinite(low) & ~np.isfinite(high)
    normal = np.zeros(chance.shape)
    if free.any():  # rare, and so no reason to load a library for it
        normal[:, free] = np.vectorize(NormalDist().inv_cdf, otypes=[np.float64])(chance[:, free].clip(EDGE, 1 - EDGE))
    values = np.where(np.isfinite(low), np.where(np.isfinite(low), low, 0) + exponential, normal)
    return np.where(np.isfinite(high) & ~np.isfinite(low), np.where(np.isfinite(high), high, 0) - exponential, values)


class RandomPolicy:
    """Samples actions and ignores observations."""

    fingerprint = "random"
    action_scale = "env"
    rows_alike = True
    shows_numbers = True

    def __init__(self, action_space: Space) -> None:
        self._draw = uniform_drawer(action_space)
        self.chance_size = uniform_size(action_space)

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """See Policy."""
        actions = self._draw(chance)
        return Acted(actions, actions)
