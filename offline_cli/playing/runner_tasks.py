"""A recording played by an engine's workers: runs of consecutive episodes, the same for any number of workers.

An episode follows from plan and index alone, so that a run of them is played anywhere, and again where its worker dies. What a
worker yields is cut by episodes and bytes, never by time: it is the same each time. An environment's own vector class
is not for this: its episodes depend on those before them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from offline_cli.engines.engine import Engine
from offline_cli.engines.overseer import Overseer
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.playing.own_vector_slots import MakeSink
from offline_cli.playing.plan import Plan
from offline_cli.playing.runner_factory import open_planned, open_runner, policy_of

__all__ = ["played_by_engine"]

ROUNDS: Final = 32  # episodes of a slot in one run, at least: slots are seldom idle at its end
SECONDS: Final = 2.0  # that a run takes about, where its episodes are short: so a task is worth its start
SHARES: Final = 4  # runs of each worker, where the number of episodes is known
EPISODES: Final = 512  # given at a time, or as many as have
BYTES: Final = 4 << 20


def played_by_engine(
    plan: Plan, sink: MakeSink[EpisodeBatch], engine: Engine, *, workers: int, stopped: Callable[[], bool]
) -> Generator[EpisodeBatch, None, None]:
    """Whole episodes in order, as many as the plan has, or without end where it has steps.

    Raises what a runner raises, after all episodes that come before the failure. `stopped` is called often.
    """
    pace = _Pace()
    with engine.streamed(partial(_played, sink), _runs(plan, workers, pace), stopped=stopped) as batches:
        for batch in batches:
            pace.played += len(batch)
            yield batch


@dataclass(slots=True)
class _Pace:
    """How fast episodes come, from all workers."""

    played: int = 0
    began: float = field(default_factory=time.monotonic)

    def in_one(self, seconds: float, workers: int) -> int:
        """How many episodes one of the workers plays in so many seconds, as far as is known."""
        return int(self.played / max(time.monotonic() - self.began, 1e-9) * seconds / workers)


def _runs(plan: Plan, workers: int, pace: _Pace) -> Iterator[Plan]:
    """The plan in runs of consecutive episodes, more of them where they are short: what is recorded does not depend on it."""
    done = 0
    while plan.episodes is None or done < plan.episodes:
        size = plan.num_envs  # of which some may be played in vain, where steps are counted
        if plan.episodes is not None:
            wanted = max(ROUNDS * size, pace.in_one(SECONDS, workers))
            size = min(max(size, min(wanted, -(-plan.episodes // (SHARES * workers)))), plan.episodes - done)
        yield replace(plan, first=plan.first + done, episodes=size, steps=None, runners=1)
        done += size


# ---- on a worker ----


def _played(sink: MakeSink[EpisodeBatch], plan: Plan) -> Iterator[EpisodeBatch]:
    with Overseer(plan.env, step_timeout=plan.step_timeout, is_watched=False), open_planned(plan) as environment:
        policy = policy_of(plan, environment)
        with open_runner(plan, 0, environment=environment, policy=policy, sink=sink) as runner:
            yield from _cut(runner.batches())


def _cut(batches: Iterator[EpisodeBatch]) -> Iterator[EpisodeBatch]:
    """The episodes in groups that follow from them alone. Raises what drawing them raises, after those before it."""
    held: list[EpisodeBatch] = []
    size, failure = 0, None
    while failure is None:
        try:
            batch = next(batches, None)
        except Exception as error:  # noqa: BLE001  raised below
            failure, batch = error, None
        if batch is None:
            break
        for number in range(len(batch)):
            held.append(batch.select(slice(number, number + 1)))
            size += held[-1].nbytes
            if len(held) == EPISODES or size >= BYTES:
                yield EpisodeBatch.concat(held)
                held, size = [], 0
    if held:
        yield EpisodeBatch.concat(held)
    if failure is not None:
        raise failure
