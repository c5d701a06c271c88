"""Spaces in the states of episodes: conversions to and from RLlib's form, remembered, and values in a space's structure.

Every episode state repeats its spaces up to four times, as base64 of zlib, so that converting them would cost more than
reading the steps. Recent conversions are found by comparing content (`==` of small dicts, cheaper than hashing them); the
last few are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from gymnasium import spaces

from offline_cli.errors import BadEpisode, UnsafeData
from offline_cli.spaces import Space, bound_bytes, space_from_rllib, space_to_rllib, tree_from_lists
from offline_cli.trees import Tree

__all__ = ["MAX_DEPTH", "in_space", "known_space_from_rllib", "known_space_to_rllib", "space_in_state", "space_node"]

FIX: Final = "write the file again from its source"
STRUCTURE: Final = "record values of one structure, shape and dtype, or leave this episode out"
OWN_KEYS: Final = {"observations": "_observation_space", "actions": "_action_space"}
MAX_DEPTH: Final = 32  # of values within values
KEPT = 16  # observation, action and reward spaces of a handful of environments
KEPT_BYTES = 32 << 20  # of their bounds: what is not needed may not fill the memory, the newest is kept however large
# Newest first, replaced as a whole, so that a thread may read while another one adds.
_read: tuple[tuple[dict[str, Any], Space], ...] = ()
_written: tuple[tuple[Space, dict[str, Any]], ...] = ()


def known_space_from_rllib(node: Mapping[str, Any] | None, *, where: str) -> Space | None:
    """The space of RLlib's dict form, one object for all equal `node`s; None for none. Raises as `space_from_rllib`."""
    try:
        return _known(node, where) if node else None
    except RecursionError as err:  # keys that no space has may hold anything
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
    """The newest and those of the others, newest first, that there is room for."""
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

    Raises as `space_from_rllib`, and BadEpisode for what is no dict.
    """
    node = space_node(state, buffer)
    if node is None:
        return None
    if not isinstance(node, dict):
        raise BadEpisode(f"a {type(node).__name__} where a space belongs", where=where, fix=FIX)
    try:
        return known_space_from_rllib(node, where=where)
    except ValueError as err:  # an array in it, which has no single truth value to compare
        raise BadEpisode(f"not a space: {err}", where=where, fix=FIX) from err


def in_space(tree: Tree, space: Space | None, *, name: str, where: str) -> Tree:
    """`tree` with tuples for lists (msgpack knows lists only), keys in the order of `space` where the structure is its own.

    Raises BadEpisode for leaves that are no arrays.
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
            raise BadEpisode(f"{name} has keys that are no text", where=where, fix=STRUCTURE)
        return {key: _tuples(part, f"{name}.{key}", where, depth + 1) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return tuple(_tuples(part, f"{name}.{i}", where, depth + 1) for i, part in enumerate(tree))
    if not isinstance(tree, np.ndarray):
        raise BadEpisode(f"{name} holds a {type(tree).__name__} where an array belongs", where=where, fix=STRUCTURE)
    return tree
