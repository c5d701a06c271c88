"""Whether a column's statistics have the form that schemas/manifest.v2.json asks for; refuses nothing, the schema says why.

A manifest has as many of them as a table has columns, and a JSON Schema takes 6 ms for each.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["is_column"]

FIGURES: Final = ("nan", "infinite", "min", "max", "mean", "std")
KEYS: Final = frozenset({"dtype", "shape", "pooled", "count", *FIGURES})
MAX_COUNT: Final = 2**63 - 1


def is_column(value: Any) -> bool:
    """False for some that the schema accepts (3.0 for a count), never true for one that it refuses."""
    return (
        isinstance(value, dict)
        and value.keys() == KEYS
        and isinstance(value["dtype"], str)
        and isinstance(value["pooled"], bool)
        and isinstance(value["shape"], list)
        and all(map(_is_count, (value["count"], *value["shape"])))
        and all(_are_figures(value[name]) for name in FIGURES)
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _are_figures(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_are_figures, value))
    return value is None or type(value) in (int, float) or value in ("inf", "-inf")
