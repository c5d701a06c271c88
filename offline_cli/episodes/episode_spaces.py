"""Spaces of episodes: as states and RLlib describe them, values conformed to a space, and one-hot vectors.

* `known_space_from_rllib`, `known_space_to_rllib`: every episode state repeats its spaces up to four times, as base64 of zlib,
  so that converting them would cost more than reading the steps. Recent conversions are found by comparing content (`==` of
  small dicts, cheaper than hashing them); the last few are kept.
* `conform`: values brought to the structure and dtypes of a space; one that would be changed by it raises: a float64 array
  whose values all are float32 values becomes float32; one that is not raises BadEpisode with column, episode and step.
  Structure and shapes are never repaired.
* `one_hot_leaf`, `hot_size`: choices as float32 vectors of ones and zeros, for getters, pieces and networks. Discrete(n)
  becomes one vector (n,), MultiDiscrete one (sum of nvec,): those of its components, one after the other, in C order where
  there are several axes. Choices count from `start`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch_arrays import BatchArrays
from offline_cli.errors import BadEpisode, UnsafeData
from offline_cli.spaces import Space, bound_bytes, space_from_rllib, space_to_rllib, tree_from_lists
from offline_cli.trees import Tree, flatten, map_leaves, unflatten_like

__all__ = [
    "MAX_DEPTH",
    "category_bounds",
    "check_shapes",
    "choice_counts",
    "conform",
    "hot_size",
    "in_space",
    "known_space_from_rllib",
    "known_space_to_rllib",
    "one_hot_leaf",
    "space_in_state",
    "space_node",
    "space_tree",
    "zero_rows",
]

B = TypeVar("B", bound=BatchArrays)

FIX = "give the space of this data, or correct the data"

EPISODE_SPACES_FIX: Final = "write the file again from its source"
STRUCTURE: Final = "record values of one structure, shape and dtype, or leave this episode out"
OWN_KEYS: Final = {"observations": "_observation_space", "actions": "_action_space"}
MAX_DEPTH: Final = 32  # of values within values
KEPT = 16  # observation, action and reward spaces of a handful of environments
KEPT_BYTES = 32 << 20  # of their bounds: unneeded ones must not fill the memory; the newest is kept however large
# Newest first, replaced as a whole, so that a thread may read while another one adds.
_read: tuple[tuple[dict[str, Any], Space], ...] = ()
_written: tuple[tuple[Space, dict[str, Any]], ...] = ()


def space_tree(space: Space) -> Tree:
    """`space` as a tree: dicts and tuples with leaf spaces."""
    if isinstance(space, spaces.Dict):
        return {key: space_tree(part) for key, part in space.spaces.items()}
    return tuple(map(space_tree, space.spaces)) if isinstance(space, spaces.Tuple) else space


def zero_rows(space: Space | None, count: int) -> Tree:
    """Zeros for `count` values of `space`, leaves (count, *shape); without a space (count,) of float64."""
    if space is None:
        return np.zeros(count)
    return map_leaves(lambda leaf: np.zeros((count, *(leaf.shape or ())), leaf.dtype), space_tree(space))


def choice_counts(space: spaces.Discrete[Any] | spaces.MultiDiscrete) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(counts, starts), both (components,): how many choices each component has, and which number is its first."""
    if isinstance(space, spaces.Discrete):
        return np.array([int(space.n)]), np.array([int(space.start)])
    return space.nvec.ravel().astype(np.int64), space.start.ravel().astype(np.int64)


def hot_size(space: spaces.Discrete[Any] | spaces.MultiDiscrete) -> int:
    """The length of a one-hot vector."""
    return int(choice_counts(space)[0].sum())


