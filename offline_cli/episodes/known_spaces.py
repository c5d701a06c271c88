"""Conversions of spaces to and from RLlib's form, remembered; refuses to grow: the last few spaces are kept.

Every episode state repeats its spaces up to four times, as base64 of zlib, so that converting them would cost more than
reading the steps. Recent conversions are found by comparing content (`==` of small dicts, cheaper than hashing them).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from offline_cli.errors import UnsafeData
from offline_cli.spaces import Space, bound_bytes, space_from_rllib, space_to_rllib

__all__ = ["known_space_from_rllib", "known_space_to_rllib"]

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
