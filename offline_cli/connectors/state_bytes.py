"""What the pieces of a pipeline learned as bytes, and back: msgpack without pickle; refuses states that hold other objects.

The form is that of episodes (`episodes/codec/arrays.py`): plain values, and arrays of numbers, bools or strings; tuples come
back as lists. The same state gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offline_cli.episodes.codec.arrays import pack, unpack
from offline_cli.errors import BadData, BadPiece

__all__ = ["state_from_bytes", "state_to_bytes"]


def state_to_bytes(state: Mapping[str, Any], *, where: str) -> bytes:
    """A pipeline's state, by unique name of piece. Raises BadPiece, naming the piece, for what has no form in bytes."""
    for name, part in state.items():
        try:
            pack(part)
        except (TypeError, ValueError, OverflowError) as err:
            fix = "give numbers, text, lists, dicts and arrays in its get_state"
            raise BadPiece(f"the state of piece {name} cannot be saved: {err}", where=where, fix=fix) from err
    return pack(dict(state))


def state_from_bytes(data: bytes, *, where: str) -> dict[str, Any]:
    """The state in `data`, for `set_state` of the pipeline. Raises BadData, UnsafeData for bytes that would build objects."""
    state = unpack(data, where=where)
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise BadData("no state of a pipeline", where=where, fix="write the file again from its source")
    return state
