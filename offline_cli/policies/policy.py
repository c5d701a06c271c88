"""Policy, the interface of everything that plays (observations and uniform numbers in, actions out), and the policy `random`.

* `row_writer`, `fitted`: observations of environments as rows of arrays; what the space cannot hold is an error. numpy alone
  would repeat values to fill a shape, and cut numbers to fit a type.
* `uniform_values`, `uniform_drawer`: values of a space that can be stored from uniform numbers, distributed as those of
  `space.sample`: bounded dimensions are uniform, half-bounded ones exponential from their bound, unbounded ones normal, as in
  gymnasium. The policy `random` draws every action this way.
* `block_rows`: how many rows a policy may see at once, such that an episode is the same whatever plays beside it. Two things
  are tried at the start, on invented observations. In some networks a row's result differs with its place in the block (seen:
  hidden layers of odd widths): such a policy sees one row at a time. In most networks blocks of other sizes give the same bits:
  then the block may be as large as the slots, which is faster. Neither is taken for granted, nor tried where the numbers behind
  an action cannot be seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Final, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.episode_spaces import category_bounds, space_tree
from offline_cli.spaces import Space, check_supported, describe, leaf_spaces
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = [
    "BLOCK_ROWS",
    "EVALUATION_ROWS",
    "RAISED",
    "Acted",
    "Policy",
    "RandomPolicy",
    "block_rows",
    "fitted",
    "row_writer",
    "rows_of",
    "sampled",
    "uniform_drawer",
    "uniform_size",
    "uniform_values",
]

EDGE = 2.0**-53
RAISED: Final = (Exception, SystemExit)  # by policies, which may be a user's code
BLOCK_ROWS: Final = 32
EVALUATION_ROWS: Final = 16  # of a block in evaluations of as many episodes and more, and in programs
OTHER_ROWS: Final = (8, 16, 32, 64, 128, 256)
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


# ---- rows ----


def rows_of(tree: Tree, rows: Any) -> Tree:
    """These rows of every leaf."""
    return tree[rows] if isinstance(tree, np.ndarray) else map_leaves(lambda leaf: leaf[rows], tree)


def row_writer(rows: Tree, noun: str = "an observation") -> Callable[[int, Tree], None]:
    """What puts one value, `noun` in messages, into its row of `rows`, leaves (B, *shape).

    It raises ValueError for another structure or shape, and for numbers that the leaf's dtype cannot hold.
    """
    if not isinstance(rows, np.ndarray):
        return lambda row, value: _write_tree(rows, row, value, noun)
    shape, dtype = rows.shape[1:], rows.dtype

    def write(row: int, value: Any) -> None:
        if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:  # the usual case, and quick
            rows[row] = value
        else:
            _write(rows, row, value, noun)

    return write


def _write_tree(rows: Tree, row: int, value: Tree, noun: str) -> None:
    map_leaves(lambda target, leaf: _write(target, row, leaf, noun), rows, value)


def _write(target: NDArray[Any], row: int, value: Any, noun: str) -> None:
    value = np.asarray(value)
    if value.shape != target.shape[1:]:
        raise ValueError(f"{noun} of shape {value.shape}, and the space says {target.shape[1:]}")
    target[row] = fitted(value, target.dtype, noun)


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


# ---- values from uniform numbers ----


def uniform_size(space: Space) -> int:
    """How many uniform numbers a value of `space` takes. Raises UnsupportedSpace."""
    check_supported(space, where="a space to draw from")
    return sum(math.prod(leaf.shape or ()) for leaf in leaf_spaces(space).values())


def uniform_drawer(space: Space) -> Callable[[Chance], Tree]:
    """`uniform_values` of one space, for callers that draw at every step."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return lambda chance: uniform_values(space, chance)
    draw, shape = _leaf(space), (-1, *(space.shape or ()))
    return lambda chance: draw(chance.reshape(shape))


