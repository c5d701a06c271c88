"""Show progress, notes and warnings on stderr: bars on a terminal, occasional lines elsewhere; never on stdout.

Notes of the library, and warnings of any package, are one line each, without control characters; `--json` includes the notes.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Final

from offline_cli.cli.render import in_words, plain
from offline_cli.cli.streams import is_terminal, printable, write
from offline_cli.progress import OnProgress, Progress, ProgressBars, no_progress

__all__ = ["working"]

COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")  # gymnasium's warnings are yellow
LINE_SECONDS: Final = 5.0  # seconds between two lines of a stage


@contextmanager
def working(*, quiet: bool) -> Iterator[tuple[OnProgress, list[str]]]:
    """Context manager: yield a progress callback for a library call, and its notes so far. Other output goes to stderr: stdout
    is for the result only.

    Notes and Python warnings are shown on one line each; a program's own logging handlers get them as usual.
    """
    notes, loggers = _Notes(logging.WARNING), [logging.getLogger(name) for name in ("offline_cli", "py.warnings")]
    logging.captureWarnings(True)
    for logger in loggers:
        logger.addHandler(notes)
    listener = nullcontext(no_progress) if quiet else _bars() if is_terminal(sys.stderr) else _lines()
    try:
        with redirect_stdout(sys.stderr), listener as on_progress:
            yield on_progress, notes.texts
    finally:
        logging.captureWarnings(False)
        for logger in loggers:
            logger.removeHandler(notes)


class _Notes(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        failure = record.exc_info[1] if record.exc_info else None
        text = record.getMessage() + (f": {failure!r}" if failure is not None else "")
        if record.name == "py.warnings":
            text = text.rpartition("\n  ")[0] or text  # without the line of code that Python adds
        else:
            self.texts.append(text.removeprefix("note: "))
        if not logging.getLogger().handlers:
            write(sys.stderr, printable(COLOUR.sub("", " ".join(text.split()))) + "\n")


def _figures(report: Progress) -> str:
    return printable(", ".join(f"{name} {in_words(plain(value))}" for name, value in report.figures.items()))


@contextmanager
def _lines() -> Iterator[OnProgress]:
    """Progress as lines: one at the end of a stage, and one every LINE_SECONDS of a long stage."""
    last: Progress | None = None
    stage, next_line = "", 0.0

    def show() -> None:
        nonlocal last
        if last is not None:
            of = "" if last.total is None else f"/{last.total:,}"
            told = ", ".join(filter(None, (f"{last.done:,}{of} {last.unit}", _figures(last))))
            write(sys.stderr, printable(f"{last.stage}: {told}") + "\n")
        last = None

    def listen(report: Progress) -> None:
        nonlocal last, stage, next_line
        if report.stage != stage:
            show()
            stage, next_line = report.stage, time.monotonic() + LINE_SECONDS
        last = report
        if time.monotonic() >= next_line:
            show()
            next_line = time.monotonic() + LINE_SECONDS

    try:
        yield listen
    finally:
        show()  # always show the last state


@contextmanager
def _bars() -> Iterator[OnProgress]:
    """Progress as one rich bar per stage, removed at the end."""
    from rich.console import Console

    bars = ProgressBars(lambda one: f"{printable(one.unit)}  {_figures(one)}", console=Console(stderr=True), transient=True)
    with bars.shown:
        yield bars
