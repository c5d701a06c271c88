"""The spaces inside packed episodes, parsed once per content; refuses what is no description of a space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offline_cli.episodes.known_spaces import known_space_from_rllib
from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space

__all__ = ["space_in_state", "space_node"]

FIX = "write the file again from its source"
OWN_KEYS = {"observations": "_observation_space", "actions": "_action_space"}


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
