"""A bounded wait around each request to a storage, and threads that read without holding up the end of a command.

Clients retry by themselves, some of them for minutes, and s3fs waits forever where a server stops reading, whatever its
timeouts say. So each request moves a bounded number of bytes, runs in a thread of its own, and is waited for a limited time.
An abandoned request is not cancelled: its thread stays until the client returns, and never keeps the process alive.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, TypeVar

__all__ = ["REQUEST_BYTES", "SECONDS", "NoAnswer", "ReadingPool", "wait_for"]

SECONDS: Final = 60.0  # that a request may take by default; clients recover from a short outage in up to 20
REQUEST_BYTES: Final = 16 << 20  # that a request moves at most: 280 kB/s are enough
REPORTED: Final = 5.0  # seconds after which a wait is noted
NOTICED: Final = 0.1  # seconds within which a wait ends that is stopped

T = TypeVar("T")

_log = logging.getLogger(__name__)
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
    began, is_noted = time.monotonic(), False
    while True:
        waited = time.monotonic() - began
        if stop is not None and stop.is_set():
            raise Stopped
        if waited >= REPORTED and not is_noted:
            is_noted = True
            _log.warning("note: %s: no answer for %.0f s; the client tries again, for %.0f s in all", url, waited, seconds)
        try:
            return answer.get(timeout=max(0.0, min(NOTICED, seconds - waited))).result()
        except queue.Empty:
            if waited >= seconds:
                raise NoAnswer(seconds) from None


def _outcome(request: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    try:
        future.set_result(request())
    except BaseException as error:  # noqa: BLE001  raised again by whoever waits
        future.set_exception(error)
    return future


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