def uniform_values(space: Space, chance: Chance) -> Tree:
    """Values: leaves (B, *shape), for `chance` (B, uniform_size(space)), uniform in [0, 1)."""
    cuts = np.cumsum([uniform_size(leaf) for leaf in leaf_spaces(space).values()])[:-1]
    columns = iter(np.split(chance, cuts, axis=1))
    return map_leaves(lambda leaf: _leaf(leaf)(next(columns).reshape(-1, *(leaf.shape or ()))), space_tree(space))


def sampled(space: Space, count: int) -> Tree:
    """`count` typical values of `space`, always the same: floats within a few units of 0 where the bounds allow it."""
    rng = np.random.default_rng(0)

    def typical(leaf: Space) -> NDArray[Any]:
        if isinstance(leaf, spaces.Box) and np.dtype(leaf.dtype).kind == "f":
            return np.clip(rng.normal(size=(count, *leaf.shape)), leaf.low, leaf.high).astype(leaf.dtype)
        return _leaf(leaf)(rng.random((count, uniform_size(leaf))).reshape(-1, *(leaf.shape or ())))

    return map_leaves(typical, space_tree(space))


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


# ---- blocks ----


def block_rows(policy: Policy, observation_space: Space, slots: int, rows: int = BLOCK_ROWS) -> int:
    """The rows of a block for so many slots, such that results do not depend on their number: those of blocks of `rows`."""
    if policy.rows_alike:
        return rows
    if rows > 1 and not _place_is_nothing(policy, observation_space, rows):
        return 1
    if not policy.shows_numbers:
        return rows
    return next(size for size in _candidates(slots, rows) if size == rows or _same_bits(policy, observation_space, size, rows))


def _candidates(slots: int, rows: int) -> Iterator[int]:
    """Sizes from the one that holds all slots, or the largest, towards `rows`."""
    sizes = sorted({*OTHER_ROWS, rows})
    first = next((size for size in sizes if size >= slots), sizes[-1])
    at, end = sizes.index(first), sizes.index(rows)
    yield from sizes[at : end + 1] if at <= end else sizes[end : at + 1][::-1]


def _place_is_nothing(policy: Policy, observation_space: Space, rows: int) -> bool:
    """Whether a row gives the same in several places of a block; no, where the policy raises for invented observations."""
    observations, chance = _invented(policy, observation_space, rows)
    try:
        straight = _outputs(policy, observations, chance, rows)
    except RAISED:
        return False
    for shift in sorted({1, 3, 8, rows // 2}):
        order = np.roll(np.arange(rows), shift)
        if not _equal([leaf[order] for leaf in straight], _outputs(policy, rows_of(observations, order), chance[order], rows)):
            return False
    return True


def _same_bits(policy: Policy, observation_space: Space, size: int, rows: int) -> bool:
    """Whether blocks of `size` rows give what blocks of `rows` rows give."""
    observations, chance = _invented(policy, observation_space, math.lcm(size, rows))
    return _equal(*(_outputs(policy, observations, chance, each) for each in (size, rows)))


def _invented(policy: Policy, observation_space: Space, count: int) -> tuple[Tree, NDArray[np.float64]]:
    return sampled(observation_space, count), np.random.default_rng(0).random((count, policy.chance_size))


def _outputs(policy: Policy, observations: Tree, chance: NDArray[np.float64], rows: int) -> list[NDArray[Any]]:
    """Every leaf of what the policy gives, by blocks of `rows` rows."""
    blocks = [slice(start, start + rows) for start in range(0, len(chance), rows)]
    found = [policy.act(rows_of(observations, block), chance[block]) for block in blocks]
    parts = [[leaf for tree in (it.actions, it.for_env, *it.extras.values()) for leaf in leaves(tree)] for it in found]
    return [np.concatenate(leaf) for leaf in zip(*parts, strict=True)]


def _equal(here: list[NDArray[Any]], there: list[NDArray[Any]]) -> bool:
    return all(np.array_equal(*pair, equal_nan=pair[0].dtype.kind == "f") for pair in zip(here, there, strict=True))
