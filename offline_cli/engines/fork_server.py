"""Worker processes: started so that files of the current folder are not imported as modules, and ended within a time limit.

* `ends_with_parent`: a worker that plays an environment may never look at its pipe again. A thread of it notices the parent's
  end; where the environment holds the interpreter too, the parent's watchdog does (`engines/watchdog.py`).
* `ended`: waits a limited time for a worker that hangs, then kills it.
* `process_context`: multiprocessing's fork server, resource tracker and spawned interpreters begin with `python -c`, which
  looks for `multiprocessing` itself in the current folder first. They have no flags of their own; the variable PYTHONSAFEPATH,
  which means the flag `-P`, is set while they start, and removed before a worker runs anything of a user's.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import multiprocessing.util
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from types import FrameType
from typing import Any, Final

from offline_cli.engines.watchdog import ENDING, guards, ignored_at_start
from offline_cli.engines.watchdog_process import began, runs
from offline_cli.import_path import path_for_workers

__all__ = ["ended", "ends_with_parent", "process_context", "signals_are_its_parents"]

ALONE: Final = 2.0  # seconds for a worker to end by itself when its parent has gone
LOST: Final = 255  # exit code that multiprocessing gives a process whose fork server has died: the real one is unknown
KILLED: Final = 1.0  # seconds for the system to remove such a process

VARIABLE: Final = "PYTHONSAFEPATH"
_LOCK: Final = threading.RLock()


def ends_with_parent() -> None:
    """In a worker: it ends soon after its parent, whatever its main thread is doing."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        time.sleep(ALONE)
        os._exit(1)

    threading.Thread(target=watch, name="offline-cli-parent", daemon=True).start()


def signals_are_its_parents() -> None:
    """In a worker: signals that reach the whole group do nothing; the parent decides when it ends.

    SIGTERM and SIGHUP get a handler that does nothing: being ignored is inherited by what the environment starts.
    """
    owner = os.getpid()

    def nothing(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a process that the environment has forked, and stops
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in ENDING:
        if number != signal.SIGINT and not ignored_at_start(number):
            signal.signal(number, nothing)


def ended(processes: Sequence[Any], seconds: float) -> None:
    """Wait until all of these processes have ended: by themselves within so many seconds, or killed."""
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


def process_context(preload: str) -> Any:
    """multiprocessing's context for workers that import the module `preload`.

    Processes come from a fork server, and from a fresh interpreter each where the system has none.
    """
    if sys.platform == "win32":
        return _Spawn()
    context = _ForkServer()
    context.set_forkserver_preload([__name__, preload])  # read by the process that starts the server
    with _safely_started():
        with _signals_held():
            resource_tracker.ensure_running()  # the first lock would start it; it leaves SIGINT and SIGTERM unblocked
        with _signals_held():
            forkserver.ensure_running()
    return context


@contextmanager
def _safely_started() -> Iterator[str | None]:
    """Interpreters that start within begin as with `-P`; gives what the variable was before."""
    with _LOCK:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = "1"
        try:
            yield before
        finally:
            _set_back(before)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Block the signals that reach the whole group, for processes started within too, which end with their last process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _set_back(before: str | None) -> None:
    if before is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = before


class _Safe:
    """A process whose path is its parent's, the current folder last."""

    _given: tuple[str | None, list[str]]
    began = ""  # when, as `watchdog_process.began` says

    def start(self) -> None:
        """See Process. Raises OSError where the system allows no more processes."""
        with _safely_started() as before:
            self._given = before, path_for_workers()
            super().start()  # type: ignore[misc]  # of the class beside this one
        self.began = began(self.pid)  # type: ignore[attr-defined]

    def run(self) -> None:
        """See Process."""
        before, sys.path[:] = self._given
        _set_back(before)
        _unhold()
        super().run()  # type: ignore[misc]


def _unhold() -> None:
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def _unhold_others(_: object) -> None:
    """A process of a user's that comes from the same server has inherited the blocked signals, and must receive them."""
    parent, process = multiprocessing.parent_process(), multiprocessing.current_process()
    if parent is not None and parent.pid != os.getppid() and not isinstance(process, _Safe):
        _unhold()


multiprocessing.util.register_after_fork(_Safe, _unhold_others)  # the server imports this module


class _SpawnProcess(_Safe, multiprocessing.context.SpawnProcess):
    pass


class _Spawn(multiprocessing.context.SpawnContext):
    Process = _SpawnProcess


if sys.platform != "win32":

    class _ForkServerProcess(_Safe, multiprocessing.context.ForkServerProcess):
        pass

    class _ForkServer(multiprocessing.context.ForkServerContext):
        Process = _ForkServerProcess
