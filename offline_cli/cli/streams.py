"""Writes text for people and programs; refuses to fail because a reader has gone, or to pass on a terminal's control codes."""

from __future__ import annotations

import os
import re
import select
import sys
from typing import TextIO

__all__ = ["colour_wanted", "discard", "is_terminal", "printable", "settle", "stdout_is_closed", "write"]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline


def write(stream: TextIO | None, text: str) -> None:
    """Write `text` and flush. A pipe that its reader has closed swallows this text and all that follows, as does no stream.

    Raises OSError where the text cannot be stored (a full disk); what is written after that is swallowed.
    """
    if stream is None:  # started with the stream closed
        return
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        discard(stream)
    except OSError:
        discard(stream)
        raise


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
        poll.register(sys.stdout.fileno(), select.POLLOUT)
    except (OSError, ValueError):  # not a file of the system: a test's buffer
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def printable(text: str) -> str:
    """`text` with control codes spelled out: file names and episode ids come from outside and may hold escape sequences."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether `stream` is there and somebody sits before it."""
    return stream is not None and stream.isatty()


def colour_wanted(stream: TextIO | None) -> bool:
    """Whether `stream` is a terminal whose user has not set NO_COLOR."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")
