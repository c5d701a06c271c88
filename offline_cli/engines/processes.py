"""The engine `processes`: fresh interpreters of this machine, by `concurrent.futures`.

A worker that dies ends the command, and what was complete is kept. Ctrl-C reaches the command alone, which ends its workers;
they end with a command that is killed, too.
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
from multiprocessing.context import SpawnContext, SpawnProcess
from types import TracebackType
from typing import Any, Final, TypeVar

from offline_cli.engines.window import Engine, called, packed
from offline_cli.errors import BadData
from offline_cli.stop_signals import StopRequested, check, signals_noted

__all__ = ["ProcessEngine", "WorkerContext", "safely_started"]

LOOK: Final = 0.5  # seconds between two looks at whether to stop
GRACE: Final = 5.0  # seconds for workers to end by themselves
SAFE: Final = "PYTHONSAFEPATH"
T = TypeVar("T")


class ProcessEngine(Engine):
    """See `Engine`."""

    is_local = False

    def __init__(self, workers: int) -> None:
        self.workers, self._context = workers, WorkerContext()
        self._pool: ProcessPoolExecutor | None = None

    def _begin(self, function: Callable[[T], Iterable[Any]], item: T) -> Future[bytes]:
        with safely_started():
            self._pool = self._pool or ProcessPoolExecutor(self.workers, self._context)
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
        pool, self._pool = self._pool, None
        if pool is not None:
            self._end_all(SpawnProcess.terminate)  # one that plays ends its step, and closes its environment
            late = threading.Timer(GRACE, self._end_all, [SpawnProcess.kill])
            late.start()
            pool.shutdown(cancel_futures=True)
            late.cancel()

    def _end_all(self, how: Callable[[SpawnProcess], None]) -> None:
        for worker in self._context.workers:
            if worker.pid is not None:  # it was started
                how(worker)


def _died() -> BadData:
    fix = "check its memory, or take fewer workers; a command that writes continues from its complete shards with --resume; "
    fix += 'a script starts workers from below `if __name__ == "__main__":`, because they import it'
    return BadData("a worker process has died, killed for memory maybe", where="a worker", fix=fix)


@contextmanager
def safely_started() -> Iterator[None]:
    """Interpreters that start within do not take files of the current folder for modules, and are spared Ctrl-C."""
    before = os.environ.get(SAFE)
    os.environ[SAFE] = "1"
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.environ.pop(SAFE) if before is None else os.environ.update({SAFE: before})


class _Worker(SpawnProcess):
    def run(self) -> None:
        """In the worker: SIGTERM asks it to stop, and it ends with its parent."""
        os.environ.pop(SAFE, None)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        with signals_noted(for_good=True, told=b""):
            super().run()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class WorkerContext(SpawnContext):
    """multiprocessing's context for such processes, which keeps them."""

    def __init__(self) -> None:
        self.workers: list[SpawnProcess] = []

    def Process(self, *args: Any, **options: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802  its name there
        """A worker, to be started within `safely_started`."""
        self.workers.append(_Worker(*args, **options))
        return self.workers[-1]
