"""Spaces of episodes: as trees, one-hot vectors, and cached conversions to and from RLlib's form.

* `one_hot`, `one_hot_leaf`, `hot_size`: discrete values as float32 one-hot vectors, for getters, connector pieces and networks.
  Discrete(n) becomes a vector (n,), MultiDiscrete a vector (sum of nvec,): the concatenated vectors of its components, in C
  order. Values count from `start`.
* `known_space_from_rllib`, `known_space_to_rllib`: every episode state repeats its spaces up to four times, as base64 of zlib;
  converting each would cost more than reading the steps. Recent conversions are cached, and found by comparing content
  (`==` of small dicts, cheaper than hashing them).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.errors import BadEpisode, UnsafeData
from offline_cli.spaces import Space, bound_bytes, space_from_rllib, space_to_rllib
from offline_cli.trees import Tree, map_leaves, paths, unflatten_like

FIX: Final = "give the space of this data, or correct the data"
REWRITE: Final = "write the file again from its source"
OWN_SPACES: Final = {"observations": "_observation_space", "actions": "_action_space"}
KEPT: Final = 16  # cached spaces: those of a handful of environments
KEPT_BYTES: Final = 2 << 20  # of bounds per cached space; the newest is cached at any size
# Newest first; replaced as a whole, so that one thread may read while another adds.
_read: tuple[tuple[dict[str, Any], Space], ...] = ()
_written: tuple[tuple[Space, dict[str, Any]], ...] = ()


def space_tree(space: Space) -> Tree:
    """`space` as a tree: dicts and tuples with leaf spaces."""
    if isinstance(space, spaces.Dict):
        return {key: space_tree(part) for key, part in space.spaces.items()}
    return tuple(map(space_tree, space.spaces)) if isinstance(space, spaces.Tuple) else space


def zero_rows(space: Space | None, count: int) -> Tree:
    """Zeros for `count` values of `space`, leaves (count, *shape); without a space, float64 (count,)."""
    if space is None:
        return np.zeros(count)
    return map_leaves(lambda leaf: np.zeros((count, *(leaf.shape or ())), leaf.dtype), space_tree(space))


def category_bounds(space: Space) -> tuple[Any, Any]:
    """Smallest and largest category of a discrete space: ints, or arrays for MultiDiscrete."""
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start) + int(space.n) - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return 0, 1


# ---- one-hot vectors ----


def choice_counts(space: spaces.Discrete[Any] | spaces.MultiDiscrete) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(counts, starts), both (components,): the number of choices of each component, and its smallest value."""
    if isinstance(space, spaces.Discrete):
        return np.array([int(space.n)]), np.array([int(space.start)])
    return space.nvec.ravel().astype(np.int64), space.start.ravel().astype(np.int64)


def hot_size(space: spaces.Discrete[Any] | spaces.MultiDiscrete) -> int:
    """The length of a one-hot vector."""
    return int(choice_counts(space)[0].sum())


def one_hot_leaf(values: Any, space: spaces.Discrete[Any] | spaces.MultiDiscrete, *, where: str) -> NDArray[np.float32]:
    """One-hot vectors (..., size) of values (..., *space.shape).

    Raises BadEpisode for a value outside its component (fractions included), and for a wrong shape.
    """
    counts, starts = choice_counts(space)
    given, shape = np.asarray(values), space.shape or ()
    if given.shape[given.ndim - len(shape) :] != shape or given.dtype.kind not in "biuf":
        raise BadEpisode(f"values of {given.dtype}{given.shape} for {space}", where=where, fix=FIX)
    flat = given.reshape(*given.shape[: given.ndim - len(shape)], len(counts))
    choices = flat - starts
    bad = ~((choices >= 0) & (choices < counts) & (choices == np.floor(choices)))  # NaN, too
    if bad.any():
        *row, component = (int(i) for i in np.argwhere(bad)[0])
        at = f"{where}, row {', '.join(map(str, row))}" if row else where
        which = f" in component {component}" if len(counts) > 1 else ""
        raise BadEpisode(f"the value {flat[(*row, component)]}{which} is not in {space}", where=at, fix=FIX)
    hot = np.zeros((*flat.shape[:-1], int(counts.sum())), np.float32)
    np.put_along_axis(hot, choices.astype(np.int64, copy=False) + (np.cumsum(counts) - counts), 1.0, axis=-1)
    return hot


def one_hot(tree: Tree, space: Space | None) -> Tree:
    """`tree` with Discrete and MultiDiscrete parts as float32 one-hot vectors; leading axes (steps) are kept.

    Raises BadEpisode if `space` is None, or for a value outside it.
    """
    if space is None:
        raise BadEpisode("one_hot_discrete needs a space", where="data without one", fix="give the episode its spaces")
    parts = space_tree(space)
    try:
        return map_leaves(_one_hot_part, tree, parts, unflatten_like(parts, paths(parts)))
    except ValueError as err:
        raise BadEpisode(f"data and space differ: {err}", where=str(space), fix=FIX) from err


def _one_hot_part(value: Any, space: Space, path: str) -> Any:
    if not isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return value
    return one_hot_leaf(value, space, where=f"leaf {path}" if path else "a discrete part")


# ---- RLlib's form, cached ----


def known_space_from_rllib(node: Mapping[str, Any] | None, *, where: str) -> Space | None:
    """`space_from_rllib`, cached: equal nodes return the same object; None for an empty node."""
    global _read
    if not node:
        return None
    try:
        for known, space in _read:
            if known == node:
                return space
        space = space_from_rllib(node, where=where)
        mine = copy.deepcopy(dict(node))  # the caller may modify its dict
    except RecursionError as err:  # unknown keys may hold anything
        raise UnsafeData("a space nested too deeply", where=where, fix=REWRITE) from err
    _read = ((mine, space), *(other for other in _read[: KEPT - 1] if bound_bytes(other[1]) <= KEPT_BYTES))
    return space


def known_space_to_rllib(space: Space | None) -> dict[str, Any] | None:
    """`space_to_rllib`, cached: do not modify the result. Raises UnsupportedSpace."""
    global _written
    if space is None:
        return None
    for known, node in _written:
        if known is space:
            return node
    node = space_to_rllib(space)
    _written = ((space, node), *_written[: KEPT - 1])
    return node


def space_in_state(state: Mapping[str, Any], buffer: str, *, where: str) -> Space | None:
    """The space of a state's `observations` or `actions`: the episode's, else its buffer's, else None.

    Raises as `space_from_rllib`, and ValueError if the node contains an array, which `==` cannot compare.
    """
    node = state.get(OWN_SPACES[buffer])
    if node is None and isinstance(state[buffer], dict):
        node = state[buffer].get("space")
    return known_space_from_rllib(node, where=where)
