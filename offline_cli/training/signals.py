"""Ctrl-C and SIGTERM as a request that a loop reads between two updates; refuses to break into the middle of one.

A second signal does break in, for those who cannot wait.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["StopRequested", "StopSignals"]


class StopRequested(Exception):  # not an error: it ends a check early and never leaves training
    """Raised inside a check that a signal has cut short."""


class StopSignals:
    """`requested` is the number of the signal that came while the context was open, or None.

    Outside the main thread, where Python takes no handlers, signals keep what they do.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            raise KeyboardInterrupt
        self.requested = number

    def check(self) -> None:
        """Raise StopRequested once a signal has come."""
        if self.requested is not None:
            raise StopRequested
