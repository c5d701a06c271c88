"""Progress reports of long-running functions, shown by the command line and in notebooks."""

from __future__ import annotations

import builtins
import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

DRAW_SECONDS: Final = 0.25  # between two drawings in a notebook


@dataclass(frozen=True, slots=True)
class Progress:
    """A report: `done` of `total` units (None: unknown), with figures to show beside the bar."""

    stage: str  # "reading", "training", "evaluating"
    done: int
    total: int | None
    unit: str  # "steps", "episodes", "updates", "rows"
    figures: Mapping[str, float] = field(default_factory=dict)  # by name, in the order to show: loss, samples/s


OnProgress = Callable[[Progress], None]


def no_progress(_: Progress) -> None:
    """The default callback: ignores every report."""


class ProgressBars:
    """A progress callback that draws one rich bar for each stage; `shown` is the rich.progress.Progress that holds them."""

    def __init__(self, told: Callable[[Progress], str], **options: Any) -> None:
        """`told`: formats the text after a bar's number. `options`: keyword arguments of rich.progress.Progress."""
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


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel (which defines `get_ipython` as a builtin)."""
    shell = vars(builtins).get("get_ipython")
    return shell is not None and any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell()).__mro__)


class NotebookBars:
    """A progress callback for notebooks: one bar for each stage in the cell's output."""

    def __init__(self) -> None:
        self._bars = ProgressBars(_with_figures, auto_refresh=False)  # never started: that would take ipywidgets
        self._cell: Any = None
        self._next = 0.0

    def __call__(self, report: Progress) -> None:
        self._bars(report)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + DRAW_SECONDS
            self.draw()

    def draw(self) -> None:
        """Redraw the bars."""
        if self._cell is not None:
            self._cell.update(self._bars.shown)
        elif self._bars.shown.tasks:
            self._cell = importlib.import_module("IPython.display").display(self._bars.shown, display_id=True)


def _with_figures(report: Progress) -> str:
    return ", ".join((report.unit, *(f"{name} {value:.4g}" for name, value in report.figures.items())))
