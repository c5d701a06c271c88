"""Several runners, each in a process of its own, merged into one sequence of episodes; refuses to depend on who is faster.

Runner r plays every R-th episode. The parent takes a batch from each in turn and puts the episodes in the order of their
numbers. Who is ahead waits at its full pipe, so that memory stays bounded. A runner ends when its pipe does: after its last
episode, when the parent has enough, and when the parent is killed.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import numpy as np

from offline_cli.engines.fork_server import process_context
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, OfflineCliError
from offline_cli.recording.piped_policy import PipedPolicy
from offline_cli.recording.plan import Plan
from offline_cli.recording.playing import open_planned, open_runner, policy_of
from offline_cli.recording.policy import Policy
from offline_cli.recording.starting import started

__all__ = ["played_by_processes"]

PATIENCE: Final = 0.1  # seconds between two looks at whether to stop
GRACE: Final = 5.0  # seconds for a runner to close its environments
LAST_STEP: Final = 30.0  # seconds for runners to end their step, and say what their pieces learned


@dataclass(frozen=True, slots=True)
class _Told:
    """What the pieces of a runner have learned: what it says last but one."""

    state: Mapping[str, Any] | str  # text: why it cannot be sent


def played_by_processes(
    plan: Plan, *, stopped: Callable[[], bool], states: list[Mapping[str, Any] | str] | None = None
) -> Generator[EpisodeBatch, None, None]:
    """Whole episodes in order. Raises what a runner raises, after all episodes that come before the failure.

    `states`: gets what the pieces of each runner have learned, or why that is not known; None: nobody wants it.
    """
    context = process_context("offline_cli.recording.runner_processes")
    stop = context.RawValue("b", 0)
    inboxes: list[_Inbox] = []
    try:
        for number in range(plan.runners):
            ours, theirs = context.Pipe(duplex=False)
            args = (plan, number, theirs, stop, states is not None)
            process = context.Process(target=_run, args=args, name=f"runner-{number}")
            started(process)  # no daemon: asynchronous slots are processes of its own
            theirs.close()
            inboxes.append(_Inbox(process, ours))
        yield from _merged(inboxes, lambda: _pass_on(stopped, stop))
    finally:
        stop.value = 1
        if states is not None:
            until = time.monotonic() + LAST_STEP
            states += [inbox.state(until) for inbox in inboxes]
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
        self._state: Mapping[str, Any] | str | None = None

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
            except (EOFError, OSError) as err:  # the latter in the middle of a message
                self._process.join(GRACE)
                what = f"a runner process ended with exit code {self._process.exitcode}"
                fix = "--num-env-runners 0 shows what happens; the same command with --resume goes on"
                raise BadData(what, where=str(self._process.name), fix=fix) from err
            if message is None:
                return False
            if isinstance(message, OfflineCliError):
                raise message
            if isinstance(message, _Told):
                self._state = message.state
            else:
                self._waiting.append(message)
        return True

    def state(self, until: float) -> Mapping[str, Any] | str:
        """What the runner's pieces have learned, or why that is not known. It has been told to stop; the rest is left aside."""
        while self._state is None:
            if not self._pipe.poll(max(0.0, until - time.monotonic())):
                return f"{self._process.name} did not end its step within {LAST_STEP:.0f} s"
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                return f"{self._process.name} has died"
            if isinstance(message, _Told):
                self._state = message.state
        return self._state

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


def _run(plan: Plan, number: int, pipe: Connection, stop: Any, tells: bool) -> None:
    """A runner process; `tells`: what its pieces have learned, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides what becomes of it
    policy: Policy | PipedPolicy | None = None
    failure: OfflineCliError | None = None
    with suppress(BrokenPipeError, ConnectionResetError):  # the parent has enough, or is gone
        try:
            with open_planned(plan) as environment:
                policy = policy_of(plan, environment)
                with open_runner(plan, number, environment=environment, policy=policy, stopped=_to_stop(stop)) as runner:
                    for batch in runner.batches():
                        pipe.send(batch)
        except OfflineCliError as err:
            failure = err
        if tells:
            _tell(policy.pipelines.get_state() if isinstance(policy, PipedPolicy) else {}, pipe)
        pipe.send(failure)
    pipe.close()


def _tell(state: Mapping[str, Any], pipe: Connection) -> None:
    try:
        told = ForkingPickler.dumps(_Told(state))
    except Exception as err:  # noqa: BLE001  states may be anything
        told = ForkingPickler.dumps(_Told(f"a state that cannot leave its process: {err!r}"))
    pipe.send_bytes(told)


def _to_stop(stop: Any) -> Callable[[], bool]:
    """Whether the parent says so, or is gone, which is looked at every hundredth time."""
    parent = multiprocessing.parent_process()
    asked = 0

    def answer() -> bool:
        nonlocal asked
        asked += 1
        return bool(stop.value) or (asked % 100 == 0 and (parent is None or not parent.is_alive()))

    return answer
