"""Rewards and end flags of environments as numbers and truth values; ValueError for anything that is neither.

Python and numpy alone would take None for NaN, '1.0' for 1.0 and any text for true.
"""

from __future__ import annotations

from numbers import Real
from typing import Any, Final

import numpy as np

__all__ = ["FLAGS", "REWARDS", "flag_of", "reward_of"]

REWARDS: Final = frozenset({float, int, np.float64, np.float32, np.int64})  # the usual types, which need no second look
FLAGS: Final = frozenset({bool, np.bool_})
SHOWN: Final = 60  # characters of a value


def reward_of(value: Any) -> float:
    """The number that a reward says, of whatever type; NaN and infinities too. Raises ValueError for what is not a number."""
    if type(value) in REWARDS:
        return float(value)
    if isinstance(value, Real):
        return float(value)
    if not hasattr(value, "dtype") and hasattr(type(value), "__float__"):  # Decimal, Fraction
        return float(value)
    array = np.asarray(_plain(value))
    if array.dtype.kind not in "biuf" or array.size != 1:
        raise ValueError(f"a reward of {_shown(value)}, which is not a number")
    return float(array.item())


def _plain(value: Any) -> Any:
    """A tensor of torch on the CPU, and without its gradient; anything else as it is."""
    return value.detach().cpu() if hasattr(value, "detach") else value


def flag_of(value: Any) -> bool:
    """Whether an end flag says so: a truth value, or 0 or 1 of any type. Raises ValueError for anything else."""
    if type(value) in FLAGS:
        return bool(value)
    array = np.asarray(_plain(value))
    if array.dtype.kind not in "biuf" or array.size != 1 or array.item() not in (0, 1):
        raise ValueError(f"an end flag of {_shown(value)}, which says neither true nor false")
    return bool(array.item())


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
