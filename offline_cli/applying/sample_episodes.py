"""A few episodes made up from spaces, for pipelines to be looked at without data.

Values lie within the spaces and near zero, dtypes and shapes are those of recordings. The same spaces give the same ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["Extras", "invented_episodes"]

LENGTHS: Final = (3, 2)  # steps
Extras = Mapping[str, tuple[str, tuple[int, ...]]]  # dtype and shape of one row, by path


def invented_episodes(observation_space: Space, action_space: Space, extras: Extras) -> EpisodeBatch:
    """Two episodes of the spaces and with such extra model outputs, all zeros."""
    rng = np.random.default_rng(0)
    steps = sum(LENGTHS)
    return EpisodeBatch(
        ids=tuple(f"invented-{number}" for number in range(len(LENGTHS))),
        starts=np.array([0, *itertools.accumulate(LENGTHS)], np.int64),
        obs=_rows(observation_space, steps + len(LENGTHS), rng),
        actions=_rows(action_space, steps, rng),
        rewards=np.ones(steps),
        terminated=np.array([True, False]),
        truncated=np.array([False, True]),
        extra=_nested({path: np.zeros((steps, *shape), dtype) for path, (dtype, shape) in extras.items()}),
        observation_space=observation_space,
        action_space=action_space,
    )


def _rows(space: Space, count: int, rng: np.random.Generator) -> Tree:
    """Leaves (count, *shape)."""
    match space:
        case spaces.Dict():
            return {key: _rows(part, count, rng) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_rows(part, count, rng) for part in space.spaces)
        case spaces.Discrete():
            return (int(space.start) + rng.integers(int(space.n), size=count)).astype(space.dtype)
        case spaces.MultiDiscrete():
            return np.add(space.start, rng.random((count, *space.shape)) * space.nvec).astype(space.dtype)
        case spaces.Box():
            return _numbers(space, count, rng)
    return rng.integers(2, size=(count, *(space.shape or ()))).astype(space.dtype)


def _numbers(space: spaces.Box, count: int, rng: np.random.Generator) -> NDArray[Any]:
    if np.dtype(space.dtype).kind == "f":
        values = rng.standard_normal((count, *space.shape))
    else:
        values = rng.integers(2, size=(count, math.prod(space.shape))).reshape(count, *space.shape).astype(np.float64)
    within: NDArray[Any] = np.clip(values, space.low, space.high).astype(space.dtype)
    return within


def _nested(leaves: Mapping[str, NDArray[Any]]) -> dict[str, Tree]:
    """Leaves by path (`state.h`) as trees by name."""
    whole: dict[str, Tree] = {}
    for path, leaf in leaves.items():
        *above, name = path.split(".")
        node = whole
        for key in above:
            node = node.setdefault(key, {})
        node[name] = leaf
    return whole
