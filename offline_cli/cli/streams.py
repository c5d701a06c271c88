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
from contextlib import contextmanager, suppress
from typing import Final, TextIO

from offline_cli.printable_text import printable

__all__ = [
    "can_show",
    "colour_wanted",
    "discard",
    "is_terminal",
    "printable",
    "results_alone",
    "settle",
    "stdout_is_closed",
    "write",
]

STDOUT, STDERR = 1, 2
_results: list[tuple[TextIO, TextIO]] = []  # stdout, and what stands for it within `results_alone`
COLOUR: Final = re.compile(r"(\x1b\[[0-9;]*m)")


def write(stream: TextIO | None, text: str) -> None:
    """Write `text` and flush. A closed pipe or terminal, or a missing stream, swallows this text and what follows.

    Raises OSError where the text cannot be stored (a full disk); what is written after that is swallowed.
    """
    if stream is None:  # started with the stream closed
        return
    stream = next((results for stdout, results in _results if stream is stdout), stream)
    text, encoding = _showable(text, coloured=colour_wanted(stream)), stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        discard(stream)
    except OSError as error:
        discard(stream)
        if error.errno != errno.EIO:  # a terminal that has been closed
            raise


@contextmanager
def results_alone() -> Iterator[None]:
    """Within it `write` alone reaches stdout: what others print, C code of an environment too, goes to stderr."""
    try:
        is_ours = sys.stdout.fileno() == STDOUT
    except (AttributeError, OSError, ValueError):  # closed, or a test's buffer
        is_ours = False
    if not is_ours:
        yield
        return
    stdout = sys.stdout
    stdout.flush()
    with os.fdopen(os.dup(STDOUT), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors) as results:
        os.dup2(STDERR, STDOUT)
        _results.append((stdout, results))
        try:
            yield
        finally:
            _results.pop()
            with suppress(OSError):
                stdout.flush()
            os.dup2(results.fileno(), STDOUT)


def settle() -> None:
    """Flush stdout and stderr while a failure to do so can still be kept quiet; at exit the interpreter would report it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            discard(stream)


def discard(stream: TextIO) -> None:
    """Send what `stream` still holds, and all that follows, nowhere: else the interpreter complains when it flushes at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)


def stdout_is_closed() -> bool:
    """Whether stdout is a pipe whose reader has gone."""
    if sys.platform == "win32":  # which has no poll, and for which a broken pipe of another kind is rare
        return True
    poll = select.poll()
    try:
        poll.register((_results[-1][1] if _results else sys.stdout).fileno(), select.POLLOUT)
    except (OSError, ValueError):  # not a file of the system: a test's buffer
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _showable(text: str, *, coloured: bool) -> str:
    """`text` without what acts on a terminal, but for line breaks, and colours where it is `coloured`."""
    if not coloured:
        return _lines(text)
    return "".join(part if number % 2 else _lines(part) for number, part in enumerate(COLOUR.split(text)))


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def is_terminal(stream: TextIO | None) -> bool:
    """Whether `stream` is there and is a terminal."""
    return stream is not None and stream.isatty()


def can_show(stream: TextIO | None, text: str) -> bool:
    """Whether the encoding of `stream` has all letters of `text`."""
    try:
        text.encode((stream and stream.encoding) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def colour_wanted(stream: TextIO | None) -> bool:
    """Whether `stream` is a terminal whose user has not set NO_COLOR."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")
