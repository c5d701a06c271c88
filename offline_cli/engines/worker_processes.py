"""The engine `processes`: fresh interpreters of this machine, each asked by a thread of its own.

The caller's process stitches and writes meanwhile. What a worker has yielded waits here until its turn, up to HELD bytes for
each item that is under way; beyond that the worker waits.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from offline_cli.engines.messages import DONE, FAILED, RESULT, Payload, never, outcomes, packed, received, sent, unpacked
from offline_cli.engines.processes import interpreter
from offline_cli.errors import ClusterLost
from offline_cli.scopes import Reading, Scope

__all__ = ["ATTEMPTS", "ProcessEngine", "main", "worker_lost"]

ATTEMPTS: Final = 6  # of one item without a further result, before its workers' deaths are no accident
HELD: Final = 64 << 20  # bytes of results that wait for the turn of their item
LOOK: Final = 1.0  # seconds between two looks at whether to stop
GRACE: Final = 5.0  # seconds for a killed process to be gone

T = TypeVar("T")
R = TypeVar("R")
Outcome = tuple[int, Payload]
_log = logging.getLogger(__name__)


def worker_lost(item: int, names: list[str]) -> ClusterLost:
    """The error where one item has cost so many workers, of these names."""
    what = f"part {item} of the work ended {len(names)} workers, one after the other: {', '.join(names)}"
    fix = "check their memory, take fewer --workers, or --engine local; --resume continues after the complete shards"
    return ClusterLost(what, where=f"part {item}", fix=fix)


class ProcessEngine:
    """See `Engine`."""

    is_local: Final = False

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._scope = Scope()

    def streamed(
        self, function: Callable[[T], Iterator[R]], items: Iterable[T], *, stopped: Callable[[], bool] = never
    ) -> Reading[R]:
        """See `Engine`."""
        return Reading(lambda scope: self._streamed(function, items, stopped, scope))

    def _streamed(
        self, function: Callable[[T], Iterator[R]], items: Iterable[T], stopped: Callable[[], bool], scope: Scope
    ) -> Iterator[R]:
        with self._scope.part() as ours, scope.part() as held:
            team = held.enter(ours.enter(_Team(packed(function), self._workers)))
            source, waiting, is_ended = iter(items), deque[_Item](), False
            while True:
                while not is_ended and len(waiting) <= self._workers:
                    try:
                        waiting.append(team.begin(packed(next(source))))
                    except StopIteration:
                        is_ended = True
                if not waiting or stopped():
                    return
                yield from waiting.popleft().results(stopped)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._scope.__exit__(kind, error, trace)


class _Item:
    """One item and what has been yielded for it."""

    def __init__(self, number: int, payload: Payload) -> None:
        self.number, self.payload = number, payload
        self._changed = threading.Condition()
        self._outcomes: deque[Outcome] = deque()
        self._held = 0
        self._is_given_up = False
        self.lost: list[str] = []  # workers that died of it, or with it
        self.count = 0  # outcomes so far

    def put(self, kind: int, payload: Payload) -> bool:
        """In a worker's thread: add an outcome once there is room for it; False: nobody wants it any more."""
        with self._changed:
            while self._held >= HELD and not self._is_given_up:
                self._changed.wait()
            self._held += len(payload)
            self._outcomes.append((kind, payload))
            self.count += 1
            self._changed.notify_all()
            return not self._is_given_up

    def give_up(self) -> None:
        """Let the worker's thread go."""
        with self._changed:
            self._is_given_up = True
            self._changed.notify_all()

    def results(self, stopped: Callable[[], bool]) -> Iterator[Any]:
        """What the function yields for it, until it is stopped. Raises what it raises."""
        while not stopped():
            with self._changed:
                if not self._outcomes:
                    self._changed.wait(LOOK)  # with a limit, so that a signal is seen
                    continue
                kind, payload = self._outcomes.popleft()
                self._held -= len(payload)
                self._changed.notify_all()
            if kind == DONE:
                return
            if kind == FAILED:
                raise unpacked(payload)
            yield unpacked(payload)


