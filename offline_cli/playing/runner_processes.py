"""Several runners, each in a process of its own, merged into one sequence of episodes, independent of their speed.

In a recording runner r plays every R-th episode. The parent takes a batch from each in turn and puts the episodes in the order
of their numbers; in an evaluation it takes whatever comes. A runner that is ahead waits at its full pipe, so that memory stays
bounded. A runner ends when its pipe does: after its last episode, when the parent has enough, and when the parent is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import Any, Final, Generic, TypeVar

import numpy as np

from offline_cli.engines.fork_server import ended, ends_with_parent, process_context, signals_are_its_parents
from offline_cli.engines.overseer import Overseer
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, OfflineCliError
from offline_cli.playing.env_runner import EnvRunner, too_long
from offline_cli.playing.own_vector_slots import MakeSink
from offline_cli.playing.plan import Plan
from offline_cli.playing.runner_factory import open_planned, open_runner, policy_of
from offline_cli.playing.slots import guard_hint, started
from offline_cli.waiting import WORKERS, Ending, Mirrored, Overdue, current, use

__all__ = ["outcomes_of_processes", "played_by_processes"]

PATIENCE: Final = 0.1  # seconds between two looks at whether to stop
GRACE: Final = 5.0  # seconds for runners to close their environments, and
HURRIED: Final = 1.5  # after a stop, or where one hangs
STOPPED: Final = 7.0  # seconds after a stop in which runners are listened to; each ends its step within 6 if it can
AT_ONCE: Final = 2.5  # after a second signal
GAP: Final = 1.0  # seconds between two such looks, after which this process may have been stopped
Taken = TypeVar("Taken")
HELD: Final = 5.0  # seconds without a sign of life, beyond --step-timeout, after which a runner's interpreter is held


def played_by_processes(
    plan: Plan, sink: MakeSink[EpisodeBatch], *, stopped: Callable[[], bool]
) -> Generator[EpisodeBatch, None, None]:
    """Whole episodes in order. Raises what a runner raises, after all episodes that come before the failure."""
    return _played(plan, sink, _merged, stopped)


def outcomes_of_processes(plan: Plan, sink: MakeSink[Taken]) -> Generator[Taken, None, None]:
    """What the runners have, in any order. Raises what a runner raises."""
    return _played(plan, sink, _gathered, lambda: False)


def _played(
    plan: Plan,
    sink: MakeSink[Taken],
    merge: Callable[[list[_Inbox[Taken]], _Stop], Iterator[Taken]],
    stopped: Callable[[], bool],
) -> Generator[Taken, None, None]:
    context = process_context("offline_cli.playing.runner_processes")
    stop = _Stop(context.RawValue("b", 0), stopped)
    inboxes: list[_Inbox[Taken]] = []
    waiting = current()
    words = waiting.words
    waiting.words = lambda: "; ".join(inbox.sight.told() for inbox in inboxes)
    waiting.enter(WORKERS)
    try:
        for number in range(plan.runners):
            ours, theirs = context.Pipe(duplex=False)
            seen = context.RawArray("d", 4)
            runner = _Runner(plan, number, sink, theirs, stop.value, seen)
            process = context.Process(target=runner.main, name=f"runner-{number}")
            started(process)  # no daemon: asynchronous slots are processes of its own
            theirs.close()
            inboxes.append(_Inbox(process, ours, _Sight(plan, number, seen)))
        for batch in merge(inboxes, stop):
            waiting.leave()
            yield batch
            waiting.enter(WORKERS)
    finally:
        waiting.enter(WORKERS)
        stop.value.value = stop.value.value or 1
        for inbox in inboxes:
            inbox.pipe.close()
        waiting.leave()
        ended([inbox.process for inbox in inboxes], HURRIED if stop.since or any(it.is_held for it in inboxes) else GRACE)
        waiting.words = words


class _Stop:
    """Whether to stop, for the runners to see, and since when they know."""

    def __init__(self, value: Any, stopped: Callable[[], bool]) -> None:
        self.value, self._stopped = value, stopped
        self.since = 0.0  # 0: not yet
        self.hurried = 0.0  # since when they are to be ended at once

    def is_over(self) -> bool:
        """Inform the runners if they have to stop; whether their time is up."""
        if not self.since and self._stopped():
            self.value.value, self.since = 1, time.monotonic()
        if not self.hurried and current().at_once:
            self.value.value, self.hurried = 2, time.monotonic()
            self.since = self.since or self.hurried
        now = time.monotonic()
        return bool(self.since) and now > (min(self.since + STOPPED, (self.hurried or now) + AT_ONCE))


class _Sight:
    """Where a runner is, as its overseer says in shared memory: when it looked, the slot (-1: none), episode and step."""

    def __init__(self, plan: Plan, number: int, seen: Any) -> None:
        self.plan, self._number, self._seen = plan, number, seen
        self._asked = self._since = 0.0  # when it was last asked for, and since when without a gap

    def look(self, runner: EnvRunner[Any] | None) -> None:
        """In the runner: put down where it is."""
        at = (-1, 0, 0) if runner is None else runner.at()
        self._seen[:] = [time.monotonic(), *at]

    def put(self, runner: EnvRunner[Any] | None) -> None:
        """In the runner, at each call of the environment: put down where it is, and no sign of life."""
        self._seen[1:] = (-1, 0, 0) if runner is None else runner.at()

    def told(self) -> str:
        """As text."""
        _, slot, episode, step = self._seen
        place = "" if slot < 0 else f", slot {slot:.0f}, episode {episode:.0f}, step {step:.0f}"
        return f"runner {self._number}: {self.plan.env}{place}"

    def is_held(self) -> bool:
        """Whether the runner's interpreter has been held for longer than a step may take."""
        limit, when, slot, now = self.plan.step_timeout, self._seen[0], self._seen[1], time.monotonic()
        if now > self._asked + GAP:  # the runner may have been stopped with us, and has to come to itself first
            self._since = now
        self._asked = now
        return limit is not None and slot >= 0 and bool(when) and now > max(when, self._since) + limit + HELD

    def failure(self) -> BadData:
        """The error for a step that takes too long."""
        what = f"the environment takes longer than --step-timeout {self.plan.step_timeout:g} s, and holds its interpreter"
        fix = "check the environment with this policy, or a longer --step-timeout"
        return BadData(what, where=self.told(), fix=f"{fix}{_going_on(self.plan)}")


