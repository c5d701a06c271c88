"""The shape of one number a step, in one place for all readers.

Replay buffers (stable-baselines3, d3rlpy) keep choices, rewards and flags as (N, 1). A declared space decides which shape its
leaf has; without one, whole numbers (N, 1) as actions are choices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadEpisode
from offline_cli.trees import Tree, map_leaves


def choices(actions: Tree) -> Tree:
    """Actions without a declared space: whole numbers (N, 1) become (N,), the shape of Discrete."""
    return map_leaves(lambda leaf: leaf.reshape(-1) if leaf.dtype.kind in "iu" and leaf.shape[1:] == (1,) else leaf, actions)


def as_shape(leaf: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """A leaf (N, ...) of one number a step in the shape of its space, () or (1,); any other leaf as it is."""
    return leaf.reshape(len(leaf), *shape) if {leaf.shape[1:], shape} == {(), (1,)} else leaf


def one_number_each(values: NDArray[Any], name: str, *, where: str, fix: str) -> NDArray[Any]:
    """Rewards or flags as (N,), from (N,) or (N, 1). Raises BadEpisode for any other shape, and for what is no number."""
    if values.dtype.kind not in "biuf" or values.shape[1:] not in ((), (1,)):
        raise BadEpisode(f"{name} are {values.dtype} of shape {list(values.shape)}", where=where, fix=fix)
    return np.asarray(values.reshape(-1))
