"""Bytes to one episode, exactly and without haste: what comes from anywhere is checked, and reported where it is wrong.

The state is RLlib's (`SingleAgentEpisode.get_state`, 2.40 to 2.60), numpy'ized or not. Parts that are missing, of the wrong
kind, or of lengths that disagree raise, and so do unsupported spaces.

RLlib 2.40 passed numpy'ized steps of Dict and Tuple spaces through `space.to_jsonable([data])`, which took the episode for one
sample: a leaf is a list of one nested list, (1, T, *shape). Only Box, MultiDiscrete and MultiBinary leaves got through.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.codec.arrays import unpack
from offline_cli.episodes.episode_spaces import known_space_from_rllib
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import MAX_DEPTH
from offline_cli.errors import PROBLEM, BadEpisode, OfflineCliError
from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["DATA_BUFFERS", "NAMES", "decode", "space_in_state"]

NEEDED = ("id_", "observations", "actions", "rewards", "infos", "is_terminated", "is_truncated", "t_started", "t")
NAMES = ("agent_id", "module_id", "multi_agent_episode_id")
DATA_BUFFERS = {"observations": 1, "actions": 0, "rewards": 0, "infos": 1}  # rows more than steps
OWN_SPACES = {"observations": "_observation_space", "actions": "_action_space"}
OLD_CUSTOM_DATA = "_temporary_timestep_data"  # RLlib before 2.45
LAST_TIMESTEP = 1 << 53
FIX = "write the file again from its source"


def decode(data: bytes, *, where: str) -> SingleAgentEpisode:
    """The episode in `data`; arrays that came from bytes copy on write.

    Raises BadEpisode for cut or malformed bytes and lengths that disagree, UnsafeData for bytes that would build objects or
    need memory out of proportion, UnsupportedSpace for spaces that episodes cannot have. `where` names file and row.
    """
    state = _checked_state(unpack(data, where=where), where)
    try:
        return SingleAgentEpisode.from_state(state)
    except OfflineCliError as err:  # a state does not know where it was read
        raise type(err)(err.what, where=f"{where}, {err.where}", fix=err.fix, details=err.details) from err


def _checked_state(state: Any, where: str) -> dict[str, Any]:
    """A state in RLlib 2.60's layout with plain flags and names, of which all lengths agree."""
    if not isinstance(state, dict):
        raise BadEpisode(f"a {type(state).__name__} where an episode's state belongs", where=where, fix=FIX)
    missing = [key for key in NEEDED if state.get(key) is None]
    if missing:
        raise BadEpisode(f"an episode without {', '.join(missing)}", where=where, fix=FIX)
    here = f"{where}, episode {_name(state['id_'], 'id_', where)}"
    custom_data = state.get("custom_data", state.get(OLD_CUSTOM_DATA))
    checked = {
        **{key: _name(state.get(key), key, here) for key in ("id_", *NAMES)},
        **{key: _flag(state[key], key, here) for key in ("is_terminated", "is_truncated")},
        **{key: _count(state[key], key, here) for key in ("t_started", "t")},
        **{key: _seconds(state.get(key), key, here) for key in ("_start_time", "_last_step_time")},
        **{key: _space_node(state, name) for name, key in OWN_SPACES.items()},
        "custom_data": _mapping(custom_data, "custom_data", here),
    }
    steps = checked["t"] - checked["t_started"]
    if steps < 0:
        raise BadEpisode(f"t is {checked['t']}, before t_started {checked['t_started']}", where=here, fix=FIX)
    for name, more in DATA_BUFFERS.items():
        checked[name] = _buffer(_as_arrays(state, name, here), name, steps + more, here)
    _check_rewards(checked["rewards"], here)
    checked["infos"]["data"] = _infos(checked["infos"]["data"], here)
    extra = _mapping(state.get("extra_model_outputs"), "extra_model_outputs", here)
    if not all(isinstance(name, str) for name in extra):
        raise BadEpisode("extra model outputs whose names are not text", where=here, fix=FIX)
    outputs = {name: _buffer(part, f"extra model output {name}", steps, here) for name, part in extra.items()}
    return {**checked, "extra_model_outputs": outputs or None}


def _space_node(state: Mapping[str, Any], buffer: str) -> Any:
    """The description behind `space_in_state`, unchecked."""
    node = state.get(OWN_SPACES[buffer])
    if node is None and isinstance(state[buffer], dict):
        return state[buffer].get("space")
    return node


def space_in_state(state: Mapping[str, Any], buffer: str, *, where: str) -> Space | None:
    """The space of a state's `observations` or `actions`: the episode's own, else its buffer's; None where neither has one.

    Raises as `space_from_rllib`, and BadEpisode for anything but a dict.
    """
    node = _space_node(state, buffer)
    if node is None:
        return None
    if not isinstance(node, dict):
        raise BadEpisode(f"a {type(node).__name__} where a space belongs", where=where, fix=FIX)
    try:
        return known_space_from_rllib(node, where=where)
    except ValueError as err:  # an array in it, which has no single truth value to compare
        raise BadEpisode(f"not a space: {err}", where=where, fix=FIX) from err


