"""What each row is to reach: the budgets of the design, as bounds on a ratio or on our own figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["NO_TARGET", "Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """A row's `of` shall be at least so much; `words` is the budget as one would say it."""

    at_least: float | None
    of: Literal["ratio", "ours"] = "ratio"
    words: str = ""


NO_TARGET: Final = Target(None)
