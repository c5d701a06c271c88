"""Shows progress, notes and warnings on stderr: a bar on a terminal, an occasional line elsewhere; never on stdout.

A progress report costs next to nothing unless it is time to draw again, so that library code may report as often as it likes.

`notes_in_one_line`: notes of the library, and warnings of any package, take one line each, without control characters. Python
itself would write them as they are, with the ids, paths and words of other programs that they repeat. A program around us that
has set up logging of its own gets the records as usual.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from types import TracebackType
from typing import Any, Final, Self, TextIO

from offline_cli.cli.pace import Pace
from offline_cli.cli.streams import is_terminal, printable, write
from offline_cli.progress import OnProgress, Progress, no_progress

__all__ = ["Lines", "notes_in_one_line", "working"]

COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")  # gymnasium's warnings are yellow

LINE_SECONDS = 10.0  # between two lines of one stage
END_SECONDS = 1.0  # between two lines that report the end of a stage: evaluations may come often


@contextmanager
def notes_in_one_line() -> Iterator[None]:
    """Within it, records of `logging` that no other handler takes, and Python's warnings, are shown in one line each."""
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


@contextmanager
def working(*, quiet: bool) -> Iterator[OnProgress]:
    """A listener for a library call. Whatever is printed meanwhile goes to stderr: stdout is for the result alone."""
    with redirect_stdout(sys.stderr), notes_in_one_line(), _display(quiet=quiet) as listener, _waits_shown_by(listener):
        yield listener


def _waits_shown_by(listener: Any) -> AbstractContextManager[None]:
    """Within it, requests to a storage that are not answered are reported, unless --quiet is given."""
    if listener is no_progress:
        return nullcontext()
    from offline_cli.storage.timeouts import waits_told_to

    def tell(url: str, waited: float, limit: float) -> None:
        listener.tell(f"{url}: no answer for {waited:.0f} s; the storage's client tries again, for {limit:.0f} s in all")

    return waits_told_to(tell)


def _display(*, quiet: bool) -> AbstractContextManager[OnProgress]:
    if quiet:
        return nullcontext(no_progress)
    if not is_terminal(sys.stderr):
        return Lines(sys.stderr)
    from offline_cli.cli.bars import Bars

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
        """Show a line that is not progress."""
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
