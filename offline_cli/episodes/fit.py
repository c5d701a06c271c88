"""Convert batches to the dtypes of declared spaces without changing any value.

A float64 array becomes float32 if float32 holds every value exactly; otherwise BadEpisode names column, episode and step.
Structure and shapes are never repaired.

`fitted` and `category_check` do the same for single values of environments and policies, and raise ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.episode_spaces import category_bounds, space_tree
from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space, describe, leaf_spaces
from offline_cli.trees import Tree, flatten, leaves, map_leaves, paths, unflatten_like

__all__ = ["cast_to", "category_check", "check_shapes", "conform", "fitted", "fitter"]


def fitter(space: Space, noun: str = "an observation") -> Callable[[Any], Tree]:
    """Make a function that converts one value of `space` to arrays in the space's dtypes; `noun` names the value in messages.

    It raises ValueError for a wrong structure or shape, and for numbers that the leaf's dtype cannot hold.
    """
    like = space_tree(space)
    if isinstance(like, (dict, tuple)):
        return lambda value: map_leaves(lambda leaf, part: _fitted_leaf(part, leaf, noun), like, value)
    shape, dtype = space.shape or (), np.dtype(space.dtype)

    def fit(value: Any) -> Tree:
        if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:  # fast path
            return value
        return _fitted_leaf(value, space, noun)

    return fit


def _fitted_leaf(value: Any, space: Space, noun: str) -> NDArray[Any]:
    value = np.asarray(value)
    if value.shape != (space.shape or ()):
        raise ValueError(f"{noun} of shape {value.shape}, but the space has shape {space.shape or ()}")
    return fitted(value, space.dtype, noun)


def fitted(values: NDArray[Any], dtype: Any, noun: str = "an observation") -> NDArray[Any]:
    """`values` as `dtype`, rounded if both are floats. Raises ValueError if any other conversion changes a value."""
    if values.dtype == dtype:
        return values
    if values.dtype.kind not in "biufO":
        raise ValueError(f"{noun} of {values.dtype}, which is not numeric")
    if values.dtype.kind == np.dtype(dtype).kind == "f":
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    turned, lost = cast_to(values, np.dtype(dtype))
    if lost.any():
        raise ValueError(f"{noun} of {values.dtype}, but the space's {np.dtype(dtype)} cannot hold its values")
    return turned


def cast_to(values: NDArray[Any], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """`values` as `dtype`, and a mask of the values that this changes."""
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
        lost = cast.astype(values.dtype) != values
        lost |= (cast < 0) != (values < 0)  # -1 survives the round trip through uint64
    if values.dtype.kind == dtype.kind == "f":
        lost &= ~(np.isnan(values) & np.isnan(cast))
    return cast, lost


def category_check(space: Space, noun: str) -> Callable[[Tree], None]:
    """Make a function that raises ValueError for rows with values outside the categories of `space`."""
    parts = enumerate(leaf_spaces(space).values())
    bounds = [(at, part, *category_bounds(part)) for at, part in parts if not isinstance(part, spaces.Box)]

    def check(rows: Tree) -> None:
        found = leaves(rows)
        for at, part, low, high in bounds:
            bad = (found[at] < low) | (found[at] > high)
            if bad.any():
                raise ValueError(f"{noun} {found[at][bad].flat[0]}, which is no category of {describe(part)}")

    return check


def conform(
    batch: EpisodeBatch, observation_space: Space, action_space: Space, extra_dtypes: Mapping[str, np.dtype[Any]] | None = None
) -> EpisodeBatch:
    """Convert `batch` to exactly the keys, shapes and dtypes of the spaces. Raises BadEpisode, naming the column.

    `extra_dtypes`: dtypes of extra model outputs, by dotted leaf path.
    """
    obs = _fit(batch.obs, observation_space, Columns.OBS, batch, cast=True)
    actions = _fit(batch.actions, action_space, Columns.ACTIONS, batch, cast=True)
    rewards = np.ascontiguousarray(batch.rewards.astype(np.float64, copy=False))  # not a view with an unpickled dtype
    extra = {name: _with_dtypes(batch.extra[name], name, extra_dtypes or {}, batch) for name in sorted(batch.extra)}
    data: dict[str, Any] = {"obs": obs, "actions": actions, "rewards": rewards, "extra": extra}
    return replace(batch, **data, observation_space=observation_space, action_space=action_space)


def _with_dtypes(tree: Tree, name: str, dtypes: Mapping[str, np.dtype[Any]], batch: EpisodeBatch) -> Tree:
    found = list(flatten(tree, name))
    if all(dtypes.get(path, leaf.dtype) == leaf.dtype for path, leaf in found):
        return tree
    return unflatten_like(tree, [_cast(leaf, dtypes.get(path, leaf.dtype), path, batch) for path, leaf in found])


def check_shapes(batch: EpisodeBatch, observation_space: Space | None, action_space: Space | None) -> None:
    """Raise BadEpisode, naming the column, if keys or shapes differ from the spaces. Dtypes may differ."""
    if observation_space is not None:
        _fit(batch.obs, observation_space, Columns.OBS, batch, cast=False)
    if action_space is not None:
        _fit(batch.actions, action_space, Columns.ACTIONS, batch, cast=False)


def _fit(tree: Tree, space: Space, column: str, batch: EpisodeBatch, *, cast: bool) -> Tree:
    parts = space_tree(space)

    def fitted(part: Space, leaf: NDArray[Any], path: str) -> NDArray[Any]:
        if leaf.shape[1:] != (part.shape or ()):
            raise _bad(f"column {path!r} has values of shape {leaf.shape[1:]}, but its space has {part.shape or ()}", batch)
        return _cast(leaf, np.dtype(part.dtype).newbyteorder("="), path, batch) if cast else leaf

    try:
        return map_leaves(fitted, parts, tree, unflatten_like(parts, paths(parts, column)))
    except ValueError as err:
        raise _bad(f"column {column!r} does not have the parts of its space: {err}", batch) from err


def _cast(leaf: NDArray[Any], dtype: np.dtype[Any], path: str, batch: EpisodeBatch) -> NDArray[Any]:
    if leaf.dtype == dtype:
        return leaf
    if leaf.dtype.kind not in "biuf":
        raise _bad(f"column {path!r} holds {leaf.dtype}, but its space has {dtype}", batch)
    cast, lost = cast_to(leaf, dtype)
    if lost.any():
        row = int(np.argwhere(lost)[0][0])
        value = leaf[row][lost[row]].flat[0] if leaf.ndim > 1 else leaf[row]
        rows_of = batch.obs_starts if len(leaf) == batch.num_steps + len(batch) else batch.starts
        raise _lossy(f"column {path!r} holds {value!s}, which the space's {dtype} cannot hold", batch, rows_of, row)
    return cast


def _lossy(what: str, batch: EpisodeBatch, rows_of: NDArray[np.int64], row: int) -> BadEpisode:
    episode = int(np.searchsorted(rows_of, row, side="right")) - 1
    where = f"episode {batch.ids[episode]}, step {row - int(rows_of[episode])}"
    fix = "declare spaces with the data's dtype; --env rounds only decimals in tables and in JSON"
    return BadEpisode(what, where=where, fix=fix)


def _bad(what: str, batch: EpisodeBatch) -> BadEpisode:
    where = f"batch from episode {batch.ids[0] if batch.ids else '(none)'}"
    return BadEpisode(what, where=where, fix="give the spaces of the recording's environment (--env)")
