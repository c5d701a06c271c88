"""The engine `processes`: fresh interpreters of this machine, by `concurrent.futures`.

A worker that dies ends the command, and what was complete is kept. Workers end with the command, also where it is killed: each
reads from a pipe whose other end the command alone holds, and stops when that is closed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, TypeVar

from offline_cli.engines.engine import Engine, called, packed
from offline_cli.errors import BadData
from offline_cli.stop_signals import StopRequested, check, signals_noted

LOOK: Final = 0.5  # seconds between two looks at whether to stop
GRACE: Final = 5.0  # seconds for a worker to end its step
SAFE: Final = "PYTHONSAFEPATH"
T = TypeVar("T")


class ProcessEngine(Engine):
    """See `Engine`."""

    is_local = False

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._ends: tuple[Connection, ...] = ()  # of the pipe: the workers' and ours

    def _begin(self, function: Callable[[T], Iterable[Any]], item: T) -> Future[bytes]:
        with _safely_started():
            if self._pool is None:
                self._ends, spawned = multiprocessing.Pipe(duplex=False), multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self.workers, spawned, _begin_worker, (self._ends[0],))
            try:
                return self._pool.submit(called, packed(function, item))
            except BrokenProcessPool as error:
                raise _died() from error

    def _ended(self, call: Future[bytes]) -> bytes:
        """Raises BadData where the process has died, and StopRequested once a signal has come."""
        while True:
            check()
            try:
                return call.result(LOOK)
            except TimeoutError:
                continue
            except (BrokenProcessPool, StopRequested) as error:  # StopRequested: a signal that a worker got
                time.sleep(LOOK / 10)  # it may still be on its way here
                check()
                raise _died() from error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for end in self._ends:
            end.close()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool, self._ends = None, ()


def _died() -> BadData:
    fix = "check its memory, or take fewer workers; a command that writes continues from its complete shards with --resume; "
    fix += 'a script starts workers from below `if __name__ == "__main__":`, because they import it'
    return BadData("a worker process has died, killed for memory maybe", where="a worker", fix=fix)


@contextmanager
def _safely_started() -> Iterator[None]:
    """Interpreters that start within do not take files of the current folder for modules, and are spared Ctrl-C."""
    before = os.environ.get(SAFE)
    os.environ[SAFE] = "1"
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.environ.pop(SAFE) if before is None else os.environ.update({SAFE: before})


def _begin_worker(end: Connection) -> None:
    """In a worker: signals set the flag that long loops look at, and the end of the command is a signal."""
    os.environ.pop(SAFE, None)
    signals_noted(for_good=True, told=b"").__enter__()
    threading.Thread(target=_end_with, args=(end,), daemon=True).start()


def _end_with(end: Connection) -> None:
    end.poll(None)
    os.kill(os.getpid(), signal.SIGTERM)  # what plays ends its step, and closes its environment
    time.sleep(GRACE)
    os._exit(1)
