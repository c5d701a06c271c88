"""The engine `processes`: spawned local interpreters in a `concurrent.futures` pool.

If a worker dies, the command fails; complete shards are kept. Workers end with the command even if it is killed: each reads
from a pipe whose other end only the command holds, and exits when that is closed.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, TypeVar

from offline_cli.engines.engine import Engine, called, packed
from offline_cli.errors import WorkerDied
from offline_cli.stop_signals import check, requested, signals_noted

LOOK: Final = 0.5  # seconds between two checks for a stop signal
GRACE: Final = 5.0  # seconds for a worker to finish its step
SAFE: Final = "PYTHONSAFEPATH"
T = TypeVar("T")


class ProcessEngine(Engine):
    """Runs calls in local worker processes."""

    is_local = False

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._ends: tuple[Connection, ...] = ()  # of the pipe: the workers' end and ours

    def _begin(self, function: Callable[[T], Iterable[Any]], item: T) -> Future[bytes]:
        with _safely_started():
            if self._pool is None:
                self._ends, spawned = multiprocessing.Pipe(duplex=False), multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self.workers, spawned, _begin_worker, (self._ends[0],))
            try:
                return self._pool.submit(called, packed(function, item))
            except BrokenProcessPool as error:
                check()
                raise _died() from error

    def _ended(self, call: Future[bytes]) -> bytes:
        """Raises WorkerDied if the process has died, StopRequested after a signal that it has not answered within GRACE."""
        until = math.inf
        while True:
            if requested() is not None and until == math.inf:
                self._ends[1].close()  # tells the workers
                until = time.monotonic() + GRACE
            try:
                return call.result(LOOK)
            except TimeoutError:
                if time.monotonic() > until:
                    check()
            except (BrokenProcessPool, CancelledError) as error:
                time.sleep(LOOK / 10)  # this process may get it a moment later
                check()
                raise _died() from error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for end in self._ends:
            end.close()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool, self._ends = None, ()


def _died() -> WorkerDied:
    fix = "check the memory, or use fewer workers; in a script, start workers below "
    fix += '`if __name__ == "__main__":`, because they import the script'
    return WorkerDied("a worker process has died, possibly for lack of memory", where="a worker", fix=fix)


@contextmanager
def _safely_started() -> Iterator[None]:
    """Interpreters started in the block do not import from the current folder first, and ignore Ctrl-C."""
    before = os.environ.get(SAFE)
    os.environ[SAFE] = "1"
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.environ.pop(SAFE) if before is None else os.environ.update({SAFE: before})


def _begin_worker(end: Connection) -> None:
    """In a worker: install the stop-signal flag, and treat the end of the command as a signal."""
    os.environ.pop(SAFE, None)
    signals_noted(for_good=True, told=b"").__enter__()
    threading.Thread(target=_end_with, args=(end,), daemon=True).start()


def _end_with(end: Connection) -> None:
    end.poll(None)
    os.kill(os.getpid(), signal.SIGTERM)  # a rollout finishes its step and closes its environment
    time.sleep(GRACE)
    for child in multiprocessing.active_children():  # copies of --vectorize async: what waits for one of them ends
        child.kill()
    time.sleep(GRACE / 5)
    os._exit(1)
