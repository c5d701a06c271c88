"""One episode, or its state dict, to bytes and back, exactly and without haste: the reference for the bulk codec.

The state is RLlib's (`SingleAgentEpisode.get_state`, 2.40 to 2.60). What is written always has the same keys in the same order,
plain infos and custom data, and arrays in msgpack-numpy's encoding. What is read may come from anywhere: states whose parts are
missing, of the wrong kind, or of lengths that disagree raise, and so do unsupported spaces.

`encode`, `decode` are for single episodes; the bulk codec must give the same bytes and the same values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from offline_cli.episodes.codec.arrays import pack, unpack
from offline_cli.episodes.codec.steps import arrays_from_jsonable, is_jsonable, plain_mapping
from offline_cli.episodes.episode_spaces import space_in_state, space_node
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import PROBLEM, BadData, BadEpisode, OfflineCliError
from offline_cli.tally import Tally

__all__ = [
    "DATA_BUFFERS",
    "STATE_KEYS",
    "decode",
    "encode",
    "pack_state",
    "packed",
    "plain_custom_data",
    "plain_infos",
    "unpack_state",
]

STATE_KEYS = (  # RLlib's, in its order; every written episode has exactly these
    "id_",
    "agent_id",
    "module_id",
    "multi_agent_episode_id",
    "observations",
    "actions",
    "rewards",
    "infos",
    "extra_model_outputs",
    "is_terminated",
    "is_truncated",
    "t_started",
    "t",
    "_observation_space",
    "_action_space",
    "_start_time",
    "_last_step_time",
    "custom_data",
)
NEEDED = ("id_", "observations", "actions", "rewards", "infos", "is_terminated", "is_truncated", "t_started", "t")
NAMES = ("agent_id", "module_id", "multi_agent_episode_id")
DATA_BUFFERS = {"observations": 1, "actions": 0, "rewards": 0, "infos": 1}  # rows more than steps
BUFFER_KEYS = ("data", "lookback", "finalized", "space")
OLD_CUSTOM_DATA = "_temporary_timestep_data"  # RLlib before 2.45
LAST_TIMESTEP = 1 << 53
MAX_DEPTH = 32
FIX = "write the file again from its source"


# ---- writing ----


def pack_state(state: Mapping[str, Any], *, where: str, tally: Tally) -> bytes:
    """`state` (numpy'ized) as bytes. Raises BadData naming step and key for infos and custom data that are not plain."""
    written: dict[str, Any] = {key: state.get(key) for key in STATE_KEYS}
    here = f"{where}, episode {state['id_']}"
    first = int(state["t_started"]) - int(state["infos"]["lookback"])
    for name in DATA_BUFFERS:
        written[name] = _ordered(state[name])
    written["infos"]["data"] = plain_infos(state["infos"]["data"], first=first, where=here, tally=tally)
    extra = state.get("extra_model_outputs")
    written["extra_model_outputs"] = {name: _ordered(part) for name, part in extra.items()} if extra else None
    written["custom_data"] = plain_custom_data(state.get("custom_data") or {}, where=here, tally=tally)
    return packed(written, where=here)


def packed(value: Any, *, where: str) -> bytes:
    """`value` as bytes. Raises BadData for what msgpack cannot hold."""
    try:
        return pack(value)
    except (TypeError, ValueError, OverflowError) as err:
        raise BadData(f"cannot be packed: {err}", where=where, fix="store numbers, bools and strings") from err


def plain_infos(infos: Any, *, first: int, where: str, tally: Tally) -> list[dict[str, Any]]:
    """`infos` made plain; `first` is the timestep of the first one, for errors."""
    steps = enumerate(infos, start=first)
    return [plain_mapping(info, tally=tally, where=f"{where}, infos at t={t}") if info else {} for t, info in steps]


def plain_custom_data(values: Mapping[Any, Any], *, where: str, tally: Tally) -> dict[str, Any]:
    """An episode's custom data made plain."""
    return plain_mapping(values, tally=tally, where=f"{where}, custom data") if values else {}


def _ordered(buffer: Mapping[str, Any]) -> dict[str, Any]:
    return {key: buffer.get(key) for key in BUFFER_KEYS}


# ---- reading ----


def unpack_state(data: bytes, *, where: str) -> dict[str, Any]:
    """The state in `data`, in RLlib 2.60's layout with plain flags and names.

    Arrays are read-only views of `data`; data that was recorded step by step stays a list. Raises BadEpisode naming the part
    that is missing, of the wrong kind or of the wrong length; UnsafeData as `arrays.unpack`.
    """
    state = unpack(data, where=where)
    if not isinstance(state, dict):
        raise BadEpisode(f"a {type(state).__name__} where an episode's state belongs", where=where, fix=FIX)
    missing = [key for key in NEEDED if key not in state]
    if missing:
        raise BadEpisode(f"an episode without {', '.join(missing)}", where=where, fix=FIX)
    checked = {key: state.get(key) for key in STATE_KEYS}
    _check_scalars(checked, where)
    here = f"{where}, episode {checked['id_']}"
    checked["custom_data"] = _mapping(state.get("custom_data", state.get(OLD_CUSTOM_DATA)), "custom_data", here)
    spaces = space_node(checked, "observations"), space_node(checked, "actions")
    checked["_observation_space"], checked["_action_space"] = spaces
    _check_buffers(checked, here)
    return checked


def _check_scalars(state: dict[str, Any], where: str) -> None:
    if state["id_"] is None:
        raise BadEpisode("an episode without id_", where=where, fix=FIX)
    for key in ("id_", *NAMES):
        state[key] = _name(state[key], key, where)
    for key in ("is_terminated", "is_truncated"):
        state[key] = _flag(state[key], key, where)
    for key in ("t_started", "t"):
        state[key] = _count(state[key], key, where)
    for key in ("_start_time", "_last_step_time"):
        state[key] = _seconds(state[key], key, where)


def _check_buffers(state: dict[str, Any], where: str) -> None:
    steps = state["t"] - state["t_started"]
    if steps < 0:
        raise BadEpisode(f"t is {state['t']}, before t_started {state['t_started']}", where=where, fix=FIX)
    for name, more in DATA_BUFFERS.items():
        state[name] = _buffer(_as_arrays(state, name, where), name, steps + more, where)
    _check_rewards(state["rewards"], where)
    state["infos"]["data"] = _infos(state["infos"]["data"], where)
    extra = _mapping(state["extra_model_outputs"], "extra_model_outputs", where)
    if not all(isinstance(name, str) for name in extra):
        raise BadEpisode("extra model outputs whose names are not text", where=where, fix=FIX)
    outputs = {name: _buffer(part, f"extra model output {name}", steps, where) for name, part in extra.items()}
    state["extra_model_outputs"] = outputs or None


def _as_arrays(state: dict[str, Any], name: str, where: str) -> Any:
    """The buffer `name` of a state, in arrays where RLlib 2.40 wrote nested lists."""
    buffer = state[name]
    if name not in ("observations", "actions") or not isinstance(buffer, dict) or buffer.get("finalized") is not True:
        return buffer
    space, data = space_in_state(state, name, where=where), buffer.get("data")
    if space is None or isinstance(data, np.ndarray) or not is_jsonable(data, space):
        return buffer
    return {**buffer, "data": arrays_from_jsonable(data, space, name=name, where=where)}


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


def encode(episode: SingleAgentEpisode, *, where: str = "encode", tally: Tally | None = None) -> bytes:
    """`episode` as bytes, numpy'ized (the episode itself is left as it is), lookback buffer included.

    Infos and custom data are made plain: keys that are not strings become strings, sets and tuples lists, dates and times ISO
    text, each counted in `tally`. Raises BadData naming episode, step and key for anything else that is not plain.
    """
    counts = tally if tally is not None else Tally()
    numpyized = episode if episode.is_numpy else SingleAgentEpisode.from_state(episode.get_state()).to_numpy()
    return pack_state(numpyized.get_state(), where=where, tally=counts)


def decode(data: bytes, *, where: str) -> SingleAgentEpisode:
    """The episode in `data`; arrays that came from bytes copy on write.

    Raises BadEpisode for cut or malformed bytes and lengths that disagree, UnsafeData for bytes that would build objects or
    need memory out of proportion, UnsupportedSpace for spaces that episodes cannot have. `where` names file and row.
    """
    state = unpack_state(data, where=where)
    try:
        return SingleAgentEpisode.from_state(state)
    except OfflineCliError as err:  # a state does not know where it was read
        raise type(err)(err.what, where=f"{where}, {err.where}", fix=err.fix, details=err.details) from err
