"""States of pieces compared value by value; refuses to know what any of them means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["same_state", "shown_names"]


def same_state(one: Any, two: Any) -> bool:
    """Whether two states hold the same names and the same values, arrays element by element."""
    if isinstance(one, Mapping) or isinstance(two, Mapping):
        both = isinstance(one, Mapping) and isinstance(two, Mapping)
        return both and one.keys() == two.keys() and all(same_state(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(map(same_state, one, two))
    return bool(np.array_equal(one, two))


def shown_names(state: Any) -> str:
    """What names a state has, for an error, or what stands where it belongs."""
    return str(sorted(map(str, state)))[:200] if isinstance(state, Mapping) else f"a {type(state).__name__} in its place"
