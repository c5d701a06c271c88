"""Writes text for people and programs, without control characters; a reader that has gone is no error.

`write` is the one place where text reaches a terminal or a pipe: of unprintable characters it passes line breaks alone, and
colours where there is a terminal that wants them. Which line breaks are ours, only whoever makes a text of several parts knows:
each part goes through `printable`.
"""

from __future__ import annotations

import errno
import os
import re
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Final, TextIO

from offline_cli.printable_text import printable

__all__ = ["colour_wanted", "is_terminal", "printable", "reader_is_gone", "results_alone", "settle", "write"]

STDOUT, STDERR = 1, 2
PART: Final = re.compile(r"(?P<colour>\x1b\[[0-9;]*m)|[^\n\x1b]+|\x1b")


def write(stream: TextIO | None, text: str) -> None:
    """Write `text` and flush. A closed pipe or terminal, or a missing stream, swallows this text and what follows.

    Raises OSError where the text cannot be stored (a full disk); what is written after that is swallowed.
    """
    if stream is None:  # started with the stream closed
        return
    coloured, encoding = colour_wanted(stream), stream.encoding or "utf-8"
    shown = PART.sub(lambda part: part[0] if coloured and part["colour"] else printable(part[0]), text)
    try:
        stream.write(shown.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except OSError as error:
        discard(stream)
        if error.errno not in (errno.EPIPE, errno.EIO):  # EIO: a terminal that has been closed
            raise


def reader_is_gone() -> bool:
    """Whether stdout is a pipe whose reader has gone; what it still holds is discarded then."""
    if sys.platform != "win32":  # which has no poll, and for which a broken pipe of another kind is rare
        poll = select.poll()
        try:
            poll.register(sys.stdout.fileno(), select.POLLOUT)
        except (OSError, ValueError):  # not a file of the system: a test's buffer
            return False
        if not any(event & select.POLLERR for _, event in poll.poll(0)):
            return False
    discard(sys.stdout)
    return True


def discard(stream: TextIO) -> None:
    """Redirect `stream` to the null device, so that the interpreter does not fail when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def settle() -> None:
    """Flush stdout and stderr while a failure to do so can still be kept quiet; at exit the interpreter would report it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            discard(stream)


@contextmanager
def results_alone() -> Iterator[None]:
    """Context in which only `sys.stdout` reaches stdout; output of C code goes to stderr."""
    stdout = sys.stdout
    if stdout is not sys.__stdout__ or stdout is None:  # closed, or a test's buffer
        yield
        return
    stdout.flush()
    with os.fdopen(os.dup(STDOUT), "w", encoding=stdout.encoding, errors=stdout.errors) as results, redirect_stdout(results):
        os.dup2(STDERR, STDOUT)
        try:
            yield
        finally:
            os.dup2(results.fileno(), STDOUT)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether `stream` is there and is a terminal."""
    return stream is not None and stream.isatty()


def colour_wanted(stream: TextIO | None) -> bool:
    """Whether `stream` is a terminal whose user has not set NO_COLOR."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")