def one_hot_leaf(values: Any, space: spaces.Discrete[Any] | spaces.MultiDiscrete, *, where: str) -> NDArray[np.float32]:
    """(..., size) for choices (..., *space.shape).

    Raises BadEpisode for a value that is not a choice of its component (fractions included), and for another shape.
    """
    counts, starts = choice_counts(space)
    given, shape = np.asarray(values), space.shape or ()
    if given.shape[given.ndim - len(shape) :] != shape:
        raise BadEpisode(f"values of shape {given.shape} for {space}", where=where, fix=FIX)
    flat = given.reshape(*given.shape[: given.ndim - len(shape)], len(counts))
    choices = flat - starts if flat.dtype.kind in "iub" else _whole(flat, space, where) - starts
    outside = (choices < 0) | (choices >= counts)
    if outside.any():
        raise _refused(flat, outside, space, where, "is outside")
    hot = np.zeros((*flat.shape[:-1], int(counts.sum())), np.float32)
    np.put_along_axis(hot, choices.astype(np.int64, copy=False) + (np.cumsum(counts) - counts), 1.0, axis=-1)
    return hot


def _whole(flat: NDArray[Any], space: Any, where: str) -> NDArray[Any]:
    """The same numbers. Raises BadEpisode for text, and for numbers with a fraction, which a cast would round silently."""
    if flat.dtype.kind != "f":
        raise BadEpisode(f"values of type {flat.dtype} for {space}", where=where, fix=FIX)
    broken = flat != np.floor(flat)  # NaN, too
    if broken.any():
        raise _refused(flat, broken, space, where, "is not a whole number, as a choice of")
    return flat


def _refused(flat: NDArray[Any], bad: NDArray[np.bool_], space: Any, where: str, why: str) -> BadEpisode:
    *row, component = (int(i) for i in np.argwhere(bad)[0])
    counts, starts = choice_counts(space)
    first, last = int(starts[component]), int(starts[component] + counts[component]) - 1
    place = tuple(int(i) for i in np.unravel_index(component, space.shape)) if space.shape else ()
    which = f" in component {place[0] if len(place) == 1 else place}" if place else ""
    at = f"{where}, row {row[0] if len(row) == 1 else tuple(row)}" if row else where
    what = f"a value of {flat[(*row, component)]}{which} {why} {space} ({first} to {last})"
    return BadEpisode(what, where=at, fix=FIX)


def known_space_from_rllib(node: Mapping[str, Any] | None, *, where: str) -> Space | None:
    """The space of RLlib's dict form, one object for all equal `node`s; None for none. Raises as `space_from_rllib`."""
    try:
        return _known(node, where) if node else None
    except RecursionError as err:  # unknown keys may hold anything
        raise UnsafeData("a space nested too deeply", where=where, fix="write the file again from its source") from err


def _known(node: Mapping[str, Any], where: str) -> Space:
    global _read
    for known, space in _read:
        if known == node:
            return space
    space = space_from_rllib(node, where=where)
    _read = _that_fit((copy.deepcopy(dict(node)), space), _read)  # a copy: the caller may change its own
    return space


def _that_fit(newest: tuple[dict[str, Any], Space], others: Sequence[tuple[dict[str, Any], Space]]) -> tuple[Any, ...]:
    """The newest and those of the others, newest first, that fit."""
    kept, room = [newest], KEPT_BYTES - bound_bytes(newest[1])
    for other in others[: KEPT - 1]:
        room -= bound_bytes(other[1])
        if room < 0:
            break
        kept.append(other)
    return tuple(kept)


def known_space_to_rllib(space: Space | None) -> dict[str, Any] | None:
    """RLlib's dict form of `space`, to be read only; None for none. Raises UnsupportedSpace."""
    global _written
    if space is None:
        return None
    for known, node in _written:
        if known is space:
            return node
    node = space_to_rllib(space)
    _written = ((space, node), *_written[: KEPT - 1])
    return node


def space_node(state: Mapping[str, Any], buffer: str) -> Any:
    """The description behind `space_in_state`, unchecked."""
    node = state.get(OWN_KEYS[buffer])
    if node is None and isinstance(state[buffer], dict):
        return state[buffer].get("space")
    return node


