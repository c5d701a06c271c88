"""How long-running functions report their progress to the caller; the command line shows it as bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


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


class ProgressBars:
    """Takes reports as one bar of rich's for each stage; `shown` is the rich.progress.Progress with all of them."""

    def __init__(self, told: Callable[[Progress], str], **options: Any) -> None:
        """`told`: what stands behind a bar's number. `options`: of rich.progress.Progress."""
        from rich import progress

        columns = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=24),
            progress.TimeRemainingColumn(compact=True),
            progress.TextColumn("{task.completed:,.0f} {task.fields[told]}", markup=False),
        )
        self.shown, self._told = progress.Progress(*columns, **options), told
        self._tasks: dict[str, Any] = {}

    def __call__(self, report: Progress) -> None:
        told = self._told(report)
        if report.stage not in self._tasks:
            self._tasks[report.stage] = self.shown.add_task(report.stage, total=report.total, told=told)
        self.shown.update(self._tasks[report.stage], completed=report.done, total=report.total, told=told)
