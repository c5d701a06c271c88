"""What Minari keeps of an episode beside its arrays: which attributes are ids and statistics, end flags, and infos by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.tally import UNFINISHED, Tally

__all__ = ["EXTRA", "IDS", "STATISTICS", "ends_of", "nested_rows"]

EXTRA: Final = "extra_model_outputs"  # where our sink keeps these
IDS: Final = ("eps_id", "agent_id", "module_id")  # where it keeps ids that are no numbers of episodes
STATISTICS: Final = frozenset({"id", "total_steps", *(f"rewards_{name}" for name in ("sum", "mean", "std", "max", "min"))})


def ends_of(terminations: NDArray[Any], truncations: NDArray[Any], tally: Tally) -> tuple[bool, bool]:
    """Whether an episode of these flags (T,) terminated, and whether it was truncated; counts flags before its end."""
    flags = np.stack([terminations, truncations]).astype(np.bool_)
    tally.assume("end-flag-before-end", int(flags[:, :-1].any(axis=0).sum()))
    if not flags.shape[1]:
        return False, False
    terminated, truncated = map(bool, flags[:, -1])
    if not (terminated or truncated):
        tally.assume(UNFINISHED)
    return terminated, truncated or not terminated


def nested_rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """One dict a row; `/` in a column's name divides keys of nested dicts."""
    heads: dict[str, dict[str, Sequence[Any]]] = {}
    for path, values in columns.items():
        head, _, rest = path.partition("/")
        heads.setdefault(head, {})[rest] = values
    whole = {head: parts[""] if "" in parts else nested_rows(parts) for head, parts in heads.items()}
    return [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]
