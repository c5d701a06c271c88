"""Policy, the interface of everything that plays: observations in, actions out; and the policy `random`.

A policy acts for B episodes at a time. It keeps what it remembers of them in a state, which its caller hands from call to call:
one slot for each episode that plays. Everything that plays calls it in the same way: `record`, `evaluate`, the checks of
training, and programs (`load_policy`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.episode_spaces import category_bounds, space_tree
from offline_cli.spaces import Space, check_supported, describe, leaf_spaces
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = [
    "FAILED_ROW",
    "RAISED",
    "Acted",
    "Policy",
    "RandomPolicy",
    "Seen",
    "category_check",
    "fitted",
    "fitter",
    "rows_of",
    "sampled",
    "stacked_rows",
]

RAISED: Final = (Exception, SystemExit)  # by environments, policies and pieces, which may be a user's code
FAILED_ROW: Final = "offline_cli_failed_row"  # of what a policy raises: the row that it raises for, where it knows
Index = NDArray[np.int64]


@dataclass(slots=True, eq=False)  # neither is frozen: one is made at every step, which that would slow down threefold
class Seen:
    """What B episodes have come to."""

    obs: Tree  # leaves (B, ...): the latest observations, of the environment
    slots: Index  # (B,) where their states are kept: ascending, and no two alike
    begins: NDArray[np.bool_]  # (B,) whether the observation is the first of its episode
    rewards: NDArray[np.float64]  # (B,) of the last action; 0 where the episode begins
    infos: Sequence[Mapping[str, Any]] | None = None  # (B,) that came with the observations; None: there are none
    episodes: Index | None = None  # (B,) numbers of the episodes; None: not known
    chance: NDArray[np.float64] | None = None  # (B, chance_size) uniform in [0, 1): what is drawn follows from it


@dataclass(slots=True, eq=False)
class Acted:
    """The actions of a policy for B episodes."""

    actions: Tree  # leaves (B, ...): as they are recorded
    for_env: Tree  # leaves (B, ...): as the environment takes them
    extras: Mapping[str, Tree] = field(default_factory=dict)  # extra model outputs by name: leaves (B, ...)
    state: Any = None  # to be handed to the next call


class Policy(Protocol):
    """A policy ready to play in one environment."""

    fingerprint: str  # distinguishes it from others by content, where the content can be known
    action_scale: str  # "env" | "normalized": of the recorded actions
    chance_size: int  # uniform numbers that a row takes per step where it explores; 0: it draws otherwise, or not at all

    def act(self, seen: Seen, state: Any, explore: bool) -> Acted:
        """Actions, and the state for the next call; `state` None: no episode has begun. `explore`: sample actions."""


class RandomPolicy:
    """Samples actions as the space does, and ignores observations; of each episode from a generator of its own."""

    fingerprint = "random"
    action_scale = "env"
    chance_size = 1

    def __init__(self, action_space: Space) -> None:
        check_supported(action_space, where="a space to draw from")
        self._space = action_space

    def act(self, seen: Seen, state: Any, explore: bool) -> Acted:
        """See Policy."""
        assert seen.chance is not None, "it always draws"
        generators = {} if state is None else state
        for row in np.flatnonzero(seen.begins).tolist():
            generators[int(seen.slots[row])] = np.random.default_rng(int(seen.chance[row, 0] * 2.0**53))
        drawn = [self._drawn(generators[slot]) for slot in seen.slots.tolist()]
        actions = stacked_rows(drawn)
        return Acted(actions, actions, state=generators)

    def _drawn(self, generator: np.random.Generator) -> Tree:
        return map_leaves(lambda leaf: _sample(leaf, generator), space_tree(self._space))


def _sample(space: Space, generator: np.random.Generator) -> NDArray[Any]:
    """A value of a leaf space by gymnasium's own rule, drawn from `generator`."""
    if type(space) is spaces.Discrete:  # the usual one, at every step
        return np.asarray(int(space.start) + generator.integers(int(space.n)), space.dtype)
    space._np_random = generator  # seeding the space would cost more than the draw
    return np.asarray(space.sample())


# ---- rows ----


def rows_of(tree: Tree, rows: Any) -> Tree:
    """These rows of every leaf."""
    return tree[rows] if isinstance(tree, np.ndarray) else map_leaves(lambda leaf: leaf[rows], tree)


def stacked_rows(values: Sequence[Tree]) -> Tree:
    """Leaves (B, ...) of B values of one structure."""
    return np.array(values) if isinstance(values[0], np.ndarray) else map_leaves(lambda *parts: np.stack(parts), *values)


def fitter(space: Space, noun: str = "an observation") -> Callable[[Any], Tree]:
    """What turns one value of `space`, `noun` in messages, into arrays in the space's dtypes.

    It raises ValueError for another structure or shape, and for numbers that the leaf's dtype cannot hold.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        like = space_tree(space)
        return lambda value: map_leaves(lambda leaf, part: _fitted_value(part, leaf.shape or (), leaf.dtype, noun), like, value)
    shape, dtype = space.shape or (), np.dtype(space.dtype)

    def fit(value: Any) -> Tree:
        if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:  # the usual case, and quick
            return value
        return _fitted_value(value, shape, dtype, noun)

    return fit


def _fitted_value(value: Any, shape: tuple[int, ...], dtype: Any, noun: str) -> NDArray[Any]:
    value = np.asarray(value)
    if value.shape != shape:
        raise ValueError(f"{noun} of shape {value.shape}, and the space says {shape}")
    return fitted(value, dtype, noun)


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
    """What raises ValueError where a value in rows of `space` is none of its categories: no dataset can hold it."""
    bounds = [
        (at, part, *category_bounds(part))
        for at, part in enumerate(leaf_spaces(space).values())
        if isinstance(part, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))
    ]

    def check(rows: Tree) -> None:
        found = leaves(rows)
        for at, part, low, high in bounds:
            bad = (found[at] < low) | (found[at] > high)
            if bad.any():
                raise ValueError(f"{noun} {found[at][bad].flat[0]}, which is no category of {describe(part)}")

    return check if bounds else lambda rows: None


def sampled(space: Space, count: int) -> Tree:
    """`count` typical values of `space`, always the same: floats within a few units of 0 where the bounds allow it."""
    rng = np.random.default_rng(0)

    def typical(leaf: Space) -> NDArray[Any]:
        if isinstance(leaf, spaces.Box) and np.dtype(leaf.dtype).kind == "f":
            return np.clip(rng.normal(size=(count, *leaf.shape)), leaf.low, leaf.high).astype(leaf.dtype)
        return np.stack([_sample(leaf, rng) for _ in range(count)])

    return map_leaves(typical, space_tree(space))
