"""Batches conformed to declared spaces; values that would be changed by it raise.

A float64 array whose values all are float32 values becomes float32; one that is not raises BadEpisode with column, episode and
step. Structure and shapes are never repaired.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.episode_spaces import space_tree
from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space
from offline_cli.trees import Tree, flatten, map_leaves, paths, unflatten_like

__all__ = ["check_shapes", "conform"]


def conform(
    batch: EpisodeBatch, observation_space: Space, action_space: Space, extra_dtypes: Mapping[str, np.dtype[Any]] | None = None
) -> EpisodeBatch:
    """`batch` with leaves of exactly the spaces' keys, shapes and dtypes. Raises BadEpisode, naming the column.

    `extra_dtypes`: those of extra model outputs, by dotted path of the leaf.
    """
    obs = _fit(batch.obs, observation_space, Columns.OBS, batch, cast=True)
    actions = _fit(batch.actions, action_space, Columns.ACTIONS, batch, cast=True)
    rewards = np.ascontiguousarray(batch.rewards.astype(np.float64, copy=False))  # without a view for an unpickled dtype
    extra = {name: _with_dtypes(batch.extra[name], name, extra_dtypes or {}, batch) for name in sorted(batch.extra)}
    data: dict[str, Any] = {"obs": obs, "actions": actions, "rewards": rewards, "extra": extra}
    return replace(batch, **data, observation_space=observation_space, action_space=action_space)


def _with_dtypes(tree: Tree, name: str, dtypes: Mapping[str, np.dtype[Any]], batch: EpisodeBatch) -> Tree:
    found = list(flatten(tree, name))
    if all(dtypes.get(path, leaf.dtype) == leaf.dtype for path, leaf in found):
        return tree
    return unflatten_like(tree, [_cast(leaf, dtypes.get(path, leaf.dtype), path, batch) for path, leaf in found])


def check_shapes(batch: EpisodeBatch, observation_space: Space | None, action_space: Space | None) -> None:
    """Raise BadEpisode, naming the column, where keys or shapes are not those of the spaces. Dtypes may differ."""
    if observation_space is not None:
        _fit(batch.obs, observation_space, Columns.OBS, batch, cast=False)
    if action_space is not None:
        _fit(batch.actions, action_space, Columns.ACTIONS, batch, cast=False)


def _fit(tree: Tree, space: Space, column: str, batch: EpisodeBatch, *, cast: bool) -> Tree:
    parts = space_tree(space)

    def fitted(part: Space, leaf: NDArray[Any], path: str) -> NDArray[Any]:
        if leaf.shape[1:] != (part.shape or ()):
            raise _bad(f"column {path!r} has values of shape {leaf.shape[1:]}, its space {part.shape or ()}", batch)
        return _cast(leaf, np.dtype(part.dtype).newbyteorder("="), path, batch) if cast else leaf

    try:
        return map_leaves(fitted, parts, tree, unflatten_like(parts, paths(parts, column)))
    except ValueError as err:
        raise _bad(f"column {column!r} has other parts than its space: {err}", batch) from err


def _cast(leaf: NDArray[Any], dtype: np.dtype[Any], path: str, batch: EpisodeBatch) -> NDArray[Any]:
    if leaf.dtype == dtype:
        return leaf
    if leaf.dtype.kind not in "biuf":
        raise _bad(f"column {path!r} holds {leaf.dtype}, its space {dtype}", batch)
    with np.errstate(all="ignore"):  # values that do not fit are found below
        cast = leaf.astype(dtype)
        lost = cast.astype(leaf.dtype) != leaf
        lost |= (cast < 0) != (leaf < 0)  # -1 survives a trip through uint64 and back
    if leaf.dtype.kind == "f":
        lost &= ~(np.isnan(leaf) & (np.isnan(cast) if dtype.kind == "f" else False))
    if lost.any():
        row = int(np.argwhere(lost)[0][0])
        value = leaf[row][lost[row]].flat[0] if leaf.ndim > 1 else leaf[row]
        rows_of = batch.obs_starts if len(leaf) == batch.num_steps + len(batch) else batch.starts
        raise _lossy(f"column {path!r} holds {value!s}, which {dtype} of its space cannot hold", batch, rows_of, row)
    return cast


def _lossy(what: str, batch: EpisodeBatch, rows_of: NDArray[np.int64], row: int) -> BadEpisode:
    episode = int(np.searchsorted(rows_of, row, side="right")) - 1
    where = f"episode {batch.ids[episode]}, step {row - int(rows_of[episode])}"
    fix = "give spaces of the dtype that the data has; with --env, whose spaces they are then, numbers of tables are rounded"
    return BadEpisode(what, where=where, fix=fix)


def _bad(what: str, batch: EpisodeBatch) -> BadEpisode:
    where = f"batch from episode {batch.ids[0] if batch.ids else '(none)'}"
    return BadEpisode(what, where=where, fix="give the spaces that the data was recorded with (--env)")
