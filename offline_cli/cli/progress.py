"""Shows progress, notes and warnings on stderr: bars on a terminal, a line now and then elsewhere; never on stdout.

Notes of the library, and warnings of any package, take one line each, without control characters, and are kept for `--json`.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TextIO

from offline_cli.cli.streams import is_terminal, printable, write
from offline_cli.progress import OnProgress, Progress, no_progress

__all__ = ["Bars", "Display", "Lines", "working"]

COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")  # gymnasium's warnings are yellow
LINE_SECONDS: Final = 5.0  # between two lines of one stage
DRAW_SECONDS: Final = 0.1  # between two updates of a bar


@dataclass(frozen=True, slots=True)
class Display:
    """Takes the progress of a library call, and keeps its notes."""

    on_progress: OnProgress
    notes: list[str]


@contextmanager
def working(*, quiet: bool) -> Iterator[Display]:
    """A display for a library call. Whatever is printed meanwhile goes to stderr: stdout is for the result alone.

    Notes, and warnings of Python, are shown in one line each; a program's own logging gets the records as usual.
    """
    listener = nullcontext(no_progress) if quiet else Bars() if is_terminal(sys.stderr) else Lines(sys.stderr)
    notes = _Notes(logging.WARNING)
    logger, formatting = logging.getLogger("offline_cli"), warnings.formatwarning
    warnings.formatwarning = _of_warning
    logger.addHandler(notes)
    try:
        with redirect_stdout(sys.stderr), listener as on_progress:
            yield Display(on_progress, notes.texts)
    finally:
        warnings.formatwarning = formatting
        logger.removeHandler(notes)


class _Notes(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        failure = record.exc_info[1] if record.exc_info else None
        text = record.getMessage() + (f": {failure!r}" if failure is not None else "")
        self.texts.append(text.removeprefix("note: "))
        if not logging.getLogger().handlers:
            write(sys.stderr, _line(text))


def _of_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    return _line(f"{filename}:{lineno}: {category.__name__}: {message}")


def _line(text: str) -> str:
    return printable(COLOUR.sub("", text)) + "\n"


def _figures(report: Progress, rate: float | None) -> str:
    """`350 updates/s, loss 0.12`: the rate, then the report's own figures. A rate among those is the better one."""
    unit = f"{report.unit}/s"
    rates = {} if rate is None or unit in report.figures else {unit: rate}
    told = {**rates, **report.figures}
    return ", ".join(f"{_short(value)} {name}" if name == unit else f"{name} {_short(value)}" for name, value in told.items())


def _short(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


class Lines:
    """Progress as lines: one when a stage ends, and one every LINE_SECONDS of a long stage."""

    def __init__(self, stream: TextIO | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._last: Progress | None = None
        self._began, self._first, self._next_line = 0.0, 0, 0.0

    def __call__(self, report: Progress) -> None:
        now = self._clock()
        if self._last is None or self._last.stage != report.stage or report.done < self._last.done:
            if self._last is not None and self._last.stage != report.stage:
                self._print(now)
            self._began, self._first = now, report.done
            self._next_line = now + LINE_SECONDS
        self._last = report
        if now >= self._next_line:
            self._print(now)
            self._next_line = now + LINE_SECONDS

    def _print(self, now: float) -> None:
        assert self._last is not None
        report, seconds = self._last, now - self._began
        done = report.done - self._first
        rate = done / seconds if done > 0 and seconds > 0 else None
        of = "" if report.total is None else f"/{report.total:,}"
        left = (report.total - report.done) / rate if rate and report.total is not None else 0
        parts = [f"{report.done:,}{of} {report.unit}", _figures(report, rate), f"{left:.0f} s left" if left > 0 else ""]
        write(self._stream, printable(f"{report.stage}: {', '.join(filter(None, parts))}") + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._last is not None:  # the last line is never left out: it says how far the work came
            self._print(self._clock())


class Bars:
    """Progress as one bar of rich's for each stage, gone when the work ends: the result says what is worth keeping."""

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console

        columns = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=24),
            progress.TimeRemainingColumn(compact=True),
            progress.TextColumn("{task.completed:,.0f} {task.fields[unit]}  {task.fields[figures]}", markup=False),
        )
        self._bars = progress.Progress(*columns, console=Console(file=sys.stderr), transient=True)
        self._tasks: dict[str, Any] = {}
        self._last, self._next = "", 0.0

    def __call__(self, report: Progress) -> None:
        now = time.monotonic()
        if report.stage == self._last and now < self._next and report.done != report.total:
            return
        self._last, self._next = report.stage, now + DRAW_SECONDS
        fields: dict[str, Any] = {"unit": printable(report.unit), "figures": printable(_figures(report, None))}
        if report.stage not in self._tasks:
            self._tasks[report.stage] = self._bars.add_task(printable(report.stage), total=report.total, **fields)
        self._bars.update(self._tasks[report.stage], completed=report.done, total=report.total, **fields)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bars.stop()