def _as_arrays(state: dict[str, Any], name: str, where: str) -> Any:
    """The buffer `name` of a state, in arrays where RLlib 2.40 wrote nested lists."""
    buffer = state[name]
    if name not in ("observations", "actions") or not isinstance(buffer, dict) or buffer.get("finalized") is not True:
        return buffer
    space, data = space_in_state(state, name, where=where), buffer.get("data")
    if space is None or isinstance(data, np.ndarray) or not _is_jsonable(data, space):
        return buffer
    return {**buffer, "data": _arrays_from_jsonable(data, space, name=name, where=where)}


def _buffer(buffer: Any, name: str, rows: int, where: str) -> dict[str, Any]:
    """The buffer's state, with `rows` records after its lookback buffer."""
    if not isinstance(buffer, dict) or "data" not in buffer:
        raise BadEpisode(f"{name} is no buffer", where=where, fix=FIX)
    data, lookback = buffer["data"], _count(buffer.get("lookback", 0), f"the lookback of {name}", where)
    finalized = not isinstance(data, list) or _flag(buffer.get("finalized", False), f"finalized of {name}", where)
    have = {len(data)} if not finalized else _row_counts(data, name, where, 0)
    if have != {lookback + rows}:
        counts = " or ".join(map(str, sorted(have))) or "no"
        what = f"{name} has {counts} rows, of which {lookback} lookback; {rows} are wanted after these"
        raise BadEpisode(what, where=where, fix=FIX, details={PROBLEM: "length-mismatch"})
    return {"data": data, "lookback": lookback, "finalized": finalized, "space": buffer.get("space")}


def _row_counts(tree: Any, name: str, where: str, depth: int) -> set[int]:
    if isinstance(tree, np.ndarray) and tree.ndim:
        return {len(tree)}
    if depth > MAX_DEPTH:
        raise BadEpisode(f"{name} is nested deeper than {MAX_DEPTH}", where=where, fix=FIX)
    if isinstance(tree, (dict, list)):
        parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return set().union(*(_row_counts(part, f"{name}.{key}", where, depth + 1) for key, part in parts))
    raise BadEpisode(f"{name} holds a {type(tree).__name__} where an array of steps belongs", where=where, fix=FIX)


def _check_rewards(buffer: Mapping[str, Any], where: str) -> None:
    data = buffer["data"]
    listed = isinstance(data, list) and not buffer["finalized"]  # a list has one number for each step, an array all of them
    values, want = (data, 1) if listed else ([data], None)
    if not all(_holds_numbers(value, want) for value in values):
        raise BadEpisode("rewards that are not one number per step", where=where, fix=FIX)


def _holds_numbers(value: Any, size: int | None) -> bool:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind in "biuf" and (value.ndim == 1 if size is None else value.size == size)
    return size == 1 and isinstance(value, (bool, int, float))


def _infos(data: Any, where: str) -> list[dict[Any, Any]]:
    if not isinstance(data, list) or not all(info is None or isinstance(info, dict) for info in data):
        raise BadEpisode("infos that are not a list of maps", where=where, fix=FIX)
    return [info or {} for info in data]


def _mapping(value: Any, name: str, where: str) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadEpisode(f"{name} is a {type(value).__name__}, not a map", where=where, fix=FIX)
    return value


def _name(value: Any, key: str, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(int(value))  # agents of a multi-agent environment may be numbered
    raise BadEpisode(f"{key} is {str(value)[:40]!r}, not text", where=where, fix=FIX)


def _flag(value: Any, key: str, where: str) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise BadEpisode(f"{key} is {str(value)[:40]!r}, not true or false", where=where, fix=FIX)


def _count(value: Any, key: str, where: str) -> int:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= int(value) <= LAST_TIMESTEP:
        return int(value)
    raise BadEpisode(f"{key} is {str(value)[:40]!r}, not a count", where=where, fix=FIX)


def _seconds(value: Any, key: str, where: str) -> float | None:
    if value is None or (isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)):
        return None if value is None or math.isnan(float(value)) else float(value)
    raise BadEpisode(f"{key} is {str(value)[:40]!r}, not seconds", where=where, fix=FIX)


def _is_jsonable(data: Any, space: Space | None) -> bool:
    """Whether `data` (numpy'ized, of a Dict or Tuple space) holds lists where its arrays belong."""
    if isinstance(space, spaces.Dict):
        return isinstance(data, dict) and any(_is_jsonable(data.get(key), part) for key, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return isinstance(data, list) and any(_is_jsonable(item, part) for item, part in zip(data, space.spaces, strict=False))
    return isinstance(data, list)


def _arrays_from_jsonable(data: Any, space: Space, *, name: str, where: str) -> Tree:
    """Leaves (T, *shape) in the dtypes of `space`. Raises BadEpisode, naming the leaf, for lists that are not rows of it."""
    if isinstance(space, spaces.Dict):
        if not isinstance(data, dict) or data.keys() != space.spaces.keys():
            raise _misfit(name, space, where)
        return {
            key: _arrays_from_jsonable(data[key], part, name=f"{name}.{key}", where=where) for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        if not isinstance(data, list) or len(data) != len(space.spaces):
            raise _misfit(name, space, where)
        parts = enumerate(zip(data, space.spaces, strict=True))
        return [_arrays_from_jsonable(item, part, name=f"{name}.{i}", where=where) for i, (item, part) in parts]
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
