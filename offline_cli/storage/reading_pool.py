"""Threads that read several files at once; they do not wait, at the end, for requests that nobody wants answered any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from offline_cli.storage.patience import ended_by

__all__ = ["ReadingPool", "reading_pool"]

T = TypeVar("T")


class ReadingPool:
    """Gives calls to threads; a context manager, at whose end what has not begun is not, and waits for a storage end at once.

    So Ctrl-C, an error, or a caller that has seen enough wait for no server. One that is dropped without that does what it has
    been given, and ends.
    """

    def __init__(self, threads: int) -> None:
        self._pool, self._stop = ThreadPoolExecutor(threads), threading.Event()

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """`call(*arguments)` by one of the threads, when it is free."""
        return self._pool.submit(_run, self._stop, call, *arguments)

    def map(self, call: Callable[..., T], items: Any) -> Iterator[T]:
        """`call(item)` of each, all of them begun now."""
        return iter([future.result() for future in [self.submit(call, item) for item in items]])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _run(stop: threading.Event, call: Callable[..., T], *arguments: Any) -> T:
    with ended_by(stop):
        return call(*arguments)


def reading_pool(threads: int) -> ReadingPool:
    """A pool of so many threads."""
    return ReadingPool(threads)
