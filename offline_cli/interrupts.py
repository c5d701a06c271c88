"""Interrupts at places where Python may not be interrupted: they are sent again a moment later.

A handler of a signal that raises does it between any two instructions of the main thread. Within the import system that may
leave the lock taken that every import needs, so that threads wait for ever; within a module that is being loaded it may leave
half of a C library, or be taken by the module for a package that is missing; within a destructor or a weak reference's callback
Python prints the exception and goes on as if there had been no signal.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

__all__ = ["ENDING", "none_lost", "postponed"]

ENDING: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
PAUSE: Final = 0.01  # seconds until it is sent again
PATIENCE: Final = 5.0  # seconds for the import system to be through: where it waits for another thread that may be for ever
LOADING: Final = 2.0  # seconds for modules to be loaded
IMPORTING: Final = "<frozen importlib."  # how the names of the import system's own files begin
_since: dict[int, float] = {}  # when a signal was first postponed that has not been raised yet


def postponed(number: int, frame: FrameType | None, *, loading: bool = False) -> bool:
    """Whether the signal came within the import system, and will come again soon; `loading`: or while a module is loaded.

    For handlers that raise; takes no lock.
    """
    began, now = _since.setdefault(number, time.monotonic()), time.monotonic()
    if now - began < _patience(frame, loading) and _sent_again(number):
        return True
    _since.pop(number, None)
    return False


def _patience(frame: FrameType | None, loading: bool) -> float:
    """Seconds that a signal in `frame` waits for a better place; 0: none is needed."""
    if frame is not None and _imports(frame):
        return PATIENCE
    while loading and frame is not None:
        if _imports(frame):
            return LOADING
        frame = frame.f_back
    return 0.0


def _imports(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(IMPORTING)


@contextmanager
def none_lost(numbers: Mapping[type[BaseException], int]) -> Iterator[None]:
    """Within it an exception of one of these very classes that Python would only print has its signal sent again."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        number = numbers.get(unraisable.exc_type)
        if number is None or not _sent_again(number):
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        if sys.unraisablehook is hook:
            sys.unraisablehook = before


def _sent_again(number: int) -> bool:
    """Have it come again, by a thread that threading, whose locks may be held here, does not know; False: there can be none."""

    def send() -> None:
        time.sleep(PAUSE)
        os.kill(os.getpid(), number)

    try:
        _thread.start_new_thread(send, ())
    except RuntimeError:  # the system allows none, or the interpreter ends
        return False
    return True
