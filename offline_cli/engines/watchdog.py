"""The parent's side of the watchdog process; where none can be started, code that hangs is not ended.

There is one for a process, for as long as somebody in it is `watched`. Signals reach it by Python's wakeup descriptor, which is
written to while a C call holds the interpreter, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from offline_cli.waiting import Ending

__all__ = ["ENDING", "LIMIT", "Watchdog", "guards", "ignored_at_start", "watched"]

LIMIT: Final = 9.3  # seconds after a signal in which a process ends that holds its interpreter
ENDED: Final = 2.0  # seconds for the watchdog itself to end
ENDING: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
SCRIPT: Final = Path(__file__).with_name("watchdog_process.py")
_lock = threading.Lock()
_running: list[Watchdog] = []  # one or none


class Watchdog:
    """The process; made by `watched`."""

    def __init__(self, limit: float = LIMIT) -> None:
        """Raises OSError where the system allows no process."""
        self.users = 0
        self._pid = os.getpid()
        wake, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._before: int | None = None
        numbers = ",".join(str(int(number)) for number in ENDING if _ends_us(number)) or "0"
        try:
            words = [sys.executable, "-I", "-S", str(SCRIPT), str(self._pid), str(wake), numbers, str(limit)]
            self._process = subprocess.Popen(  # noqa: S603  this interpreter, and nothing that comes from outside
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[wake], start_new_session=True, bufsize=0
            )
        except BaseException:
            os.close(self._wake)
            raise
        finally:
            os.close(wake)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._commands, self.relayed = self._process.stdin.fileno(), self._process.stdout.fileno()
        if Ending.is_ours and threading.current_thread() is threading.main_thread():
            self._before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
            if self._before != -1:  # somebody else's, who still needs the signals
                signal.set_wakeup_fd(self._before)
                self._before = None

    def say(self, word: str, text: object = "") -> None:
        """Send one command."""
        if os.getpid() == self._pid:
            line = f"{word} {text}".replace("\n", " ")
            with suppress(OSError):  # it has been killed
                os.write(self._commands, line.encode("utf-8", "replace") + b"\n")

    def forget(self) -> None:
        """In a forked child: nothing that arrives here is meant for the parent."""
        if self._before is not None:
            with suppress(ValueError):
                signal.set_wakeup_fd(-1)
        for descriptor in (self._wake, self._commands, self.relayed):
            with suppress(OSError):
                os.close(descriptor)

    def end(self) -> None:
        """It is no longer needed."""
        self.say("end")
        if self._before is None or threading.current_thread() is threading.main_thread():
            if self._before is not None:
                signal.set_wakeup_fd(self._before)
            os.close(self._wake)  # else signals would be written into whatever file gets its number
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDED)


def _ends_us(number: int) -> bool:
    """Whether the signal ends a command of ours: it is not ignored, and has no handler of the program around us."""
    handler: Any = signal.getsignal(number)
    return handler in (signal.SIG_DFL, signal.default_int_handler) or getattr(handler, "ends_the_command", False)


def ignored_at_start(number: int) -> bool:
    """Whether the signal is ignored, as `nohup` has it."""
    return signal.getsignal(number) is signal.SIG_IGN


@contextmanager
def watched() -> Iterator[Watchdog | None]:
    """Within it there is a watchdog, unless the system allows none."""
    with _lock:
        if not _running and os.name == "posix" and sys.executable:
            with suppress(OSError):
                _running.append(Watchdog())
        watchdog = _running[0] if _running else None
        if watchdog is not None:
            watchdog.users += 1
    try:
        yield watchdog
    finally:
        with _lock:
            if watchdog is not None and watchdog in _running:
                watchdog.users -= 1
                if not watchdog.users:
                    _running.remove(watchdog)
                    watchdog.end()


def guards(pid: int, *, is_there: bool = True) -> None:
    """The watchdog, if there is one, ends process `pid` where this one dies; not `is_there`: it has ended."""
    if _running:
        _running[0].say("worker" if is_there else "gone", pid)


def _after_fork() -> None:
    global _lock
    for watchdog in _running:
        watchdog.forget()
    _running.clear()
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
