"""A bounded wait around each request to a storage, and threads that read without holding up the end of a command.

Clients retry by themselves, some of them for minutes, and s3fs waits forever where a server stops reading, whatever its
timeouts say. So each request moves a bounded number of bytes, runs in a thread of its own, and is waited for a limited time.
An abandoned request is not cancelled: its thread stays until the client returns, and never keeps the process alive.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Final, TypeAlias, TypeVar

__all__ = ["REQUEST_BYTES", "SECONDS", "NoAnswer", "ReadingPool", "wait_for", "waits_told_to"]

SECONDS: Final = 60.0  # that a request may take by default; clients recover from a short outage in up to 20
REQUEST_BYTES: Final = 16 << 20  # that a request moves at most: 280 kB/s are enough
REPORTED: Final = 5.0  # seconds before a wait is reported, and between two reports
NOTICED: Final = 0.1  # seconds within which a wait ends that is stopped

T = TypeVar("T")
OnWait: TypeAlias = Callable[[str, float, float], None]
"""Called about a wait: for which URL, seconds so far, seconds at most."""

_listeners: list[OnWait] = []
_stops = threading.local()


class NoAnswer(TimeoutError):
    """A request that took longer than it may; `seconds` is how long that was."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} s")
        self.seconds = seconds


class Stopped(Exception):
    """The wait was cancelled."""


def wait_for(request: Callable[[], T], url: str, seconds: float) -> T:
    """What `request()` returns, or raises. Raises NoAnswer where that takes longer than `seconds`; Stopped."""
    stop: threading.Event | None = getattr(_stops, "event", None)
    answer: queue.SimpleQueue[Future[T]] = queue.SimpleQueue()
    threading.Thread(target=lambda: answer.put(_outcome(request)), name="offline-cli-storage", daemon=True).start()
    began = told = time.monotonic()
    while True:
        now = time.monotonic()
        left = began + seconds - now
        if stop is not None and stop.is_set():
            raise Stopped
        if now - told >= REPORTED:
            told = now
            for listener in tuple(_listeners):
                listener(url, now - began, seconds)
        try:
            return answer.get(timeout=max(0.0, min(REPORTED if stop is None else NOTICED, left))).result()
        except queue.Empty:
            if left <= 0.0:
                raise NoAnswer(seconds) from None


def _outcome(request: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    try:
        future.set_result(request())
    except BaseException as error:  # noqa: BLE001  raised again by whoever waits
        future.set_exception(error)
    return future


@contextmanager
def waits_told_to(listener: OnWait) -> Iterator[None]:
    """Within it, `listener` is called every few seconds about a request that is not answered, from whatever thread waits."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class ReadingPool(ThreadPoolExecutor):
    """Threads whose waits for a storage end when the pool is left: by Ctrl-C, an error, or a caller that has seen enough."""

    def __init__(self, threads: int) -> None:
        self._stop = threading.Event()
        super().__init__(threads, "offline-cli", lambda: setattr(_stops, "event", self._stop))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.give_up()

    def give_up(self) -> None:
        """Wait until no call is running; those that have not begun are cancelled."""
        self._stop.set()
        self.shutdown(wait=True, cancel_futures=True)
