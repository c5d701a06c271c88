"""Rewards and end flags of environments as numbers and truth values; ValueError for anything that is neither.

Python and numpy alone would take None for NaN, '1.0' for 1.0 and any text for true.
"""

from __future__ import annotations

from numbers import Real
from typing import Any, Final

import numpy as np

FLAGS: Final = frozenset({bool, np.bool_})


def reward_of(value: Any) -> float:
    """The number that a reward says, of whatever type; NaN and infinities too. Raises ValueError for what is not a number."""
    is_number = isinstance(value, Real) or (not hasattr(value, "dtype") and hasattr(type(value), "__float__"))  # Decimal, too
    return float(value) if is_number else _single(value, "a reward", "is not a number")


def flag_of(value: Any) -> bool:
    """Whether an end flag says so: a truth value, or 0 or 1 of any type. Raises ValueError for anything else."""
    if type(value) in FLAGS:
        return bool(value)
    said = "says neither true nor false"
    number = _single(value, "an end flag", said)
    if number not in (0, 1):
        raise ValueError(f"an end flag of {value!r}, which {said}")
    return bool(number)


def _single(value: Any, what: str, wrong: str) -> float:
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)  # a tensor of torch
    if array.dtype.kind not in "biuf" or array.size != 1:
        shown = repr(value)
        raise ValueError(f"{what} of {shown if len(shown) <= 60 else shown[:60] + '...'}, which {wrong}")
    return float(array.item())