class _Team:
    """Within it there are workers; at its end all are killed, whatever they are doing."""

    def __init__(self, function: Payload, count: int) -> None:
        self._function, self._count = function, count
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._queue: deque[_Item] = deque()
        self._begun = 0
        self._busy: dict[threading.Thread, _Item] = {}
        self._processes: dict[threading.Thread, _Process] = {}
        self._is_ended = False

    def __enter__(self) -> Self:
        return self

    def begin(self, payload: Payload) -> _Item:
        """Queue an item for the next free worker; a further worker is started where none may be free."""
        with self._changed:
            item = _Item(self._begun, payload)
            self._begun += 1
            self._queue.append(item)
            if len(self._threads) < self._count:
                self._threads.append(threading.Thread(target=self._work, name="offline-cli-worker", daemon=True))
                self._threads[-1].start()
            self._changed.notify()
        return item

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._changed:
            self._is_ended = True
            self._queue.clear()
            self._changed.notify_all()
            for process in self._processes.values():
                process.kill()
        for item in list(self._busy.values()):
            item.give_up()
        for thread in self._threads:
            thread.join()

    # ---- in a thread for each worker ----

    def _work(self) -> None:
        while (item := self._next()) is not None:
            self._done(item)
        process = self._processes.get(threading.current_thread())
        if process is not None:
            process.end()

    def _next(self) -> _Item | None:
        with self._changed:
            while not self._queue and not self._is_ended:
                self._changed.wait()
            if not self._queue:
                return None
            item = self._busy[threading.current_thread()] = self._queue.popleft()
            return item

    def _done(self, item: _Item) -> None:
        """Have the item done, again where its worker dies; what an earlier one has yielded is left out."""
        while True:
            try:
                process = self._process()
                if process is None:
                    return
                for kind, payload in process.asked(item.payload, item.count):
                    if not item.put(kind, payload):
                        return
                    item.lost.clear()
                return
            except (OSError, EOFError):
                name = self._buried()
                if self._is_ended:
                    return
                item.lost.append(name)
                if len(item.lost) == ATTEMPTS:
                    item.put(FAILED, packed(worker_lost(item.number, item.lost)))
                    return
                _log.warning("note: %s; part %d is done again (%d of %d)", name, item.number, len(item.lost) + 1, ATTEMPTS)

    def _process(self) -> _Process | None:
        """That of this thread, which is started where there is none; None at the end."""
        with self._changed:
            if self._is_ended:
                return None
            thread = threading.current_thread()
            if thread not in self._processes:
                self._processes[thread] = _Process(self._function)
            return self._processes[thread]

    def _buried(self) -> str:
        """End what is left of this thread's process; how it ended."""
        with self._changed:
            process = self._processes.pop(threading.current_thread(), None)
        return "no worker process could be started" if process is None else process.end()


class _Process:
    """One worker; asked by one thread."""

    def __init__(self, function: Payload) -> None:
        self._socket, theirs = socket.socketpair()
        self._function: Payload | None = function
        with theirs:
            try:
                self._process: subprocess.Popen[bytes] = interpreter("offline_cli.engines.worker_processes:main", theirs)
            except OSError:
                self._socket.close()
                raise

    def asked(self, item: Payload, skipped: int) -> Iterator[Outcome]:
        """The outcomes for an item, but the first `skipped`. Raises OSError, EOFError where the process has died."""
        if self._function is not None:
            sent(self._socket, RESULT, 0, self._function)
            self._function = None
        sent(self._socket, RESULT, skipped, item)
        kind = RESULT
        while kind == RESULT:
            kind, _, payload = received(self._socket)
            yield kind, payload

    def kill(self) -> None:
        """End it, in the middle of an item if need be; its thread sees that at once."""
        self._process.kill()

    def end(self) -> str:
        """End it and wait until it is gone; how it ended, in words."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)  # by itself, where it is dying
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        self._socket.close()
        code = self._process.returncode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return f"worker process {self._process.pid} died ({how})"


# ---- in a worker ----


def main() -> None:
    """Answer through the socket whose number is the last argument; nobody else holds its other end."""
    try:
        with socket.socket(fileno=int(sys.argv[-1])) as parent:
            _, _, function = received(parent)
            while True:
                _, skipped, item = received(parent)
                work = partial(_work, function, item)
                for number, (kind, payload) in enumerate(outcomes(work, f"worker process {os.getpid()}")):
                    if number >= skipped or kind != RESULT:
                        sent(parent, kind, number, payload)
    except (EOFError, OSError):  # the parent is done, or gone
        os._exit(0)  # at once: there is nothing to flush, and nobody to notify


def _work(function: Payload, item: Payload) -> tuple[Any, Any]:
    return unpacked(function), unpacked(item)
