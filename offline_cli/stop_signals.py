"""Ctrl-C, SIGTERM and SIGHUP set a flag that every long loop polls; a second signal ends the process at once.

A loop that saves its work polls `requested()` between steps; other loops call `check()`, which raises StopRequested.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

SAME: Final = 0.5  # seconds in which further signals are ignored: terminal and parent both send the same stop
SAME_OF_RANKS: Final = 10.0  # likewise under torchrun, which stops all ranks once one has exited
NOTED: Final = b"\nstopping after this step; a second signal ends at once\n"
_noted: list[tuple[int, float]] = []  # the first signal and its time


class StopRequested(KeyboardInterrupt):
    """A signal requested a stop; raised by `check`, never by the signal handler."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.exit_code = exit_code_of(number)


def exit_code_of(number: int) -> int:
    """130 for SIGINT; 143 for SIGTERM and SIGHUP."""
    return 130 if number == signal.SIGINT else 143


def requested() -> int | None:
    """The number of the first signal received within `signals_noted`, or None."""
    return _noted[0][0] if _noted else None


def check() -> None:
    """Raise StopRequested if a signal was received."""
    if _noted:
        raise StopRequested(_noted[0][0])


@contextmanager
def signals_noted(*, for_good: bool = False, told: bytes = NOTED) -> Iterator[None]:
    """Install the signal handlers for the block; does nothing when nested or outside the main thread.

    `for_good`: keep them installed, so that a late signal does not change the exit code. `told`: written to stderr at the first
    signal.
    """
    owner, same = os.getpid(), SAME if os.environ.get("WORLD_SIZE", "1") == "1" else SAME_OF_RANKS

    def note(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # in a process forked by an environment, which stops it
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not _noted:
            _noted.append((number, time.monotonic()))
            with suppress(OSError):
                os.write(2, told)
        elif time.monotonic() > _noted[0][1] + same:
            os._exit(exit_code_of(number))

    names = {"SIGINT": signal.default_int_handler, "SIGTERM": signal.SIG_DFL, "SIGHUP": signal.SIG_DFL}
    usual = {getattr(signal, name): was for name, was in names.items() if hasattr(signal, name)}
    is_main = threading.current_thread() is threading.main_thread()
    taken = {number: was for number, was in usual.items() if is_main and signal.getsignal(number) == was}
    for number in taken:
        signal.signal(number, note)
    try:
        yield
    finally:
        if taken and not for_good:
            _noted.clear()
            for number, was in taken.items():
                signal.signal(number, was)
