"""Strict conversion of rewards to float and of end flags to bool; ValueError for everything else.

Python and numpy convert None to NaN, '1.0' to 1.0, and any text to True.
"""

from __future__ import annotations

from numbers import Real
from typing import Any, Final

import numpy as np

FLAGS: Final = frozenset({bool, np.bool_})


def reward_of(value: Any) -> float:
    """A reward of any numeric type as float, NaN and infinities included. Raises ValueError if it is not a number."""
    is_number = isinstance(value, Real) or (not hasattr(value, "dtype") and hasattr(type(value), "__float__"))  # Decimal, too
    return float(value) if is_number else _single(value, "a reward", "is not a number")


def flag_of(value: Any) -> bool:
    """An end flag as bool: a bool, or 0 or 1 of any type. Raises ValueError for anything else."""
    if type(value) in FLAGS:
        return bool(value)
    wrong = "is neither true nor false"
    number = _single(value, "an end flag", wrong)
    if number not in (0, 1):
        raise ValueError(f"an end flag of {value!r}, which {wrong}")
    return bool(number)


def _single(value: Any, what: str, wrong: str) -> float:
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)  # a torch tensor
    if array.dtype.kind not in "biuf" or array.size != 1:
        shown = repr(value)
        raise ValueError(f"{what} of {shown if len(shown) <= 60 else shown[:60] + '...'}, which {wrong}")
    return float(array.item())
