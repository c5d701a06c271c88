"""Numpy'ized steps of Dict and Tuple spaces as RLlib 2.40 stored them, in lists; refuses lists that are no rows of it.

That version passed such buffers through `space.to_jsonable([data])`, which took the whole episode for one sample: a leaf is a
list of one nested list, (1, T, *shape). Only Box, MultiDiscrete and MultiBinary leaves got through, and only numpy'ized ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["arrays_from_jsonable", "is_jsonable"]

FIX = "write the file again from its source"


def is_jsonable(data: Any, space: Space | None) -> bool:
    """Whether `data` (numpy'ized, of a Dict or Tuple space) holds lists where its arrays belong."""
    if isinstance(space, spaces.Dict):
        return isinstance(data, dict) and any(is_jsonable(data.get(key), part) for key, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return isinstance(data, list) and any(is_jsonable(item, part) for item, part in zip(data, space.spaces, strict=False))
    return isinstance(data, list)


def arrays_from_jsonable(data: Any, space: Space, *, name: str, where: str) -> Tree:
    """Leaves (T, *shape) in the dtypes of `space`. Raises BadEpisode, naming the leaf, for lists that are not rows of it."""
    if isinstance(space, spaces.Dict):
        if not isinstance(data, dict) or data.keys() != space.spaces.keys():
            raise _misfit(name, space, where)
        return {
            key: arrays_from_jsonable(data[key], part, name=f"{name}.{key}", where=where) for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        if not isinstance(data, list) or len(data) != len(space.spaces):
            raise _misfit(name, space, where)
        parts = enumerate(zip(data, space.spaces, strict=True))
        return [arrays_from_jsonable(item, part, name=f"{name}.{i}", where=where) for i, (item, part) in parts]
    return _leaf(data, space, name, where)


def _leaf(data: Any, space: Space, name: str, where: str) -> NDArray[Any]:
    if not isinstance(data, list) or len(data) != 1:
        raise _misfit(name, space, where)
    try:
        rows = np.array(data[0], space.dtype)
    except (ValueError, TypeError, OverflowError) as err:
        raise _misfit(name, space, where) from err
    if rows.shape[1:] != space.shape or not rows.ndim:
        raise _misfit(name, space, where)
    return rows


def _misfit(name: str, space: Space, where: str) -> BadEpisode:
    return BadEpisode(f"{name} is not one row of {type(space).__name__} per step", where=where, fix=FIX)
