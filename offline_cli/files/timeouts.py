"""The watchdog over requests to a storage: ends the wait for one that is never answered. Clients retry; this module does not.

Clients retry by themselves, some of them for minutes, and one waits forever where a server stops reading. So each of our
requests moves a bounded number of bytes (`REQUEST_BYTES`), runs in a thread of its own, and is waited for a limited time,
whatever the client does meanwhile. An abandoned request is not cancelled: its thread stays until the client returns, and never
keeps the process alive.

Right after a request that failed, the next ones get a tenth of the time until one is answered: cleaning up after a server that
is gone takes several requests, and must not take several times as long.

`ReadingPool`: threads that read several files at once, and do not wait at the end for requests whose answers nobody needs.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

__all__ = [
    "REQUEST_BYTES",
    "SECONDS",
    "NoAnswer",
    "Patience",
    "Pending",
    "ReadingPool",
    "Stopped",
    "ended_by",
    "in_daemon_thread",
    "processors",
    "waits_told_to",
]

SECONDS: Final = 60.0  # that a request may take by default; clients recover from a short outage in up to 20
REQUEST_BYTES: Final = 16 << 20  # that a request moves at most: 280 kB/s are enough
AFTERWARDS: Final = 5.0  # seconds after a failure in which requests are taken for clean-up
FIRST_WORD: Final = 5.0  # seconds before a wait is reported, and between two reports
NOTICED: Final = 0.1  # seconds within which a stoppable wait ends

T = TypeVar("T")
OnWait: TypeAlias = Callable[[str, float, float], None]
"""Called about a wait: for which URL, seconds so far, seconds at most."""

_ANSWERS = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
_listeners: list[OnWait] = []
_stops = threading.local()


class NoAnswer(TimeoutError):
    """A request that took longer than it may; `seconds` is how long that was."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} s")
        self.seconds = seconds


class Stopped(Exception):
    """The wait was cancelled."""


class Patience:
    """How long requests to one storage may take; shared by all places in it that come from one `open_location`."""

    __slots__ = ("_failed", "seconds")

    def __init__(self, seconds: float = SECONDS) -> None:
        """`seconds`: that one request may take, the client's own retries included."""
        self.seconds = seconds
        self._failed = -math.inf  # when a request failed, and none has been answered since

    def wait_for(self, request: Callable[[], T], url: str) -> T:
        """What `request()` returns, or raises. Raises NoAnswer where that takes too long."""
        return self.begin(request, url).outcome()

    def begin(self, request: Callable[[], T], url: str) -> Pending[T]:
        """`request()` under way, to be waited for later: the time it may take runs from now on."""
        cleans_up = time.monotonic() - self._failed < AFTERWARDS
        limit = min(self.seconds, max(1.0, self.seconds / 10)) if cleans_up else self.seconds
        return Pending(request, url, limit, self)

    def told(self, error: BaseException | None) -> None:
        """Record how a request ended: None, or a negative answer, means that the storage works."""
        answered = error is None or isinstance(error, _ANSWERS)
        if answered or isinstance(error, Exception):
            self._failed = -math.inf if answered else time.monotonic()


class Pending(Generic[T]):
    """A request under way, in a thread that does not keep the process alive."""

    __slots__ = ("_began", "_limit", "_outcome", "_patience", "_url")

    def __init__(self, request: Callable[[], T], url: str, limit: float, patience: Patience) -> None:
        self._outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._url, self._limit, self._patience = url, limit, patience
        self._began = time.monotonic()
        threading.Thread(target=self._work, args=(request,), name="offline-cli-storage", daemon=True).start()

    def _work(self, request: Callable[[], T]) -> None:
        try:
            self._outcome.put((request(), None))
        except BaseException as error:  # noqa: BLE001  raised again by whoever waits
            self._outcome.put((None, error))

    @property
    def is_done(self) -> bool:
        """Whether there is an answer; False again once that has been fetched."""
        return not self._outcome.empty()

    def outcome(self) -> T:
        """What the request returned, or raised; to be called once. Raises NoAnswer where that takes too long, Stopped."""
        try:
            value = self._wait()
        except Stopped:
            raise
        except BaseException as error:
            self._patience.told(error)
            raise
        self._patience.told(None)
        return value

    def _wait(self) -> T:
        stop: threading.Event | None = getattr(_stops, "event", None)
        told = time.monotonic()
        while True:
            now = time.monotonic()
            left = self._limit - (now - self._began)
            if stop is not None and stop.is_set():
                raise Stopped
            if now - told >= FIRST_WORD:
                told = now
                for listener in tuple(_listeners):
                    listener(self._url, now - self._began, self._limit)
            try:
                pause = min(FIRST_WORD if stop is None else NOTICED, left)
                value, error = self._outcome.get(timeout=max(0.0, pause))
            except queue.Empty:
                if left <= 0.0:
                    raise NoAnswer(self._limit) from None
                continue
            if error is not None:
                raise error
            return value  # type: ignore[return-value]  # without an error it is what the request returned


@contextmanager
def ended_by(stop: threading.Event) -> Iterator[None]:
    """Within it, waits of this thread raise Stopped soon after `stop` is set."""
    before = getattr(_stops, "event", None)
    _stops.event = stop
    try:
        yield
    finally:
        _stops.event = before


@contextmanager
def waits_told_to(listener: OnWait) -> Iterator[None]:
    """Within it, `listener` is called every few seconds about a request that is not answered, from whatever thread waits."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def in_daemon_thread(name: str, call: Callable[..., T], *arguments: Any) -> Future[T]:
    """`call(*arguments)` in a thread called `name`, which does not keep the process alive as those of pools do."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(call(*arguments))
        except BaseException as error:  # noqa: BLE001  raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class ReadingPool:
    """Gives calls to threads; a context manager, whose exit cancels calls that have not begun and ends waits for a storage at

    once. So Ctrl-C, an error, or a caller that has seen enough wait for no server. A pool that is dropped without it finishes
    its calls, and ends.
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