def space_in_state(state: Mapping[str, Any], buffer: str, *, where: str) -> Space | None:
    """The space of a state's `observations` or `actions`: the episode's own, else its buffer's; None where neither has one.

    Raises as `space_from_rllib`, and BadEpisode for anything but a dict.
    """
    node = space_node(state, buffer)
    if node is None:
        return None
    if not isinstance(node, dict):
        raise BadEpisode(f"a {type(node).__name__} where a space belongs", where=where, fix=EPISODE_SPACES_FIX)
    try:
        return known_space_from_rllib(node, where=where)
    except ValueError as err:  # an array in it, which has no single truth value to compare
        raise BadEpisode(f"not a space: {err}", where=where, fix=EPISODE_SPACES_FIX) from err


def in_space(tree: Tree, space: Space | None, *, name: str, where: str) -> Tree:
    """`tree` with tuples for lists (msgpack knows lists only), keys in the order of `space` where the structure is its own.

    Raises BadEpisode for leaves that are not arrays.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)) and _same_parts(tree, space):
        tree = tree_from_lists(tree, space)
    return _tuples(tree, name, where, 0)


def _same_parts(tree: Tree, space: Space) -> bool:
    """Whether the structure is the space's: a connector may have written flat vectors over a Dict space's observations."""
    if isinstance(space, spaces.Dict):
        same = isinstance(tree, dict) and tree.keys() == space.spaces.keys()
        return same and all(_same_parts(tree[key], part) for key, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        same = isinstance(tree, (list, tuple)) and len(tree) == len(space.spaces)
        return same and all(_same_parts(item, part) for item, part in zip(tree, space.spaces, strict=True))
    return not isinstance(tree, (dict, list, tuple))


def _tuples(tree: Tree, name: str, where: str, depth: int) -> Tree:
    if depth > MAX_DEPTH:
        raise BadEpisode(f"{name} is nested deeper than {MAX_DEPTH}", where=where, fix=STRUCTURE)
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise BadEpisode(f"{name} has keys that are not text", where=where, fix=STRUCTURE)
        return {key: _tuples(part, f"{name}.{key}", where, depth + 1) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return tuple(_tuples(part, f"{name}.{i}", where, depth + 1) for i, part in enumerate(tree))
    if not isinstance(tree, np.ndarray):
        raise BadEpisode(f"{name} holds a {type(tree).__name__} where an array belongs", where=where, fix=STRUCTURE)
    return tree


# ---- many episodes ----


def conform(
    batch: B, observation_space: Space, action_space: Space, extra_dtypes: Mapping[str, np.dtype[Any]] | None = None
) -> B:
    """`batch` with leaves of exactly the spaces' keys, shapes and dtypes. Raises BadEpisode, naming the column.

    `extra_dtypes`: those of extra model outputs, by dotted path of the leaf.
    """
    obs = _fit(batch.obs, observation_space, Columns.OBS, batch, cast=True)
    actions = _fit(batch.actions, action_space, Columns.ACTIONS, batch, cast=True)
    rewards = np.ascontiguousarray(batch.rewards.astype(np.float64, copy=False))  # without a view for an unpickled dtype
    extra = {name: _with_dtypes(batch.extra[name], name, extra_dtypes or {}, batch) for name in sorted(batch.extra)}
    if batch.observation_space is observation_space and batch.action_space is action_space and rewards is batch.rewards:
        fits = list(extra) == list(batch.extra) and all(extra[name] is batch.extra[name] for name in extra)
        if fits and _is_same(obs, batch.obs) and _is_same(actions, batch.actions):
            return batch  # the usual case, and many batches are a single short episode
    data: dict[str, Any] = {"obs": obs, "actions": actions, "rewards": rewards, "extra": extra}
    return replace(batch, **data, observation_space=observation_space, action_space=action_space)


def _with_dtypes(tree: Tree, name: str, dtypes: Mapping[str, np.dtype[Any]], batch: BatchArrays) -> Tree:
    found = list(flatten(tree, name))
    if all(dtypes.get(path, leaf.dtype) == leaf.dtype for path, leaf in found):
        return tree
    return unflatten_like(tree, [_cast(leaf, dtypes.get(path, leaf.dtype), path, batch) for path, leaf in found])


def _is_same(fitted: Tree, tree: Tree) -> bool:
    """Whether `fitted` is `tree`: the same arrays under the same names in the same order."""
    pairs = zip(flatten(fitted), flatten(tree), strict=True)
    return all(here == there and left is right for (here, left), (there, right) in pairs)


def check_shapes(batch: BatchArrays, observation_space: Space | None, action_space: Space | None) -> None:
    """Raise BadEpisode, naming the column, where keys or shapes are not those of the spaces. Dtypes may differ."""
    if observation_space is not None:
        _fit(batch.obs, observation_space, Columns.OBS, batch, cast=False)
    if action_space is not None:
        _fit(batch.actions, action_space, Columns.ACTIONS, batch, cast=False)


def _fit(tree: Tree, space: Space, path: str, batch: BatchArrays, *, cast: bool) -> Tree:
    if isinstance(space, spaces.Dict):
        keys = [str(key) for key in space.spaces]
        if not isinstance(tree, Mapping) or set(tree) != set(keys):
            raise _bad(f"column {path!r} has {_structure(tree)}, its space has the keys {keys}", batch)
        return {key: _fit(tree[key], space.spaces[key], f"{path}.{key}", batch, cast=cast) for key in keys}
    if isinstance(space, spaces.Tuple):
        if not isinstance(tree, tuple) or len(tree) != len(space.spaces):
            raise _bad(f"column {path!r} has {_structure(tree)}, its space is a tuple of {len(space.spaces)}", batch)
        parts = enumerate(zip(tree, space.spaces, strict=True))
        return tuple(_fit(part, sub, f"{path}.{i}", batch, cast=cast) for i, (part, sub) in parts)
    if isinstance(tree, (Mapping, tuple)):
        raise _bad(f"column {path!r} has {_structure(tree)}, its space has no parts", batch)
    shape = tuple(space.shape or ())
    if tree.shape[1:] != shape:
        raise _bad(f"column {path!r} has values of shape {tree.shape[1:]}, its space {shape}", batch)
    return _cast(tree, np.dtype(space.dtype).newbyteorder("="), path, batch) if cast else tree


def _structure(tree: Tree) -> str:
    if isinstance(tree, Mapping):
        return f"the keys {sorted(map(str, tree))}"
    return f"a tuple of {len(tree)}" if isinstance(tree, tuple) else "no parts"


def _cast(leaf: NDArray[Any], dtype: np.dtype[Any], path: str, batch: BatchArrays) -> NDArray[Any]:
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


def _lossy(what: str, batch: BatchArrays, rows_of: NDArray[np.int64], row: int) -> BadEpisode:
    episode = int(np.searchsorted(rows_of, row, side="right")) - 1
    where = f"episode {batch.ids[episode]}, step {row - int(rows_of[episode])}"
    fix = "give spaces of the dtype that the data has; with --env, whose spaces they are then, numbers of tables are rounded"
    return BadEpisode(what, where=where, fix=fix)


def _bad(what: str, batch: BatchArrays) -> BadEpisode:
    where = f"batch from episode {batch.ids[0] if batch.ids else '(none)'}"
    return BadEpisode(what, where=where, fix="give the spaces that the data was recorded with (--env)")


def category_bounds(space: Space) -> tuple[Any, Any]:
    """Smallest and largest category of a space that is no Box, for each element where they differ."""
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start) + int(space.n) - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return 0, 1
