"""How long-running functions report their progress to the caller; nothing is printed here (the command line does that)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["OnProgress", "Progress", "no_progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """One report: `done` of `total` units (total None: unknown), with figures to show beside the bar."""

    stage: str  # what is being done: "reading", "training", "evaluating"
    done: int
    total: int | None
    unit: str  # "steps", "episodes", "updates", "rows"
    figures: Mapping[str, float] = field(default_factory=dict)  # by name, in the order to show: loss, samples/s


OnProgress = Callable[[Progress], None]


def no_progress(_: Progress) -> None:
    """The default listener: ignores every report."""