class _Inbox(Generic[Taken]):
    """What one runner has sent and has not been taken yet."""

    def __init__(self, process: Any, pipe: Connection, sight: _Sight) -> None:
        self.process, self.pipe, self.sight = process, pipe, sight
        self.is_held = False  # whether it was given up because it hangs
        self.batch: Taken | None = None

    def wait(self, stop: _Stop) -> bool:
        """Have a batch; False: the runner has no more, or does not come back after a stop. Raises what the runner raised."""
        while self.batch is None:
            while not self.pipe.poll(PATIENCE):
                if stop.is_over():
                    self.is_held = True
                    return False
                if self.sight.is_held():
                    self.is_held = True
                    raise self.sight.failure()
            stop.is_over()
            try:
                message = self.pipe.recv()
            except (EOFError, OSError) as err:  # the latter in the middle of a message
                if stop.since:
                    return False
                self.process.join(GRACE)
                what = f"a runner process ended with exit code {self.process.exitcode}"
                fix = f"--num-env-runners 0 shows what happens{guard_hint()}{_going_on(self.sight.plan)}"
                raise BadData(what, where=str(self.process.name), fix=fix) from err
            if message is None:
                return False
            if isinstance(message, OfflineCliError):
                raise message
            self.batch = message
        return True

    def take(self) -> Taken:
        """What `wait` has found."""
        found, self.batch = self.batch, None
        assert found is not None, "waited for"
        return found


def _going_on(plan: Plan) -> str:
    """For an error's fix: only a plan that keeps whole episodes can be resumed."""
    return "; the same command with --resume continues" if plan.keeps_what_is_whole else ""


