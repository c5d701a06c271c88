"""Values of any space as one row of numbers; refuses values outside it.

The order is that of dm_tree, which RLlib's modules are trained in: Dict leaves by sorted key, Tuple leaves by place.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.buffers.indexing import one_hot
from offline_cli.episodes.buffers.stacking import row_count
from offline_cli.episodes.one_hot import hot_size
from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["flat_rows", "flat_size"]


def flat_rows(rows: Tree, space: Space) -> NDArray[np.float32]:
    """(N, size) of leaves (N, ...): Discrete and MultiDiscrete one-hot (`start` honoured), other numbers as they are.

    Raises BadEpisode for a choice outside the space.
    """
    count = row_count(rows)
    parts = [np.asarray(leaf).reshape(count, -1).astype(np.float32, copy=False) for leaf in _in_order(one_hot(rows, space))]
    return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]


def flat_size(space: Space) -> int:
    """How many numbers a row has."""
    match space:
        case spaces.Dict():
            return sum(map(flat_size, space.spaces.values()))
        case spaces.Tuple():
            return sum(map(flat_size, space.spaces))
        case spaces.Discrete() | spaces.MultiDiscrete():
            return hot_size(space)
    return math.prod(space.shape or ())


def _in_order(tree: Tree) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in _in_order(tree[key])]
    return [leaf for part in tree for leaf in _in_order(part)] if isinstance(tree, tuple) else [tree]
