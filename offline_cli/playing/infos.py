"""Infos of environments as they are kept (`--infos`): copies, since environments reuse theirs.

`plain`: numbers, texts, arrays of these, and lists and mappings of all of them; other entries are dropped, and counted by key.
`all`: an entry that cannot be stored is an error. `none`: nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from offline_cli.episodes.codec.pack import plain_mapping
from offline_cli.errors import BadData
from offline_cli.tally import Tally

DROPPED: Final = "info-dropped"
PLAIN: Final = frozenset({bool, float, type(None), np.bool_, np.float32, np.float64, np.int32, np.int64})


@dataclass(frozen=True, slots=True)
class KeptInfo:
    """An info as one value, which gymnasium's vector environments hand on as it is."""

    kept: dict[str, Any]
    dropped: tuple[str, ...] = ()  # keys, with dots

    def __bool__(self) -> bool:
        return bool(self.kept or self.dropped)


NOTHING: Final = KeptInfo({})


def kept_info(info: Any, how: str) -> KeptInfo:
    """The info as `how` says. Raises ValueError, with the key, where `all` cannot be kept."""
    if how == "none" or not info:
        return NOTHING
    if not isinstance(info, Mapping):
        raise ValueError(f"an info of type {type(info).__name__}, which is not a mapping")
    dropped: list[str] = []
    kept = _pruned(info, "", dropped)
    if dropped and how == "all":
        raise ValueError(f"an info with {', '.join(dropped)}, which cannot be stored")
    return KeptInfo(kept, tuple(dropped))


def _pruned(info: Mapping[Any, Any], path: str, dropped: list[str]) -> dict[Any, Any]:
    kept = {}
    for key, value in info.items():
        if type(key) is str and type(value) in PLAIN:  # quick: what most infos hold
            kept[key] = value
        elif isinstance(value, Mapping):
            kept[key] = _pruned(value, f"{path}{key}.", dropped)
        else:
            try:
                plain_mapping({key: value}, tally=Tally(), where="info")
                kept[key] = deepcopy(value)
            except BadData:
                dropped.append(f"{path}{key}")
    return kept
