"""Progress as one bar per stage on a terminal of any width, without wrapped lines or cut words.

What does not fit is left out. Loads rich, so it is loaded only where there is a terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from offline_cli.cli.pace import Pace
from offline_cli.cli.streams import printable
from offline_cli.progress import Progress

__all__ = ["BAR_SECONDS", "Bars", "fitting"]

BAR_SECONDS = 0.1  # between two drawings of a bar
WIDE, NARROW = 24, 10  # columns of a bar
NARROW_WINDOW = 100  # columns of a window below which a bar is narrow


def fitting(parts: Sequence[str], columns: int) -> str:
    """As many of `parts`, from the left, as have room in `columns`; the first always."""
    shown = parts[0] if parts else ""
    for part in parts[1:]:
        if len(shown) + 2 + len(part) > columns:
            break
        shown = f"{shown}, {part}"
    return shown


class _Details(ProgressColumn):
    """Time left, count and figures, as far as the window has room for them beside labels and bars."""

    def __init__(self, console: Console, bar: int) -> None:
        super().__init__(Column(no_wrap=True))
        self._console, self._bar = console, bar
        self.label = 0  # columns of the longest label

    def render(self, task: Task) -> Text:
        room = self._console.width - self.label - self._bar - 3  # two gaps, and a last column that no terminal wraps at
        return Text(fitting(task.fields["parts"], room))


class Bars:
    """Progress as one bar per stage, gone when the work ends: the result says what is worth keeping."""

    def __init__(self) -> None:
        console = Console(file=sys.stderr)
        bar = NARROW if console.width < NARROW_WINDOW else WIDE
        self._details = _Details(console, bar)
        self._bars = RichProgress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=bar, table_column=Column(no_wrap=True)),
            self._details,
            console=console,
            transient=True,
            refresh_per_second=1 / BAR_SECONDS,
        )
        self._stages: dict[str, tuple[TaskID, Pace]] = {}
        self._current: tuple[TaskID, Pace] | None = None
        self._next_draw = 0.0

    def __call__(self, report: Progress) -> None:
        now = time.monotonic()
        if self._current is None or self._current[1].last.stage != report.stage:
            self._draw()  # how the stage that is left ended
            self._current, self._next_draw = self._stage(report, now), now
        self._current[1].follow(report, now)
        if now >= self._next_draw:
            self._draw()
            self._next_draw = now + BAR_SECONDS

    def tell(self, line: str) -> None:
        """Show a line above the bars."""
        self._bars.console.print(printable(line), markup=False, highlight=False)

    def _stage(self, report: Progress, now: float) -> tuple[TaskID, Pace]:
        if report.stage not in self._stages:
            label = printable(report.stage)
            self._details.label = max(self._details.label, len(label))
            task = self._bars.add_task(label, total=report.total, parts=())
            self._stages[report.stage] = task, Pace(now, report.done, report)
        return self._stages[report.stage]

    def _draw(self) -> None:
        if self._current is None:
            return
        task, pace = self._current
        parts = [printable(part) for part in (*pace.left(), pace.count(), *pace.figures())]
        self._bars.update(task, completed=pace.last.done, total=pace.last.total, parts=parts)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bars.stop()
