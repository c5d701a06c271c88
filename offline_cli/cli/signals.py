"""Signals as exceptions, so that work is saved and half-written files go; in child processes SIGTERM and SIGHUP still kill.

A handler raises between any two instructions of the main thread. Between two of Python's own import system that would leave the
lock taken which every import needs, and threads that import would wait for ever. A signal that comes there is sent again.
"""

from __future__ import annotations

import _thread
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, Self

__all__ = ["Signals", "Terminated"]

PAUSE: Final = 0.01  # seconds until a signal is sent again
SAME: Final = 0.5  # seconds in which signals are one, such as those that a terminal and a parent send; time to clean up
PATIENCE: Final = 5.0  # seconds for the import system: where it waits for another thread, that may be for ever
IMPORT_SYSTEM: Final = "<frozen importlib."  # how the names of its files begin


class Terminated(KeyboardInterrupt):
    """SIGTERM, or SIGHUP. A KeyboardInterrupt, so that whatever saves its work on Ctrl-C saves it here too."""

    exit_code: Final = 143


class Signals:
    """Raises KeyboardInterrupt in the main thread on SIGINT, and Terminated on SIGTERM and SIGHUP, unless the program around us
    has its own handler, or has the signal ignored; a context manager.
    """

    def __init__(self, raised: list[type[KeyboardInterrupt]] | None = None) -> None:
        """`raised`: what is raised is added to it, for those who see the consequences alone: somebody may have caught it."""
        self._raised = [] if raised is None else raised
        self._owner, self._main = os.getpid(), threading.get_ident()
        self._taken: dict[int, Any] = {}
        self._since: dict[int, float] = {}  # when a signal was postponed first
        self._waiting = set[int]()  # signals that are about to be sent again
        self._sending = threading.Lock()  # never taken by the handler
        self._is_open = True
        self._last = -math.inf  # when one was raised

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for name, usual in USUAL.items():
                number = getattr(signal, name, None)
                if number is not None and signal.getsignal(number) is usual:
                    self._taken[number] = usual
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if os.getpid() == self._owner:  # else a fork may have left the lock taken
            with self._sending:
                self._is_open = False
        for number, handler in self._taken.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)

    def settle(self) -> None:
        """The work is done. Raises what was postponed, and has not been raised."""
        with self._sending:
            self._is_open = False
        for number in self._waiting:
            self._raise(number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            signal.signal(number, signal.SIG_DFL)  # a forked worker is to stop, not to unwind our stack
            os.kill(os.getpid(), number)
        elif time.monotonic() - self._last > SAME and not (_imports(frame) and self._postponed(number)):
            self._raise(number)

    _handle.ends_the_command = True  # type: ignore[attr-defined]  # what engines/watchdog.py asks of handlers

    def _raise(self, number: int) -> None:
        self._since.pop(number, None)
        kind = KeyboardInterrupt if number == signal.SIGINT else Terminated
        self._raised.append(kind)
        self._last = time.monotonic()
        raise kind

    def _postponed(self, number: int) -> bool:
        """Whether the signal will come again."""
        now = time.monotonic()
        if not self._is_open or now - self._since.setdefault(number, now) > PATIENCE:
            return False
        if number not in self._waiting:
            self._waiting.add(number)
            try:
                _thread.start_new_thread(self._send, (number,))  # threading's own locks may be held here
            except (RuntimeError, MemoryError):
                self._waiting.discard(number)
                return False
        return True

    def _send(self, number: int) -> None:
        time.sleep(PAUSE)
        with self._sending:
            if self._is_open:
                self._waiting.discard(number)
                _to_thread(self._main, number)


USUAL: Final[dict[str, Any]] = {
    "SIGINT": signal.default_int_handler,
    "SIGTERM": signal.SIG_DFL,
    "SIGHUP": signal.SIG_DFL,
}
"""By name of a signal, where the system has it: what handles it if nobody has said anything."""

_to_thread: Callable[[int, int], None] = getattr(
    signal, "pthread_kill", lambda _, number: _thread.interrupt_main(signal.Signals(number))
)


def _imports(frame: FrameType | None) -> bool:
    """Whether a signal came between two instructions of the import system, or while a handler here dealt with one that did."""
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(IMPORT_SYSTEM)
