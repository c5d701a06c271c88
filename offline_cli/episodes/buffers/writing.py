"""New values into rows of arrays, all leaves or none; refuses values that change lengths, shapes or lose fractions.

Where the data has a space, the first new value must lie in it, leaf by leaf. One value is a sample: checking all of
them is what `validate` is for, and setters run inside training loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.buffers.filling import space_tree
from offline_cli.errors import BadEpisode, EpisodeIndexError
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

__all__ = ["Rows", "check_item", "overwrite"]

Rows = int | slice | NDArray[np.int64]
RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}  # dtype kinds: a value of higher rank loses something in a lower one


def overwrite(data: Tree, rows: Rows, new: Tree, space: Space | None) -> None:
    """Write `new` into `rows` of `data` in place: one record for an int, a batch (len(rows), ...) otherwise.

    Raises EpisodeIndexError where lengths differ, BadEpisode where structure, shape, type or space do.
    """
    checked = _checked(data, rows, new, space)

    def write(leaf: NDArray[Any], value: NDArray[Any]) -> None:
        leaf[rows] = value

    map_leaves(write, data, checked)


def check_item(item: Tree, space: Space | None, *, where: str) -> None:
    """Raise BadEpisode unless one record lies in `space` (None: anything does)."""
    if space is None:
        return
    try:
        map_leaves(lambda leaf, value: _check_in(leaf, value, where), space_tree(space), item)
    except ValueError as err:
        raise BadEpisode(f"{err}, wanted {space}", where=where, fix="give data of this space, or set the space first") from err


def _checked(data: Tree, rows: Rows, new: Tree, space: Space | None) -> Tree:
    try:
        values = map_leaves(lambda leaf, value: _value_for(leaf, rows, value), data, new)
        if space is not None:
            map_leaves(lambda part, value: _check_sample(part, rows, value), space_tree(space), values)
    except ValueError as err:
        raise BadEpisode(f"another structure: {err}", where="new_data", fix="give the structure that is there") from err
    return values


def _value_for(leaf: NDArray[Any], rows: Rows, new: Any) -> NDArray[Any]:
    value, target = np.asarray(new), np.shape(leaf[rows])
    if not isinstance(rows, int) and (not value.ndim or len(value) != target[0]):
        raise EpisodeIndexError(
            f"{len(value) if value.ndim else 'a single value'} for {target[0]} timesteps",
            where="new_data",
            fix="give one value per timestep that is overwritten",
        )
    if RANK.get(value.dtype.kind, 4) > RANK.get(leaf.dtype.kind, 4):
        raise BadEpisode(f"{value.dtype} values into {leaf.dtype} data", where="new_data", fix="round them first")
    if not isinstance(new, (np.ndarray, np.generic)):  # Python's numbers have no type of their own to insist on
        value = value.astype(leaf.dtype)
    try:
        return np.broadcast_to(value, target)
    except ValueError:
        raise BadEpisode(
            f"new data of shape {value.shape} into data of shape {target}", where="new_data", fix="give the shape that is there"
        ) from None


def _check_sample(space: Space, rows: Rows, value: NDArray[Any]) -> None:
    if isinstance(rows, int):
        _check_in(space, value[()], "new_data")  # [()]: a scalar, not an array of rank 0, so that float64 rewards pass
    elif len(value):
        _check_in(space, value[0], "new_data")


def _check_in(space: Space, value: Any, where: str) -> None:
    if isinstance(space, spaces.Box) and not isinstance(value, np.ndarray):  # gymnasium would warn each time
        try:
            value = np.asarray(value, space.dtype)
        except (TypeError, ValueError):
            raise BadEpisode(f"{value!r} is not in {space}", where=where, fix="give numbers") from None
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        value = np.asarray(value)
    if not space.contains(value):
        kind = f"{value.dtype}{value.shape} " if isinstance(value, (np.ndarray, np.generic)) else ""
        raise BadEpisode(f"{kind}value outside {space}", where=where, fix="give data of this space, or set the space first")
