"""Supervises, from another thread, a thread that plays, so that user code that hangs does not keep a command from ending.

Seconds after a stop, or in a step that exceeds its time limit, `Overdue` is raised in the thread that plays, out of that code,
which ends sleeps, waits and Python loops. A C call that does not return, but lets Python run, is abandoned: `on_stuck` saves
from here what there is, and the process ends. If it holds the interpreter, the watchdog process ends it. A program that calls
us is never ended: there we wait until the call returns.

    a stop   +0.5 s says what is waited for   +4 s Overdue   +5.5 s on_stuck   +9.3 s the watchdog
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, Self, cast

from offline_cli.engines.watchdog import ENDING, Watchdog, watched
from offline_cli.errors import BadData, Interrupted, OfflineCliError
from offline_cli.waiting import CLOSING, Ending, Overdue, Waiting, current

__all__ = ["Limits", "Overseer", "exit_code_of"]

POKE: Final = getattr(signal, "SIGURG", None)  # ignored unless there is a handler, and rarely used
HELD: Final = 10.0  # seconds beyond --step-timeout until a step counts as one that holds the interpreter
GAP: Final = 1.0  # seconds between two checks, after which the process may have been stopped
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """In seconds."""

    word: float = 0.5  # from a stop until the wait is reported
    stop: float = 4.0  # from a stop until the wait for user code ends
    close: float = 1.5  # for an environment to close, after a stop
    stuck: float = 1.5  # from the first Overdue until the thread counts as stuck
    again: float = 0.3  # between two of them
    tick: float = 0.1  # between two checks


def exit_code_of(number: int) -> int:
    """130 for SIGINT; 143 for SIGTERM, as which SIGHUP counts."""
    return 130 if number == signal.SIGINT else 143


class Overseer:
    """Supervises the thread that enters it, until it leaves; within the block of another overseer it does nothing."""

    def __init__(
        self,
        name: str,
        *,
        saving: str = "",
        step_timeout: float | None = None,
        asked: Callable[[], int] | None = None,
        on_look: Callable[[], None] | None = None,
        is_watched: bool = True,
        limits: Limits | None = None,
    ) -> None:
        """`name`: of what plays. `saving`: what is saved after a stop, as text. `step_timeout`: seconds that a step or
        reset may take. `asked`: whether to stop, where there is no signal; 2: at once. `on_look`: called at every check.
        """
        self._name, self._saving, self._step_timeout = name, saving, step_timeout
        self._asked, self._on_look, self._is_watched = asked, on_look, is_watched
        self._limits = limits or Limits()
        self.on_stuck: Callable[[OfflineCliError], OfflineCliError] = lambda error: error
        self.number: int | None = None  # of the signal
        self._since: float | None = None  # when a stop was asked for
        self._due: tuple[int | None, int] | None = None  # exit code of the signal, or None; the call that is overdue
        self._is_taken = False
        self._told = False
        self._watchdog: Watchdog | None = None

    # ---- in the thread that plays ----

    def __enter__(self) -> Self:
        self.waiting: Waiting = current()
        self._is_within, self.waiting.overseen = self.waiting.overseen, True
        if self._is_within:
            return self
        self.waiting.hurried = self.waiting.at_once = False
        self._thread = threading.get_ident()
        self._is_main = threading.current_thread() is threading.main_thread()
        self._held = ExitStack()
        self._may_end = Ending.is_ours and self._is_main  # the process
        self._watchdog = self._held.enter_context(watched()) if self._is_watched and self._may_end else None
        self._nudged, self._nudge = os.pipe()
        self._pid = os.getpid()
        self._before = signal.signal(POKE, self._poked) if self._is_main and POKE is not None else None
        self._say("name", self._name)
        if self._step_timeout is not None:
            self._say("patience", self._step_timeout + HELD)
        self._ending = False
        self._looker = threading.Thread(target=self._look, name="offline-cli-overseer", daemon=True)
        self._looker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_within:
            return
        self.waiting.overseen = False
        self._ending = True
        os.write(self._nudge, b"e")
        self._looker.join()
        for descriptor in (self._nudged, self._nudge):
            os.close(descriptor)
        if self._is_main and POKE is not None:
            signal.signal(POKE, self._before)
        self._held.close()

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Within it the watchdog may end the process after a signal; elsewhere it never does."""
        self._say("guard", 1)
        try:
            yield
        finally:
            self._say("guard", 0)

    def stop(self, number: int, *, at_once: bool = False) -> None:
        """A signal asks to stop; `at_once`: to stop waiting for user code. For signal handlers: takes no lock."""
        self.waiting.hurried = True
        if self._since is None:
            self.number, self._since = number, time.monotonic()
        self.waiting.at_once |= at_once
        if self._is_within:
            return
        if at_once and self.waiting.is_elsewhere and self._is_main:
            Ending.has_left = True
            raise Overdue(exit_code_of(self.number or number))
        with suppress(OSError):
            os.write(self._nudge, b"s")

    def _poked(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return
        if self._is_taken:
            threading.Event().wait()  # the other thread saves what there is and ends the process
        due, self._due = self._due, None
        if due is not None and self.waiting.is_elsewhere and (due[0] is not None or due[1] == self.waiting.calls):
            Ending.has_left = True
            raise Overdue(due[0])

    # ---- in the other ----

    def _look(self) -> None:
        try:
            self._look_until_the_end()
        except BaseException as err:  # noqa: BLE001  whatever it is: nothing may be killed because nobody looks
            self._say("guard", 0)
            self._say("patience", 0)
            self._watchdog = None
            _log.warning("note: %s is no longer watched for hanging: %r", self._name, err)

    def _look_until_the_end(self) -> None:
        seen: tuple[Any, ...] = ()
        since = poked = first_poke = 0.0
        looked, worked = time.monotonic(), time.process_time()
        while self._listen():
            now, waiting = time.monotonic(), self.waiting
            gap, work = now - looked, time.process_time() - worked
            looked, worked = now, worked + work
            if gap > GAP and work < gap / 2 and since:  # the interpreter was not held: the process was stopped
                since += gap
            asked = self._asked() if self._asked is not None else 0
            if asked:
                self._since, waiting.hurried, waiting.at_once = self._since or now, True, asked > 1
            if self._on_look is not None:
                self._on_look()
            self._report(now)
            at = (waiting.doing, waiting.entered, waiting.calls if self._since is None else 0)
            if at != seen:
                seen, since, poked, first_poke = at, now, 0.0, 0.0
            due = self._is_due(now, since)
            if due is None or now < poked + self._limits.again:
                continue
            poked, first_poke = now, first_poke or now
            if self._may_end and now > first_poke + self._limits.stuck:
                self._take_over()
            self._poke()

    def _listen(self) -> bool:
        """Wait for a signal, the end, or the time of the next check; False: this is the end."""
        busy = self._since is not None or self._asked is not None or self._step_timeout is not None or self._on_look is not None
        tick = min(self._limits.tick, (self._step_timeout or 1.0) / 4)
        sources = [self._nudged] if self._watchdog is None else [self._nudged, self._watchdog.relayed]
        for source in _readable(sources, tick if busy else None):
            data = os.read(source, 64)
            if source != self._nudged:
                if not data:
                    self._watchdog = None  # it has been killed
                for number in data:
                    if self._since is None and number in ENDING:
                        self.number, self._since = number, time.monotonic()
                        self.waiting.hurried = True
        return not self._ending

    def _report(self, now: float) -> None:
        """Give the watchdog a sign of life, and report what is waited for."""
        place = self.waiting.told() if self.waiting.doing else ""
        if self._since is None:
            if self._step_timeout is not None:
                self._say("alive", place)
            return
        self._say("alive" if self.waiting.is_elsewhere else "working", place)
        if not self._told and now > self._since + self._limits.word:
            self._told = True
            if self.number is not None:
                name = signal.Signals(self.number).name
                waits = f"waiting for {place}; " if place else ""
                _log.warning("note: %s: %s%s", name, waits, self._saving or "ending within 10 s")

    def _is_due(self, now: float, since: float) -> bool | None:
        """Whether the thread's current call has used up its time; None: it has some left."""
        doing = self.waiting.doing
        if not self.waiting.is_elsewhere:
            return None
        if self.waiting.at_once:
            return True
        if doing == CLOSING:
            return True if self.waiting.hurried and now > max(since, self._since or 0.0) + self._limits.close else None
        if self._since is not None:
            return True if now > self._since + self._limits.stop else None
        if self._step_timeout is not None and doing in ("step", "reset") and now > since + self._step_timeout:
            self.waiting.hurried = True
            return True
        return None

    def _poke(self) -> None:
        self._due = (None if self._since is None else exit_code_of(self.number or signal.SIGTERM), self.waiting.calls)
        if self._is_main and POKE is not None:
            signal.pthread_kill(self._thread, POKE)
        else:  # it is noticed when a call returns
            Ending.has_left = True
            raised = ctypes.py_object(Overdue)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), raised)

    def _take_over(self) -> NoReturn:
        """The thread does not return: end the process without it."""
        self._is_taken = True
        self._poke()  # should it return after all, it waits
        place = self.waiting.told()
        self._say("working", "")
        code = 1
        try:
            error = self.on_stuck(self._failure(place))
            code = (Ending.tell or _told)(error)
        finally:
            os._exit(code)

    def _failure(self, place: str) -> OfflineCliError:
        if self._since is None:
            fix = "check the environment with this policy, or a longer --step-timeout"
            return BadData(f"it takes longer than --step-timeout {self._step_timeout:g} s", where=place, fix=fix)
        number = self.number or signal.SIGTERM
        what = f"stopped by {signal.Signals(number).name}; {place} did not return and was abandoned"
        details = {"exit_code": exit_code_of(number), "signal": int(number)}
        return Interrupted(what, where=self._name, fix="the same command again", details=details)

    def _say(self, word: str, text: object = "") -> None:
        if self._watchdog is not None:
            self._watchdog.say(word, text)


def _readable(sources: list[int], seconds: float | None) -> list[int]:
    """The pipes with something to read, within so many seconds; None: however long it takes."""
    if sys.platform == "win32":  # where pipes cannot be waited for
        time.sleep(Limits.tick if seconds is None else seconds)
        return []
    return cast(list[int], wait(sources, seconds))  # select would take no descriptor from 1,024 on


def _told(error: Exception) -> int:
    assert isinstance(error, OfflineCliError)
    with suppress(OSError):
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
    return int(error.details.get("exit_code", error.exit_code))
