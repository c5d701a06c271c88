"""Worker processes and their ends: with their parent's, and within a time; refuses to wait for one that hangs.

A worker that plays an environment may never look at its pipe again. A thread of it notices the parent's end; where the
environment holds the interpreter too, the parent's watchdog does (`engines/watchdog.py`).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from types import FrameType
from typing import Any, Final

from offline_cli.engines.watchdog import ENDING, guards, ignored_at_start
from offline_cli.engines.watchdog_process import runs

__all__ = ["ended", "ends_with_parent", "signals_are_its_parents"]

ALONE: Final = 2.0  # seconds for a worker to end by itself when its parent has gone
LOST: Final = 255  # exit code that multiprocessing gives a process whose fork server has died: nobody knows
KILLED: Final = 1.0  # seconds for the system to take such a process away


def ends_with_parent() -> None:
    """In a worker: it ends soon after its parent, whatever its main thread is in."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        time.sleep(ALONE)
        os._exit(1)

    threading.Thread(target=watch, name="offline-cli-parent", daemon=True).start()


def signals_are_its_parents() -> None:
    """In a worker: signals that reach the whole group do nothing; the parent decides what becomes of it.

    SIGTERM and SIGHUP get a handler that does nothing: being ignored is inherited by what the environment starts.
    """
    owner = os.getpid()

    def nothing(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a process that the environment has forked, and tells to stop
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in ENDING:
        if number != signal.SIGINT and not ignored_at_start(number):
            signal.signal(number, nothing)


def ended(processes: Sequence[Any], seconds: float) -> None:
    """All of these processes have ended: by themselves within so many seconds, or killed."""
    until = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()
        if process.exitcode == LOST and not _gone(process, until) and _runs(process):
            with suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
            _gone(process, time.monotonic() + KILLED)
        guards(process.pid, is_there=False)


def _runs(process: Any) -> bool:
    return runs(process.pid, getattr(process, "began", ""))


def _gone(process: Any, until: float) -> bool:
    """Whether a process whose server has died has ended by then; it is no child of ours."""
    while _runs(process):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
