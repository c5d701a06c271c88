"""Made: what an export writes, beside the card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Made", "form"]


@dataclass(frozen=True, slots=True)
class Made:
    """Files, and what the card says of them."""

    files: Mapping[str, bytes]  # in order, by their paths below `out`; "" is `out` itself
    inputs: Mapping[str, str]  # see `form`
    outputs: Mapping[str, str]
    how: str  # to run it, as Markdown
    difference: float  # greatest, of `action_dist_inputs` to the run's policy
    notes: tuple[str, ...] = ()


def form(dtype: Any, shape: tuple[int, ...]) -> str:
    """`float32 (B, 4)`: of an array with B rows of this shape."""
    return f"{dtype} ({', '.join(map(str, ('B', *shape)))}{'' if shape else ','})"
