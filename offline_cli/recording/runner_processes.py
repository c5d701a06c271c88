"""Several runners, each in a process of its own, merged into one sequence of episodes; refuses to depend on who is faster.

Runner r plays every R-th episode. The parent takes a batch from each in turn and puts the episodes in the order of their
numbers. Who is ahead waits at its full pipe, so that memory stays bounded. A runner ends when its pipe does: after its last
episode, when the parent has enough, and when the parent is killed.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, OfflineCliError
from offline_cli.recording.async_slots import process_context
from offline_cli.recording.plan import Plan
from offline_cli.recording.playing import open_planned, open_runner, policy_of

__all__ = ["played_by_processes"]

PATIENCE: Final = 0.1  # seconds between two looks at whether to stop
GRACE: Final = 5.0  # seconds for a runner to close its environments


def played_by_processes(plan: Plan, *, stopped: Callable[[], bool]) -> Generator[EpisodeBatch, None, None]:
    """Whole episodes in order. Raises what a runner raises, after all episodes that come before the failure."""
    context = process_context("offline_cli.recording.runner_processes")
    stop = context.RawValue("b", 0)
    inboxes: list[_Inbox] = []
    try:
        for number in range(plan.runners):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(plan, number, theirs, stop), name=f"runner-{number}")
            process.start()  # no daemon: asynchronous slots are processes of its own
            theirs.close()
            inboxes.append(_Inbox(process, ours))
        yield from _merged(inboxes, lambda: _pass_on(stopped, stop))
    finally:
        stop.value = 1
        for inbox in inboxes:
            inbox.close()


def _pass_on(stopped: Callable[[], bool], stop: Any) -> None:
    if stopped():
        stop.value = 1


class _Inbox:
    """What has come from one runner and has not been taken."""

    def __init__(self, process: Any, pipe: Connection) -> None:
        self._process, self._pipe = process, pipe
        self._waiting: list[EpisodeBatch] = []  # one or none

    def __len__(self) -> int:
        return sum(map(len, self._waiting))

    def wait(self, meanwhile: Callable[[], None]) -> bool:
        """Have a batch; False: the runner has no more. Raises what the runner raised."""
        while not self._waiting:
            while not self._pipe.poll(PATIENCE):
                meanwhile()
            meanwhile()
            try:
                message = self._pipe.recv()
            except EOFError as err:
                self._process.join(GRACE)
                what = f"a runner process ended with exit code {self._process.exitcode}"
                fix = "--num-env-runners 0 shows what happens; the same command with --resume goes on"
                raise BadData(what, where=str(self._process.name), fix=fix) from err
            if message is None:
                return False
            if isinstance(message, OfflineCliError):
                raise message
            self._waiting.append(message)
        return True

    def take(self, count: int) -> EpisodeBatch:
        batch = self._waiting.pop()
        if count < len(batch):
            self._waiting.append(batch.select(slice(count, len(batch))))
        return batch.select(slice(0, count))

    def close(self) -> None:
        self._pipe.close()
        self._process.join(GRACE)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


def _merged(inboxes: list[_Inbox], meanwhile: Callable[[], None]) -> Iterator[EpisodeBatch]:
    """Episodes of the inboxes in turn, one from each: 0, 1, ..., R-1, 0, 1, ...; ends at the first that has none."""
    while True:
        have, failure = _waited(inboxes, meanwhile)
        if have < len(inboxes):  # the last round is a part of one
            if have:
                yield EpisodeBatch.concat([inbox.take(1) for inbox in inboxes[:have]])
            if failure is not None:
                raise failure
            return
        rounds = min(map(len, inboxes))
        together = EpisodeBatch.concat([inbox.take(rounds) for inbox in inboxes])
        yield together.select(np.arange(len(together)).reshape(len(inboxes), rounds).T.ravel())


def _waited(inboxes: list[_Inbox], meanwhile: Callable[[], None]) -> tuple[int, OfflineCliError | None]:
    """How many of the inboxes, from the first on, have a batch, and what the next one failed with."""
    for have, inbox in enumerate(inboxes):
        try:
            if not inbox.wait(meanwhile):
                return have, None
        except OfflineCliError as err:
            return have, err
    return len(inboxes), None


def _run(plan: Plan, number: int, pipe: Connection, stop: Any) -> None:
    """A runner process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides what becomes of it
    with suppress(BrokenPipeError, ConnectionResetError):  # the parent has enough, or is gone
        try:
            with open_planned(plan) as environment:
                policy = policy_of(plan, environment)
                with open_runner(plan, number, environment=environment, policy=policy, stopped=_to_stop(stop)) as runner:
                    for batch in runner.batches():
                        pipe.send(batch)
            pipe.send(None)
        except OfflineCliError as err:
            pipe.send(err)
    pipe.close()


def _to_stop(stop: Any) -> Callable[[], bool]:
    """Whether the parent says so, or is gone, which is looked at every hundredth time."""
    parent = multiprocessing.parent_process()
    asked = 0

    def answer() -> bool:
        nonlocal asked
        asked += 1
        return bool(stop.value) or (asked % 100 == 0 and (parent is None or not parent.is_alive()))

    return answer
