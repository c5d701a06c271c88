"""Infos of environments as they are kept (`--infos`): copies of what a dataset can hold, since environments reuse theirs.

`plain`: numbers, texts, arrays of these, and lists and mappings of all of them; other entries are dropped, and counted by key.
`all`: an entry that cannot be stored is an error. `none`: nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from offline_cli.episodes.codec.pack import plain_mapping
from offline_cli.errors import BadData
from offline_cli.tally import Tally

__all__ = ["DROPPED", "KeptInfo", "kept_info"]

DROPPED: Final = "info-dropped"
PLAIN: Final = frozenset({bool, float, type(None), np.bool_, np.float32, np.float64, np.int32, np.int64})
BITS: Final = 63  # of a whole number


class KeptInfo:
    """An info as one value, which gymnasium's vector environments hand on as it is."""

    __slots__ = ("dropped", "kept")

    def __init__(self, kept: dict[str, Any], dropped: tuple[str, ...] = ()) -> None:
        self.kept, self.dropped = kept, dropped  # `dropped`: keys, with dots


def kept_info(info: Any, how: str) -> KeptInfo | None:
    """The info as `how` says; None: nothing is kept or dropped. Raises ValueError, with the key, where `all` cannot be kept."""
    if how == "none" or not info:
        return None
    if not isinstance(info, Mapping):
        raise ValueError(f"an info of type {type(info).__name__}, which is not a mapping")
    if all(type(key) is str and _is_plain(value) for key, value in info.items()):
        return KeptInfo(dict(info))  # the usual case
    if how == "all":
        try:
            plain_mapping(info, tally=Tally(), where="info")
        except BadData as err:
            raise ValueError(f"an {err.where} with {err.what}, which cannot be stored") from err
    dropped: list[str] = []
    return KeptInfo(_pruned(info, "", dropped), tuple(dropped))


def _is_plain(value: Any) -> bool:
    """Whether it is one number or text that can be stored; quick."""
    kind = type(value)
    if kind is int:
        return bool(-(1 << BITS) <= value < 1 << BITS)
    return kind in PLAIN or (kind is str and value.isascii())


def _pruned(info: Mapping[Any, Any], path: str, dropped: list[str]) -> dict[Any, Any]:
    kept = {}
    for key, value in info.items():
        name = f"{path}{key}"
        if type(key) is str and _is_plain(value):
            kept[key] = value
        elif isinstance(value, Mapping):
            kept[key] = _pruned(value, f"{name}.", dropped)
        elif _can_be_stored(key, value):
            kept[key] = _copied(value)
        else:
            dropped.append(name)
    return kept


def _can_be_stored(key: Any, value: Any) -> bool:
    try:
        plain_mapping({key: value}, tally=Tally(), where="info")
    except BadData:
        return False
    return True


def _copied(value: Any) -> Any:
    """A deep copy of arrays, dicts and lists."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    return [_copied(part) for part in value] if type(value) is list else value
