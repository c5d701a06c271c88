"""What stands where an episode has no record, and one-hot vectors; refuses values that a space cannot hold.

Both follow the space leaf by leaf. With `one_hot_discrete`, Discrete(n) is a float32 vector (n,) and MultiDiscrete one vector
(sum of nvec,); a filled record is then the fill value in every slot, so that a fill of 0 gives zero-hot vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.one_hot import hot_size, one_hot_leaf
from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves, paths, unflatten_like

__all__ = ["filled_item", "filled_like", "one_hot", "space_tree", "with_filled"]


def space_tree(space: Space) -> Tree:
    """`space` as a tree: dicts and tuples with leaf spaces."""
    if isinstance(space, spaces.Dict):
        return {key: space_tree(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(space_tree(part) for part in space.spaces)
    return space


def filled_item(space: Space, fill: Any, *, one_hot_discrete: bool) -> Tree:
    """One record of `space` with `fill` in every element, in its dtypes. Raises BadEpisode where `fill` does not fit."""
    return map_leaves(lambda leaf: _filled_leaf(leaf, fill, one_hot_discrete), space_tree(space))


def filled_like(data: Tree, fill: Any) -> Tree:
    """One record shaped like the rows of `data`, for data without a space.

    Rows that are single numbers take the fill value's own dtype, so that a fill of 0.5 survives among integers.
    """
    return map_leaves(lambda leaf: _full(leaf.shape[1:], fill, leaf.dtype if leaf.ndim > 1 else None), data)


def with_filled(found: Tree, there: NDArray[np.bool_], item: Tree) -> Tree:
    """Leaves (K, *shape): `found` in the rows where `there` (K,) is true, in order, and `item` in the others.

    Raises BadEpisode where the shapes of the two differ.
    """

    def merge(leaf: NDArray[Any], filled: NDArray[Any]) -> NDArray[Any]:
        if leaf.shape[1:] != filled.shape:
            raise ValueError(f"data of shape {leaf.shape[1:]}, filling of shape {filled.shape}")
        merged = np.empty((len(there), *filled.shape), np.result_type(leaf, filled) if len(leaf) else filled.dtype)
        merged[there], merged[~there] = leaf, filled
        return merged

    try:
        return map_leaves(merge, found, item)
    except ValueError as err:
        raise BadEpisode(str(err), where="fill", fix="give the episode the space of this data") from err


def one_hot(tree: Tree, space: Space | None) -> Tree:
    """`tree` with Discrete and MultiDiscrete parts as float32 one-hot vectors; leading axes (steps) are kept.

    Raises BadEpisode without a space, or for a value outside it.
    """
    if space is None:
        raise BadEpisode("one_hot_discrete needs a space", where="data without one", fix="give the episode its spaces")
    try:
        if not isinstance(space, (spaces.Dict, spaces.Tuple)):
            return map_leaves(lambda value: _one_hot_leaf(value, space, ""), tree)
        parts = space_tree(space)
        return map_leaves(_one_hot_leaf, tree, parts, unflatten_like(parts, paths(parts)))
    except ValueError as err:
        raise BadEpisode(f"data and space differ: {err}", where=str(space), fix="give the space of this data") from err


def _filled_leaf(space: Space, fill: Any, one_hot_discrete: bool) -> NDArray[Any]:
    if one_hot_discrete and isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return _full((hot_size(space),), fill, np.float32)
    return _full(space.shape or (), fill, space.dtype)


def _full(shape: tuple[int, ...], fill: Any, dtype: Any) -> NDArray[Any]:
    try:
        return np.full(shape, fill, dtype)
    except (TypeError, ValueError, OverflowError) as err:
        raise BadEpisode(
            f"cannot fill with {fill!r}: {err}", where=f"data of {dtype}{shape}", fix="a number that this type can hold"
        ) from err


def _one_hot_leaf(value: Any, space: Space, path: str) -> Any:
    if not isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return value
    return one_hot_leaf(value, space, where=f"leaf {path}" if path else "a discrete part")
