"""`train --engine ray`: processes that train together are started on a Ray cluster, one task each, as torchrun starts them.

A task runs the command's own line in a process of its own, so that training knows nothing of Ray: `ranks.py` finds the
variables that torchrun would set. That process ends with its task, whose end of a pipe it watches. They meet at a store that
this process serves, which counts who has come and passes a stop on. What the first learner prints is printed here, and its exit
code is the command's. A learner that is lost is not started again: the others end by themselves, as they do under torchrun, and
the run is resumed from its last checkpoint.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import IO, Any, Final

from offline_cli.engines.overseer import exit_code_of
from offline_cli.engines.processes import interpreter_command
from offline_cli.engines.ray_engine import RayEngine
from offline_cli.errors import ClusterLost, Interrupted

__all__ = ["ERR", "OUT", "end_with_task", "learned_on_ray"]

COMING: Final = 120.0  # seconds for all learners to begin
LOOK: Final = 0.5  # seconds between two looks at whether to stop
ENDING: Final = 30.0  # seconds for a learner to end once its task has been told to
COME, STOP = "offline_cli/come", "offline_cli/stop"  # keys of the store
OUT, ERR, CODE = "out", "err", "code"
PLACE: Final = "--engine ray"
RESUME: Final = "the same command with --resume continues from the last checkpoint"

Printed = tuple[str, str | int]
"""OUT or ERR and a text, or CODE and an exit code."""


def learned_on_ray(
    words: Sequence[str],
    entry: str,
    *,
    address: str | None,
    learners: int,
    gpus: float,
    say: Callable[[str, str], None],
) -> int:
    """Run a command line as so many learners, each with so many GPUs of its own; the exit code.

    `entry`: `module:function`, which calls `end_with_task` and takes the last arguments of its process, `words`, for that line.
    `say` gets what the first one prints: OUT or ERR, and a text. A signal lets them save and end; a second one ends them.

    Raises ClusterLost where the cluster or a learner is lost, or not all have begun within COMING; Interrupted after a second
    signal; MissingPackage where one lacks what it needs; UsageError where the cluster has not enough processors or GPUs.
    """
    host = _own_address()
    store = _store(host, 0, is_master=True, wait_for_workers=False)
    learner = Learner(tuple(words), entry, learners, host, store.port, os.getcwd())
    codes, came = list[int](), list[int]()
    with (
        _passing_on(came, store) as is_over,
        RayEngine(address, learners, gpus=gpus, together=True) as engine,
        engine.streamed(learner, range(learners), stopped=is_over) as printed,
    ):
        for kind, said in printed:  # of the first learner, then of the second, ...
            if kind == CODE:
                codes.append(int(said))
                if not codes[0]:
                    break
            else:
                say(kind, str(said))
    if not codes:
        details = {"exit_code": exit_code_of(came[0])}
        raise Interrupted("stopped before the learners had saved and ended", where=PLACE, fix=RESUME, details=details)
    if codes[0] < 0:
        raise ClusterLost(f"the first learner was ended by signal {-codes[0]}", where=PLACE, fix=RESUME)
    return codes[0]


@contextmanager
def _passing_on(came: list[int], store: Any) -> Iterator[Callable[[], bool]]:
    """Within it, signals are added to `came`, and the first is passed on; what is yielded says whether a second one came."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in numbers} if is_main else {}

    def told() -> bool:
        if came:
            store.set(STOP, str(came[0]))
        return len(came) > 1

    for number in before:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _store(*place: Any, **how: Any) -> Any:
    """A torch.distributed.TCPStore, which torch does not export to type checkers."""
    import torch.distributed as dist

    return dist.TCPStore(*place, **how)  # type: ignore[attr-defined]


def _own_address() -> str:
    """Of this machine, as others of its network reach it; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("10.255.255.255", 1))
            return str(asking.getsockname()[0])
        except OSError:  # no network: the cluster is on this machine
            return "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Learner:
    """What a task runs."""

    words: tuple[str, ...]
    entry: str
    count: int
    host: str
    port: int
    folder: str

    def __call__(self, rank: int) -> Iterator[Printed]:
        """Train as this rank. Raises ClusterLost where it, or another one, did not come, or came before."""
        store = _store(self.host, self.port, is_master=False, timeout=timedelta(seconds=COMING))
        self._meet(store, rank)
        with _learning([*interpreter_command(self.entry), *self.words], self._environment(rank), self.folder) as process:
            printed: queue.SimpleQueue[Printed | None] = queue.SimpleQueue()
            for kind, stream in ((OUT, process.stdout), (ERR, process.stderr)):
                threading.Thread(target=_passed_on, args=(stream, kind, printed), daemon=True).start()
            threading.Thread(target=_stopped, args=(store, process), daemon=True).start()
            left = 2
            while left:
                one = printed.get()
                left -= one is None
                if one is not None:
                    yield one
            yield CODE, process.wait()

    def _environment(self, rank: int) -> dict[str, str]:
        """That of the task, and what torchrun would set: with a GPU of its own each is the first on its machine."""
        place = {"MASTER_ADDR": self.host, "MASTER_PORT": str(self.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        return {**os.environ, **place, "RANK": str(rank), "WORLD_SIZE": str(self.count), "LOCAL_RANK": "0"}

    def _meet(self, store: Any, rank: int) -> None:
        """Wait until all have come."""
        where = f"learner {rank} of {self.count}"
        if store.add(f"{COME}/{rank}", 1) > 1:
            raise ClusterLost("a learner has ended with its worker", where=where, fix=RESUME)
        store.add(COME, 1)
        until = time.monotonic() + COMING
        while (come := store.add(COME, 0)) < self.count:
            if time.monotonic() > until:
                what = f"only {come} of {self.count} learners began within {COMING:.0f} s"
                raise ClusterLost(what, where=where, fix="see ray status: each needs a free processor, and its GPUs")
            time.sleep(0.05)


@contextmanager
def _learning(command: list[str], environment: dict[str, str], folder: str) -> Iterator[subprocess.Popen[bytes]]:
    """A learner's process, which does not outlive the context, nor this process."""
    place: dict[str, Any] = {"cwd": folder} if os.path.isdir(folder) else {}
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes, **place)  # noqa: S603  our own command
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING)
        process.kill()
        process.wait()


def _stopped(store: Any, process: subprocess.Popen[bytes]) -> None:
    """Pass a stop on, while the process runs, and the command that serves the store."""
    with suppress(RuntimeError):  # the store is gone, and this task is going to be
        while process.poll() is None:
            if store.check([STOP]):
                process.send_signal(int(store.get(STOP)))
                return
            time.sleep(LOOK)


def end_with_task() -> None:
    """In a learner's process: it ends, as after SIGTERM, with the task that started it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # which workers of Ray's block

    def watch() -> None:
        while os.read(0, 1):  # not through sys.stdin, whose lock would keep the interpreter from ending
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ENDING)
        os._exit(1)

    threading.Thread(target=watch, name="offline-cli-task", daemon=True).start()


def _passed_on(stream: IO[bytes], kind: str, printed: queue.SimpleQueue[Printed | None]) -> None:
    for line in stream:
        printed.put((kind, line.decode("utf-8", "replace")))
    printed.put(None)
