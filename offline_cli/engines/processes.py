"""Maps a function over many items, some of them in worker processes; results do not depend on which worker is faster.

Results come in the order of the items. The caller's own process works too: while the next result is missing it takes items that
no worker has begun, the last ones first, so that nothing waits for workers that are still starting. If a worker dies, killed
for memory maybe, a warning says so, and what it had begun is done here.

Workers are fresh interpreters, not `multiprocessing`'s: those run the caller's main script once more, and an unguarded one
would start them without end. Where a process cannot be given a socket (Windows), there are none.

Objects travel between a process and its own workers as pickles through a socket; both ends are ours, so they are trusted. A
message is sent and received by one system call each, however long: threads that answer a worker piece by piece would have to
wait for Python's interpreter lock after each piece, milliseconds at a time, while another thread computes.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from offline_cli.files.timeouts import processors
from offline_cli.import_path import path_for_workers, safe_flags
from offline_cli.scopes import Reading, Scope

__all__ = ["helpers", "interpreter", "interpreter_command", "main", "mapped", "processors"]

WORTH: Final = 64 << 20  # bytes of data from which on workers pay, which take about a second to start
AHEAD: Final = 3  # items for each worker that are begun or queued, beyond the one whose turn it is
HELD: Final = 16 << 20  # bytes of items that wait, but for the last one
GRACE: Final = 5.0  # seconds for a worker to end by itself
LENGTH: Final = struct.Struct("<Q")
START: Final = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {} import {}; {}()"

T = TypeVar("T")
R = TypeVar("R")


def helpers(workers: int, nbytes: int | None) -> int:
    """How many processes may help this one with `nbytes` (None: unknown, many) of data, where `workers` are allowed."""
    return 0 if nbytes is not None and nbytes < WORTH else min(workers, processors()) - 1


def interpreter_command(function: str) -> list[str]:
    """The command of a fresh interpreter that calls `module:function`; further arguments are for that function."""
    module, _, name = function.partition(":")
    return [sys.executable, *safe_flags(), "-c", START.format(module, name, name), json.dumps(path_for_workers())]


def mapped(
    function: Callable[[T], R], items: Iterable[T], *, workers: int, size: Callable[[T], int] = lambda _: 0
) -> Reading[R]:
    """`function(item)` of each, in order; raises in its turn what it, or the iterable, raises, and stops.

    `workers`: processes beside this one. `function`, items and results can be pickled, and calls do not depend on each other.
    Items are taken from the iterable some time before their turn, fewer of them where `size`, in bytes, is large.
    """
    return Reading(lambda scope: _mapped(function, items, workers, size, scope))


def _mapped(
    function: Callable[[T], R], items: Iterable[T], workers: int, size: Callable[[T], int], scope: Scope
) -> Iterator[R]:
    processes = _begun(function, workers)
    if not processes:
        yield from map(function, items)
        return
    with scope.part() as held:
        ahead: _Ahead[T, R] = held.enter(_Asked(function, processes))
        source, failed, is_ended = iter(items), None, False
        while ahead or not is_ended:
            while not is_ended and len(ahead) <= AHEAD * len(processes) and ahead.nbytes < HELD:
                try:
                    item = next(source)
                    ahead.begin(item, size(item))
                except StopIteration:
                    is_ended = True
                except Exception as error:  # noqa: BLE001  raised once what came before it is done
                    failed, is_ended = error, True
            if ahead:
                yield ahead.next()
        if failed is not None:
            raise failed


def _begun(function: Callable[[Any], Any], count: int) -> list[_Worker]:
    """As many workers as the system allows; none where the interpreter to run is unknown."""
    processes: list[_Worker] = []
    try:
        pickle.dumps(function)
    except Exception:  # noqa: BLE001  whatever it holds raises: what cannot be sent is done here
        return processes
    with suppress(OSError):  # no more processes, or no memory for them
        while os.name == "posix" and sys.executable and len(processes) < count:
            processes.append(_Worker(function))
    return processes


def interpreter(function: str, theirs: socket.socket, *, output: Any = 2) -> subprocess.Popen[bytes]:
    """A fresh interpreter that calls `module:function`, whose last argument is one end of a pair of sockets.

    `output`: where both of its outputs go; standard error unless given, because standard output is the caller's.

    Raises OSError where the system allows no more processes.
    """
    return subprocess.Popen(  # noqa: S603  this interpreter, and nothing that comes from outside
        [*interpreter_command(function), str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # Ctrl-C goes to the whole group; the parent decides when it ends
    )


class _Asked(Generic[T, R]):
    """Within it, each of the processes is asked by a thread of its own; at its end all are killed, whatever they are doing."""

    def __init__(self, function: Callable[[T], R], processes: Sequence[_Worker]) -> None:
        free, mine = deque(processes), threading.local()

        def greet() -> None:
            mine.worker = free.popleft()  # there are as many threads as workers
            mine.worker.greet()

        def call(item: T) -> R:
            result: R = mine.worker.ask(item)
            return result

        self._processes = processes
        self._threads = ThreadPoolExecutor(len(processes), thread_name_prefix="offline-cli-worker", initializer=greet)
        self._ahead: _Ahead[T, R] = _Ahead(function, call, self._threads)

    def __enter__(self) -> _Ahead[T, R]:
        return self._ahead

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._processes:
            worker.stop()
        self._threads.shutdown(wait=True)
        for worker in self._processes:
            worker.join()


class _Died(Exception):
    """The worker that was asked has died."""


class _Worker:
    """One process; asked by one thread at a time."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(None)
        with theirs:
            self._process = interpreter(f"{__name__}:main", theirs)
        self._function = function
        self._is_dead = False

    def greet(self) -> None:
        """Send it the function, and wait until it is ready: until then, items are better done by others."""
        with suppress(_Died):
            self.ask(self._function)

    def ask(self, item: Any) -> Any:
        """The function's result for the item. Raises what it raises; _Died where the process does not answer."""
        if self._is_dead:
            raise _Died
        try:
            _send(self._socket, item)
            is_result, value = _receive(self._socket)
        except Exception as error:  # what cannot be sent, either way, is done again by the caller, and raises there if it must
            self._is_dead = True
            raise _Died from error
        if is_result:
            return value
        raise value

    def stop(self) -> None:
        """End it, in the middle of an item if need be."""
        self._is_dead = True
        self._process.kill()

    def join(self) -> None:
        """Wait until it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        self._socket.close()


class _Ahead(Generic[T, R]):
    """Items that are begun or queued, and results that wait for their turn."""

    def __init__(self, function: Callable[[T], R], call: Callable[[T], R], threads: ThreadPoolExecutor) -> None:
        self._function, self._call, self._threads = function, call, threads
        self._waiting: deque[tuple[T, Future[R]]] = deque()
        self._sizes: deque[int] = deque()
        self._is_warned = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def nbytes(self) -> int:
        """Of the items."""
        return sum(self._sizes)

    def begin(self, item: T, size: int) -> None:
        """Queue it for the next free worker."""
        self._sizes.append(size)
        self._waiting.append((item, self._threads.submit(self._call, item)))

    def next(self) -> R:
        """The result of the first item that has not been asked for. Raises what the function raises."""
        item, future = self._waiting.popleft()
        self._sizes.popleft()
        if future.cancel():
            return self._function(item)
        while not future.done() and self._do_last():
            pass
        try:
            return future.result()
        except _Died:
            self._warn()
            return self._function(item)

    def _do_last(self) -> bool:
        """Do here the last item that no worker has begun; False: there is none."""
        for place in reversed(range(len(self._waiting))):
            item, future = self._waiting[place]
            if future.cancel():
                self._waiting[place] = item, _done(self._function, item)
                return True
        return False

    def _warn(self) -> None:
        if not self._is_warned:
            self._is_warned = True
            words = "a worker process has died, perhaps killed for memory; the process that started it does its work"
            warnings.warn(words, RuntimeWarning, stacklevel=2)


def _done(function: Callable[[T], R], item: T) -> Future[R]:
    future: Future[R] = Future()
    future.set_running_or_notify_cancel()
    try:
        future.set_result(function(item))
    except Exception as error:  # noqa: BLE001  raised when its turn comes
        future.set_exception(error)
    return future


# ---- in a worker, and its messages ----


def _send(to: socket.socket, message: object) -> None:
    """Send one object. Raises OSError where the other end is closed."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    to.sendall(LENGTH.pack(len(data)))
    to.sendall(data)


def _receive(source: socket.socket) -> Any:
    """The next object. Raises EOFError where the other end is closed."""
    (length,) = LENGTH.unpack(_bytes(source, LENGTH.size))
    return pickle.loads(_bytes(source, length))  # noqa: S301  our own process at the other end


def _bytes(source: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        got = source.recv_into(view[done:], count - done, socket.MSG_WAITALL)
        if not got:
            raise EOFError
        done += got
    return data


def main() -> None:
    """Answer through the socket whose number is the last argument; nobody else holds its other end."""
    try:
        with socket.socket(fileno=int(sys.argv[-1])) as parent:
            _answer(parent)
    except (EOFError, OSError):  # the parent is done, or gone
        os._exit(0)  # at once: there is nothing to flush, and nobody to notify


def _answer(parent: socket.socket) -> None:
    function = _receive(parent)
    outcome: tuple[bool, Any] = True, None  # ready
    while True:
        _send(parent, outcome)
        outcome = _outcome(function, _receive(parent))


def _outcome(function: Any, item: Any) -> tuple[bool, Any]:
    try:
        return True, function(item)
    except Exception as error:  # noqa: BLE001  raised again by the parent
        return False, error
