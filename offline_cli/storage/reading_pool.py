"""Threads that read several files at once; refuses to wait, at the end, for requests that nobody wants answered any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from offline_cli.storage.patience import ended_by

__all__ = ["ReadingPool", "reading_pool"]

T = TypeVar("T")


class ReadingPool:
    """Gives calls to threads; `map` gives their results in order."""

    def __init__(self, pool: ThreadPoolExecutor, stop: threading.Event) -> None:
        self._pool, self._stop = pool, stop

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """`call(*arguments)` by one of the threads, when it is free."""
        return self._pool.submit(self._run, call, *arguments)

    def map(self, call: Callable[..., T], items: Any) -> Iterator[T]:
        """`call(item)` of each, all of them begun now."""
        return iter([future.result() for future in [self.submit(call, item) for item in items]])

    def _run(self, call: Callable[..., T], *arguments: Any) -> T:
        with ended_by(self._stop):
            return call(*arguments)


@contextmanager
def reading_pool(threads: int) -> Iterator[ReadingPool]:
    """Within it, a pool of threads. At its end what has not begun is not begun, and waits for a storage end at once.

    So Ctrl-C, an error, or a caller that has seen enough wait for no server.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(threads) as pool:
        try:
            yield ReadingPool(pool, stop)
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
