"""A recording played by an engine's workers: runs of consecutive episodes, the same for any number of workers.

An episode follows from plan and index alone, so that a run of them is played anywhere, and again where its worker dies. What a
worker yields is cut by episodes and bytes, never by time: it is the same each time. An environment's own vector class, and
pieces that learn, are not for this: their episodes depend on those before them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Final

from offline_cli.engines.engine import Engine
from offline_cli.engines.overseer import Overseer
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.playing.own_vector_slots import MakeSink
from offline_cli.playing.plan import Plan
from offline_cli.playing.runner_factory import open_planned, open_runner, policy_of

__all__ = ["played_by_engine"]

ROUNDS: Final = 32  # episodes of a slot in one run: slots are seldom idle at its end, and a task is worth its start
SHARES: Final = 4  # runs of each worker, where the number of episodes is known
EPISODES: Final = 512  # given at a time, or as many as have
BYTES: Final = 4 << 20


def played_by_engine(
    plan: Plan, sink: MakeSink[EpisodeBatch], engine: Engine, *, workers: int, stopped: Callable[[], bool]
) -> Generator[EpisodeBatch, None, None]:
    """Whole episodes in order, as many as the plan has, or without end where it has steps.

    Raises what a runner raises, after all episodes that come before the failure. `stopped` is called often.
    """
    with engine.streamed(partial(_played, sink), _runs(plan, workers), stopped=stopped) as batches:
        yield from batches


def _runs(plan: Plan, workers: int) -> Iterator[Plan]:
    """The plan in parts of consecutive episodes."""
    size = plan.num_envs  # of which some may be played in vain, where steps are counted
    if plan.episodes is not None:
        size = max(size, min(ROUNDS * size, -(-plan.episodes // (SHARES * workers))))
    for done in count(step=size):
        if plan.episodes is not None and done >= plan.episodes:
            return
        episodes = size if plan.episodes is None else min(size, plan.episodes - done)
        yield replace(plan, first=plan.first + done, episodes=episodes, steps=None, runners=1)


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
