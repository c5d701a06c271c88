"""Notes of the library, and warnings of any, as one line each on stderr; refuses to show what acts on a terminal.

Python itself would write them as they are, with the ids, paths and words of other programs that they repeat. A program around
us that has set up logging of its own gets the records as ever.

How fast one stage of work goes, in figures and in words; refuses to count time that is not the stage's own.

Progress as one bar per stage on a terminal of any width; refuses to wrap a line or to cut a word.

What does not fit is left out. Loads rich, so it is loaded only where there is a terminal.

Shows progress on stderr: a bar on a terminal, an occasional line elsewhere; refuses to touch stdout or to slow the work.

A report costs next to nothing unless it is time to draw again, so that library code may report as often as it likes.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from offline_cli.cli.streams import is_terminal, printable, write
from offline_cli.progress import OnProgress, Progress, no_progress

__all__ = ["BAR_SECONDS", "Bars", "Lines", "Pace", "fitting", "notes_in_one_line", "working"]

COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")  # gymnasium's warnings are yellow


@contextmanager
def notes_in_one_line() -> Iterator[None]:
    """Within it, records of `logging` that nobody else takes, and Python's warnings, are shown in one line each."""
    last_resort, formatting = logging.lastResort, warnings.formatwarning
    logging.lastResort, warnings.formatwarning = _Notes(logging.WARNING), _of_warning
    try:
        yield
    finally:
        logging.lastResort, warnings.formatwarning = last_resort, formatting


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        failure = record.exc_info[1] if record.exc_info else None
        text = record.getMessage() + (f": {failure!r}" if failure is not None else "")
        write(sys.stderr, _line(text))


def _of_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    return _line(f"{filename}:{lineno}: {category.__name__}: {message}")


def _line(text: str) -> str:
    return printable(COLOUR.sub("", text)) + "\n"


@dataclass(slots=True)
class Pace:
    """How fast one stage goes, from its first report to its last; going back to fewer `done` begins it anew."""

    began: float  # seconds of a monotonic clock, at the first report
    first: int  # `done` of the first report
    last: Progress
    seen: float = 0.0  # when the last report came: what follows it, another stage or none, is no time of this one

    def follow(self, report: Progress, now: float) -> None:
        """Take the stage's next report."""
        if report.done < self.last.done:
            self.began, self.first = now, report.done
        self.last, self.seen = report, now

    def rate(self) -> float | None:
        """Units per second; None before there are two reports to compare."""
        done, seconds = self.last.done - self.first, self.seen - self.began
        return done / seconds if done > 0 and seconds > 0 else None

    def seconds_left(self) -> float | None:
        """Seconds to the end at this rate; None where rate or total is unknown."""
        rate, total = self.rate(), self.last.total
        return max(total - self.last.done, 0) / rate if rate and total is not None else None

    def count(self) -> str:
        """`1,200/5,000 updates`."""
        of = "" if self.last.total is None else f"/{self.last.total:,}"
        return f"{self.last.done:,}{of} {self.last.unit}"

    def left(self) -> list[str]:
        """`12 s left`, where that is known and not nothing."""
        left = self.seconds_left()
        return [f"{_duration(left)} left"] if left is not None and left > 0 else []

    def figures(self) -> list[str]:
        """`350 updates/s`, `loss 0.12`: the rate, then the report's own figures. A rate among those is the better one."""
        rate, unit = self.rate(), f"{self.last.unit}/s"
        named = {name: _short(value) for name, value in self.last.figures.items()}
        rates = [f"{named.pop(unit)} {unit}"] if unit in named else [f"{_short(rate)} {unit}"] if rate is not None else []
        return rates + [f"{name} {value}" for name, value in named.items()]


def _short(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


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


LINE_SECONDS = 10.0  # between two lines of one stage
END_SECONDS = 1.0  # between two lines that tell the end of a stage: evaluations may come often


@contextmanager
def working(*, quiet: bool) -> Iterator[OnProgress]:
    """A listener for a library call. Whatever is printed meanwhile goes to stderr: stdout is for the result alone."""
    with redirect_stdout(sys.stderr), notes_in_one_line(), _display(quiet=quiet) as listener, _waits_shown_by(listener):
        yield listener


def _waits_shown_by(listener: Any) -> AbstractContextManager[None]:
    """Within it, requests to a storage that are not answered are told of, unless all is to be quiet."""
    if listener is no_progress:
        return nullcontext()
    from offline_cli.storage.patience import waits_told_to

    def tell(url: str, waited: float, limit: float) -> None:
        listener.tell(f"{url}: no answer for {waited:.0f} s; the storage's client tries again, for {limit:.0f} s in all")

    return waits_told_to(tell)


def _display(*, quiet: bool) -> AbstractContextManager[OnProgress]:
    if quiet:
        return nullcontext(no_progress)
    if not is_terminal(sys.stderr):
        return Lines(sys.stderr)
    from offline_cli.cli.progress import Bars

    return Bars()


class Lines:
    """Progress as lines: one when a stage ends, and one every LINE_SECONDS of a long stage."""

    def __init__(self, stream: TextIO | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._stages: dict[str, Pace] = {}
        self._current: Pace | None = None
        self._next_line = 0.0
        self._next_end = 0.0

    def __call__(self, report: Progress) -> None:
        now = self._clock()
        if self._current is None or self._current.last.stage != report.stage:
            self._end_stage(now)
            self._current = self._stages.setdefault(report.stage, Pace(now, report.done, report))
            self._next_line = max(self._next_line, now + LINE_SECONDS)
        self._current.follow(report, now)
        if now >= self._next_line:
            self._print(self._current)
            self._next_line = now + LINE_SECONDS

    def tell(self, line: str) -> None:
        """Show a line that is no progress."""
        write(self._stream, printable(line) + "\n")

    def _end_stage(self, now: float) -> None:
        if self._current is not None and now >= self._next_end:
            self._print(self._current)
            self._next_end = now + END_SECONDS

    def _print(self, pace: Pace) -> None:
        text = ", ".join([pace.count(), *pace.figures(), *pace.left()])
        write(self._stream, printable(f"{pace.last.stage}: {text}") + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._current is not None:  # the last line is never left out: it says how far the work came
            self._print(self._current)
