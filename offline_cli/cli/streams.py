"""Write text to stdout and stderr without control characters; a closed pipe is no error.

All output goes through `write`, which passes only printable characters, line breaks, and colours for terminals. Callers that
join several parts must pass each part through `printable`, because `write` keeps line breaks.
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
    """Write `text` and flush. With a closed pipe or terminal, or a missing stream, this and later text is discarded.

    Raises OSError if the text cannot be stored (full disk); later text is discarded.
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
        if error.errno not in (errno.EPIPE, errno.EIO):  # EIO: closed terminal
            raise


def reader_is_gone() -> bool:
    """Whether the reader closed the pipe of stdout; if so, discard further output."""
    if sys.platform != "win32":  # Windows has no poll
        poll = select.poll()
        try:
            poll.register(sys.stdout.fileno(), select.POLLOUT)
        except (OSError, ValueError):  # no file descriptor: a test's buffer
            return False
        if not any(event & select.POLLERR for _, event in poll.poll(0)):
            return False
    discard(sys.stdout)
    return True


def discard(stream: TextIO) -> None:
    """Redirect `stream` to the null device, so that flushing at interpreter exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def settle() -> None:
    """Flush stdout and stderr, ignoring failures that the interpreter would report at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            discard(stream)


@contextmanager
def results_alone() -> Iterator[None]:
    """Context manager: only `sys.stdout` reaches stdout; output of C code goes to stderr."""
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
    """Whether `stream` is a terminal."""
    return stream is not None and stream.isatty()


def colour_wanted(stream: TextIO | None) -> bool:
    """Whether `stream` is a terminal and NO_COLOR is unset."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")
