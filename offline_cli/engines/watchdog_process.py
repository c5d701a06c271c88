"""The watchdog: a small process beside one that plays, which ends it, or its workers, where they hang; imports nothing of ours.

Run as a file by a bare interpreter, so that it is there within milliseconds:

    python -I -S watchdog_process.py PARENT WAKE NUMBERS LIMIT

It reads commands, a line each, from stdin, and the numbers of signals, a byte each, from descriptor WAKE: Python writes them
from the signal's own handler, even while a C call holds the interpreter. What it reads there goes on to stdout, to the parent's
own thread. It ends with the parent, or on command:

* The parent has gone without a word: workers that still run after GRACE are killed.
* LIMIT seconds after one of the signals NUMBERS, where the parent has it guard, unless the parent reports that it is at work:
  the parent is killed.
* No sign of life for so long that the step that the parent is in has taken too long: the parent is killed.

Its clocks stand still while the parent is stopped (SIGSTOP, Ctrl-Z), and while it was stopped itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

GRACE = 3.0  # seconds for workers to end by themselves
HELD = 1.0  # seconds after a signal within which the interpreter should have responded
WORK = 8.0  # seconds that one report of work under way is valid
PAUSE = 1.0  # seconds between two checks whether the parent exists
SOON = 0.1  # where a clock runs
GAP = 1.0  # seconds beyond such a pause, after which this process has been stopped itself, or the machine


class Watchdog:
    """The state of the parent."""

    def __init__(self, parent: int, wake: int, numbers: frozenset[int], limit: float) -> None:
        self.parent, self.wake, self.numbers, self.limit = parent, wake, numbers, limit
        self.workers: dict[int, str] = {}  # when each began
        self.name = "the environment"
        self.signal = 0
        self.signalled = self.deadline = 0.0
        self.is_warned = False
        self.heard = time.monotonic()
        self.patience = 0.0  # seconds without a sign of life, within a step; 0: any
        self.place = ""  # what the parent was doing by its last report
        self.is_guarding = False  # whether the parent may be ended
        self.rest = b""

    def run(self) -> None:
        """Run until the parent ends, or reports that all is well."""
        sources = select.poll()  # select takes no descriptor from 1,024 on
        sources.register(0, select.POLLIN)
        sources.register(self.wake, select.POLLIN)
        looked = time.monotonic()
        while True:
            pause = SOON if self.signal or self.patience else PAUSE
            ready = [source for source, _ in sources.poll(int(pause * 1000))]
            now = time.monotonic()
            if now > looked + pause + GAP or _is_stopped(self.parent):
                self._stand_still(now - looked)
            looked = now
            if self.wake in ready and not self._signals(os.read(self.wake, 512)):
                sources.unregister(self.wake)
            if 0 in ready:
                data = os.read(0, 1 << 16)
                if not data:
                    return self._orphaned()
                if self._commands(data):
                    return None
            if os.getppid() != self.parent:  # a child that it forked may hold its pipes open
                return self._orphaned()
            self._look(time.monotonic())

    def _stand_still(self, seconds: float) -> None:
        """Leave out so much of the time that has passed."""
        self.heard += seconds
        self.signalled += seconds
        self.deadline += seconds

    def _signals(self, numbers: bytes) -> bool:
        for number in numbers:
            if number in self.numbers:
                _write(1, bytes([number]))
                if not self.signal:
                    self.signal, self.signalled = number, time.monotonic()
                    self.deadline = self.signalled + self.limit
        return bool(numbers)

    def _commands(self, data: bytes) -> bool:
        """Whether the parent no longer needs the watchdog."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            word, _, text = line.decode("utf-8", "replace").partition(" ")
            if word == "end":
                return True
            if word == "worker":
                self.workers[int(text)] = began(int(text))
            elif word == "gone":
                self.workers.pop(int(text), None)
            elif word == "name":
                self.name, self.signal = text, 0
            elif word == "guard":
                self.is_guarding = text == "1"
                self.deadline = max(self.deadline, time.monotonic() + GRACE) if self.signal else 0.0
            elif word == "patience":
                self.patience = float(text)
            elif word in ("alive", "working"):
                self.heard, self.place = time.monotonic(), text
                if word == "working":
                    self.deadline = max(self.deadline, self.heard + WORK)
        return False

    def _look(self, now: float) -> None:
        if self.signal and self.is_guarding:
            name = signal.Signals(self.signal).name
            if not self.is_warned and now > self.signalled + HELD and self.heard < self.signalled:
                self.is_warned = True
                rest = self.deadline - now
                _say(f"note: {name}: waiting for {self.place or self.name}, which holds the interpreter; ended in {rest:.0f} s")
            if now > self.deadline:
                self._end(f"stopped by {name}, and {self.place or self.name} did not return within {self.limit:.0f} s")
        if self.is_guarding and self.patience and now > self.heard + self.patience:
            self._end(f"{self.place or self.name} takes longer than --step-timeout and holds the interpreter")

    def _end(self, why: str) -> None:
        _say(f"error: {why}; this process is killed, what was complete on disk is kept")
        for pid in [*self._alive(), self.parent]:
            _kill(pid)
        os._exit(0)

    def _orphaned(self) -> None:
        until = time.monotonic() + GRACE
        while self._alive() and time.monotonic() < until:
            time.sleep(0.05)
        for pid in self._alive():
            _kill(pid)

    def _alive(self) -> list[int]:
        return [pid for pid, since in self.workers.items() if runs(pid, since)]


def _stat(pid: int) -> list[str]:
    """Linux's status of a process, from its state on; empty elsewhere."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def began(pid: int) -> str:
    """When a process began, as Linux counts it: ids are used again; "" elsewhere."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def runs(pid: int, since: str) -> bool:
    """Whether the process that began then has not ended; a zombie has."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass  # somebody else's, so there is one
    except (OSError, OverflowError):
        return False
    fields = _stat(pid)
    return pid > 0 and (not fields or (fields[0] not in ("Z", "X") and fields[19] == since))


def _is_stopped(pid: int) -> bool:
    return _stat(pid)[:1] in (["T"], ["t"])


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _say(text: str) -> None:
    _write(2, ("".join(sign if sign.isprintable() else "?" for sign in text) + "\n").encode("utf-8", "replace"))


def _write(to: int, data: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(to, data)


if __name__ == "__main__":
    for ignored in ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE"):
        signal.signal(getattr(signal, ignored), signal.SIG_IGN)
    Watchdog(int(sys.argv[1]), int(sys.argv[2]), frozenset(map(int, sys.argv[3].split(","))), float(sys.argv[4])).run()
    os._exit(0)
