"""Encode one episode: msgpack of its numpy'ized state in RLlib's layout, with infos and custom data converted to plain values.

Unchanged: None, bool, int, float, complex, str, bytes, lists, numpy scalars, and arrays of numbers, bools or strings.
Converted, and counted by kind in the tally: non-string keys, sets, tuples, dates and times. Anything else, which no other
program could read, raises BadData that names the episode, the step and the key.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from offline_cli.episodes.codec.arrays import pack
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadData
from offline_cli.tally import Tally

__all__ = ["encode", "packed", "plain_custom_data", "plain_infos", "plain_mapping"]

MAX_INFO_DEPTH = 64  # deeper nesting is probably a cycle
LOWEST_INT, HIGHEST_INT = -(2**63), 2**64 - 1  # msgpack's

_KEYS = (bool, int, float, type(None), np.number, np.bool_)


def encode(episode: SingleAgentEpisode, *, where: str = "encode", tally: Tally | None = None) -> bytes:
    """Encode `episode`, numpy'ized, with its lookback buffer; the episode itself is unchanged.

    Infos and custom data are converted to plain values, counted in `tally`. Raises BadData, naming episode, step and key, for
    a value that cannot be converted.
    """
    counts, here = Tally() if tally is None else tally, f"{where}, episode {episode.id_}"
    numpyized = episode if episode.is_numpy else SingleAgentEpisode.from_state(episode.get_state()).to_numpy()
    state = numpyized.get_state()
    first = episode.t_started - episode.infos.lookback
    state["infos"]["data"] = plain_infos(state["infos"]["data"], first=first, where=here, tally=counts)
    state["custom_data"] = plain_custom_data(state["custom_data"], where=here, tally=counts)
    return packed(state, where=here)


def packed(value: Any, *, where: str) -> bytes:
    """Pack `value`. Raises BadData for values that msgpack cannot hold."""
    try:
        return pack(value)
    except (TypeError, ValueError, OverflowError) as err:
        raise BadData(f"cannot be packed: {err}", where=where, fix="store numbers, bools and strings") from err


def plain_infos(infos: Any, *, first: int, where: str, tally: Tally) -> list[dict[str, Any]]:
    """Convert `infos` to plain values; `first`: the timestep of the first one, for errors."""
    steps = enumerate(infos, start=first)
    return [plain_mapping(info, tally=tally, where=f"{where}, infos at t={t}") if info else {} for t, info in steps]


def plain_custom_data(values: Mapping[Any, Any], *, where: str, tally: Tally) -> dict[str, Any]:
    """Convert an episode's custom data to plain values."""
    return plain_mapping(values, tally=tally, where=f"{where}, custom data") if values else {}


def plain_mapping(values: Mapping[Any, Any], *, tally: Tally, where: str) -> dict[str, Any]:
    """`values` with every part of it plain. `where` names episode and step; the error adds the key. Raises BadData."""
    if all(type(key) is str and key.isascii() and _is_simple(item) for key, item in values.items()):
        return dict(values)  # ids of sources and assumptions, for each of many short episodes
    plain: dict[str, Any] = _plain(values, (), tally, where)
    return plain


def _is_simple(value: Any) -> bool:
    return (type(value) is str and value.isascii()) or type(value) is bool


def _plain(value: Any, path: tuple[str, ...], tally: Tally, where: str) -> Any:
    match value:
        case None | bool() | float() | complex() | bytes():  # the most frequent types first
            return value
        case str():
            return _text(str.__str__(value), path, where)
        case int():
            if not LOWEST_INT <= value <= HIGHEST_INT:
                raise _refused(f"the integer {str(value)[:40]} does not fit into 64 bits", path, where)
            return int(value)
        case Mapping() | list() | tuple() | Set() if len(path) > MAX_INFO_DEPTH:
            raise _refused(f"values nested deeper than {MAX_INFO_DEPTH}", path, where)
        case Mapping():
            plain: dict[str, Any] = {}
            for key, item in value.items():
                name = _key(key, path, tally, where)
                if name in plain:
                    raise _refused(f"two keys have the same text {name!r}", (*path, name), where)
                plain[name] = _plain(item, (*path, name), tally, where)
            return plain
        case list() | tuple():
            tally.assume("tuple-to-list", int(isinstance(value, tuple)))
            return [_plain(item, (*path, str(i)), tally, where) for i, item in enumerate(value)]
        case Set():
            tally.assume("set-to-list")
            items = [_plain(item, path, tally, where) for item in value]
            return sorted(items, key=lambda item: (type(item).__name__, repr(item)))  # set order varies between runs
        case datetime.datetime() | datetime.date() | datetime.time():
            tally.assume("datetime-to-text")
            return value.isoformat()
        case np.ndarray() | np.generic() if value.dtype.kind == "M":
            tally.assume("datetime-to-text")
            return np.datetime_as_string(np.asarray(value)).tolist()
        case np.ndarray() | np.generic() if value.dtype.kind in "biufcSU" and value.dtype.itemsize:
            return value
    kind = f"{value.dtype} array" if isinstance(value, np.ndarray) else f"{type(value).__module__}.{type(value).__qualname__}"
    raise _refused(f"a value of type {kind}", path, where)


def _key(key: Any, path: tuple[str, ...], tally: Tally, where: str) -> str:
    if isinstance(key, str):
        return _text(str.__str__(key), path, where)
    tally.assume("non-string-key-to-text")
    if isinstance(key, bytes) and (text := key.decode("utf-8", "replace")).encode() == key:
        return text
    parts = key if isinstance(key, tuple) else (key,)
    if not all(isinstance(part, (str, *_KEYS)) for part in parts):
        raise _refused(f"a key of type {type(key).__name__}", path, where)
    plain = tuple(part.item() if isinstance(part, np.generic) else part for part in parts)
    return str(plain if isinstance(key, tuple) else key)


def _text(value: str, path: tuple[str, ...], where: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as err:
        raise _refused("text with lone surrogates, which UTF-8 cannot encode", path, where) from err
    return value


def _refused(what: str, path: tuple[str, ...], where: str) -> BadData:
    place = f"{where}, key {'.'.join(path)!r}" if path else where
    return BadData(what, where=place, fix="store numbers, text, lists and maps of these, or leave the key out before recording")