def _merged(inboxes: list[_Inbox[EpisodeBatch]], stop: _Stop) -> Iterator[EpisodeBatch]:
    """Episodes of the inboxes in turn, one from each: 0, 1, ..., R-1, 0, 1, ...; ends at the first that has none."""
    while True:
        have, failure = _waited(inboxes, stop)
        if have < len(inboxes):  # the last round is a part of one
            if have:
                yield EpisodeBatch.concat([_first_of(inbox, 1) for inbox in inboxes[:have]])
            if failure is not None:
                raise failure
            return
        rounds = min(len(inbox.batch or ()) for inbox in inboxes)
        together = EpisodeBatch.concat([_first_of(inbox, rounds) for inbox in inboxes])
        yield together.select(np.arange(len(together)).reshape(len(inboxes), rounds).T.ravel())


def _first_of(inbox: _Inbox[EpisodeBatch], count: int) -> EpisodeBatch:
    """The first episodes of an inbox, which keeps the others."""
    batch = inbox.take()
    inbox.batch = batch.select(slice(count, len(batch))) if count < len(batch) else None
    return batch.select(slice(0, count))


def _gathered(inboxes: list[_Inbox[Taken]], stop: _Stop) -> Iterator[Taken]:
    """Everything that comes, in order of arrival."""
    open_ = list(inboxes)
    while open_:
        ready = wait_for([inbox.pipe for inbox in open_], PATIENCE)
        if stop.is_over():
            return
        for inbox in [inbox for inbox in open_ if inbox.pipe in ready or inbox.sight.is_held()]:
            if inbox.wait(stop):
                yield inbox.take()
            else:
                open_.remove(inbox)


def _waited(inboxes: list[_Inbox[Any]], stop: _Stop) -> tuple[int, OfflineCliError | None]:
    """How many inboxes, from the first on, have a batch, and the failure of the next one."""
    for have, inbox in enumerate(inboxes):
        try:
            if not inbox.wait(stop):
                return have, None
        except OfflineCliError as err:
            return have, err
    return len(inboxes), None


@dataclass(slots=True)
class _Runner:
    """What a runner process does."""

    plan: Plan
    number: int
    sink: MakeSink[Any]
    pipe: Connection
    stop: Any
    seen: Any
    playing: EnvRunner[Any] | None = None

    def main(self) -> None:
        """The process."""
        signals_are_its_parents()
        ends_with_parent()
        with suppress(BrokenPipeError, ConnectionResetError):  # the parent has enough, or is gone
            self.run()
        self.pipe.close()

    def run(self) -> None:
        """Play, and send what is whole, and how it ended. Raises OSError where the parent is gone."""
        plan, failure, sight = self.plan, None, _Sight(self.plan, self.number, self.seen)
        Ending.is_ours = True
        sight.look(None)  # the first sign of life
        if plan.step_timeout is not None:
            use(Mirrored(lambda slot: sight.put(None if slot is None else self.playing)))
        overseer = Overseer(
            plan.env,
            step_timeout=plan.step_timeout,
            asked=lambda: int(self.stop.value),
            on_look=lambda: sight.look(self.playing),
            is_watched=False,
        )
        overseer.on_stuck = self._left_behind
        with overseer:
            try:
                with open_planned(plan) as environment:
                    given: dict[str, Any] = {"environment": environment, "policy": policy_of(plan, environment)}
                    with open_runner(plan, self.number, sink=self.sink, stopped=_to_stop(self.stop), **given) as self.playing:
                        for batch in self.playing.batches():
                            self.pipe.send(batch)
                    self.playing = None
            except OfflineCliError as err:
                failure = err
            except Overdue as err:  # before a runner was there
                failure = too_long(plan, plan.env) if err.timed_out and not self.stop.value else None
            self.pipe.send(failure)

    def _left_behind(self, error: OfflineCliError) -> OfflineCliError:
        """In another thread, where the one that plays does not come back: send what is whole, and end."""
        with suppress(OSError):
            for batch in () if self.playing is None else self.playing.left():
                self.pipe.send(batch)
            self.pipe.send(error if isinstance(error, BadData) else None)
        os._exit(1)


def _to_stop(stop: Any) -> Callable[[], bool]:
    """Whether the parent says so, or is gone, which is checked every hundredth time."""
    parent = multiprocessing.parent_process()
    asked = 0

    def answer() -> bool:
        nonlocal asked
        asked += 1
        return bool(stop.value) or (asked % 100 == 0 and (parent is None or not parent.is_alive()))

    return answer
