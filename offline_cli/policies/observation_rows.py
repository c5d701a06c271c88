"""Observations of environments as rows of arrays, and how many rows a policy may see at once.

* `row_writer`, `fitted`: what the space cannot hold is an error. numpy alone would repeat values to fill a shape, and cut
  numbers to fit a type.
* `block_rows`: how many rows a block has, such that an episode is the same whatever plays beside it. Two things are tried at
  the start, on invented observations. In some networks a row's result differs with its place in the block (seen: hidden layers
  of odd widths): such a policy sees one row at a time. In most networks blocks of other sizes give the same bits: then the
  block may be as large as the slots, which is faster. Neither is taken for granted, nor tried where the numbers behind an
  action cannot be seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.policies.policy import Policy, sampled
from offline_cli.spaces import Space
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["BLOCK_ROWS", "RAISED", "block_rows", "fitted", "row_writer", "rows_of"]

RAISED: Final = (Exception, SystemExit)  # by policies, which may be a user's code
BLOCK_ROWS: Final = 32
OTHER_ROWS: Final = (8, 16, 32, 64, 128, 256)


def rows_of(tree: Tree, rows: Any) -> Tree:
    """These rows of every leaf."""
    return tree[rows] if isinstance(tree, np.ndarray) else map_leaves(lambda leaf: leaf[rows], tree)


def row_writer(rows: Tree) -> Callable[[int, Tree], None]:
    """What puts one value into its row of `rows`, leaves (B, *shape).

    It raises ValueError for another structure or shape, and for numbers that the leaf's dtype cannot hold.
    """
    if not isinstance(rows, np.ndarray):
        return lambda row, value: _write_tree(rows, row, value)
    shape, dtype = rows.shape[1:], rows.dtype

    def write(row: int, value: Any) -> None:
        if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:  # the usual case, and quick
            rows[row] = value
        else:
            _write(rows, row, value)

    return write


def _write_tree(rows: Tree, row: int, value: Tree) -> None:
    map_leaves(lambda target, leaf: _write(target, row, leaf), rows, value)


def _write(target: NDArray[Any], row: int, value: Any) -> None:
    value = np.asarray(value)
    if value.shape != target.shape[1:]:
        raise ValueError(f"an observation of shape {value.shape}, and the space says {target.shape[1:]}")
    target[row] = fitted(value, target.dtype)


def fitted(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """`values` as `dtype`, rounded where both are floats. Raises ValueError where that changes what they say."""
    if values.dtype == dtype:
        return values
    if values.dtype.kind not in "biufO":
        raise ValueError(f"an observation of {values.dtype}, which is not numeric")
    with np.errstate(invalid="ignore", over="ignore"):  # NaN is not an integer, which the comparison finds
        turned = values.astype(dtype)
    rounded = values.dtype.kind == turned.dtype.kind == "f"
    if not rounded and not np.array_equal(turned, values):
        raise ValueError(f"an observation of {values.dtype}, and the space's {np.dtype(dtype)} cannot hold its values")
    return turned


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
