"""Notes of the library, and warnings of any, as one line each on stderr; refuses to show what acts on a terminal.

Python itself would write them as they are, with the ids, paths and words of other programs that they repeat. A program around
us that has set up logging of its own gets the records as ever.
"""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from offline_cli.cli.streams import printable, write

__all__ = ["notes_in_one_line"]

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
