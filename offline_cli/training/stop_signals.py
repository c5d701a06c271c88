"""When a training loop pauses its work: for slow tasks that are due again (`Pace`), and for signals (`StopSignals`).

`Pace` never lets a slow task take more than a share of the time.

`StopSignals` turns Ctrl-C, SIGTERM and SIGHUP into a request that a loop reads between two updates; the middle of an update is
never interrupted. Later signals are for those who cannot wait. The second one ends code of the user's that is waited for, such
as an environment's. Where there is none it interrupts at once, except for a `patient` loop, whose work is short and would be
lost: that takes a third. Of processes that train together one may stop because another was told to, before the same signal
reaches it, and who started them tells the rest to end once one has: neither is a second signal.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType, TracebackType
from typing import Any, Final, Self

from offline_cli.engines.overseer import Overseer
from offline_cli.engines.watchdog import ENDING, ignored_at_start
from offline_cli.waiting import Overdue

__all__ = ["SHARE", "Pace", "StopRequested", "StopSignals"]

SHARE: Final = 0.05  # of the time, at most
LATE: Final = 10.0  # seconds in which a signal still reaches all processes that train together


class Pace:
    """Of one thing that is done again and again: due at first, and then after a pause that grows with how long it took."""

    def __init__(self, at_least: float) -> None:
        """`at_least`: seconds from the end of one to the next."""
        self._at_least = at_least
        self._next = -math.inf

    @property
    def is_due(self) -> bool:
        """Whether the pause is over."""
        return time.monotonic() >= self._next

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Use it around the task, whether it was due or not."""
        began = time.monotonic()
        try:
            yield
        finally:
            ended = time.monotonic()
            self._next = ended + max(self._at_least, (ended - began) / SHARE)


class StopRequested(Exception):  # not an error: it ends a check early and never leaves training
    """Raised inside a check that a signal has cut short."""


class StopSignals:
    """`requested` is the number of the signal that came while the context was open, or None.

    SIGHUP is left to be ignored where it is (`nohup`). Outside the main thread, where Python takes no handlers, signals keep
    what they do.
    """

    def __init__(self, overseer: Overseer | None = None, *, patient: bool = False) -> None:
        """`overseer`: ends what is waited for too long after a signal."""
        self.requested: int | None = None
        self.at: float | None = None  # when the first one came
        self._overseer, self._breaks_in = overseer, 3 if patient else 2
        self._count = 0
        self._owner = os.getpid()
        self._previous: dict[int, Any] = {}
        self._together: float | None = None  # when several processes were known to stop
        self._came = set[int]()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                if number == signal.SIGINT or not ignored_at_start(number):
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler if self._together is None or number in self._came else self._late)
        self._overseer = None  # a handler may stay

    def stops_together(self) -> None:
        """This process stops with others: signals that it has not had may still be on their way here."""
        self._together = time.monotonic()

    def _late(self, number: int, frame: FrameType | None) -> None:
        """The first one of this number after the context."""
        signal.signal(number, self._previous[number])
        if self._together is None or time.monotonic() - self._together > LATE or os.getpid() != self._owner:
            os.kill(os.getpid(), number)

    _late.ends_the_command = True  # type: ignore[attr-defined]  # what engines/watchdog.py asks of handlers

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:  # a process that an environment has forked, and tells to stop
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        is_late = self._together is not None and number not in self._came
        self._came.add(number)
        if self.requested is None:
            self.requested, self.at = number, time.monotonic()
        if is_late:
            return
        self._count += 1
        if self._overseer is not None:
            self._overseer.stop(number, at_once=self._count > 1)
            if self._overseer.waiting.doing:
                return
        if self._count >= self._breaks_in:
            raise KeyboardInterrupt

    _note.ends_the_command = True  # type: ignore[attr-defined]

    def check(self) -> None:
        """Raise StopRequested once a signal has come."""
        if self.requested is not None:
            raise StopRequested

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Within it an environment plays. Raises StopRequested where it is waited for no longer after a signal."""
        with nullcontext() if self._overseer is None else self._overseer.guarding():
            try:
                yield
            except Overdue as err:
                raise StopRequested from err
