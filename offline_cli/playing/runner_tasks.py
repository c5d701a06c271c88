"""Plays a plan on an engine's workers, a block of episodes at a time.

An episode of single copies follows from plan and index alone, so that blocks change nothing. Of an environment's own vector
class each block begins anew from a seed of its own; its size then follows from what was recorded before, never from time.

A worker keeps the environment and the policy of the last plan that it played.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.util import Finalize
from typing import Any, Final, TypeVar

from offline_cli.engines.engine import Engine
from offline_cli.environments import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.playing.own_vector_slots import MakeSink
from offline_cli.playing.plan import EvaluationPlan, Plan
from offline_cli.playing.runner_factory import open_planned, open_runner, policy_of
from offline_cli.stop_signals import StopRequested, check, requested

__all__ = ["played_in_shares", "recorded_by_workers"]

ROUNDS: Final = 32  # episodes of a slot in one block, at most
SECONDS: Final = 2.0  # that a block takes about, where its episodes are short: so a task is worth its start
BYTES: Final = 16 << 20  # of a block, about
SHARES: Final = 4  # blocks of each worker, where the number of episodes is known
Taken = TypeVar("Taken")


def recorded_by_workers(
    plan: Plan, sink: MakeSink[EpisodeBatch], engine: Engine, *, workers: int
) -> Generator[EpisodeBatch, None, None]:
    """Whole episodes in order, as many as the plan has, or without end where it has steps; fewer once a signal has come.

    Raises what a worker raises, after all episodes that come before the failure.
    """
    pace = _Pace()
    try:
        with engine.streamed(partial(_played, sink), _blocks(plan, workers, pace)) as batches:
            for batch in batches:
                pace.played += len(batch)
                pace.nbytes += batch.nbytes
                yield batch
    except StopRequested:
        return


def played_in_shares(plan: EvaluationPlan, sink: MakeSink[Taken], engine: Engine) -> Generator[Taken, None, None]:
    """The plan's episodes on as many workers as it has runners. Raises what a worker raises, and StopRequested."""
    parts = plan.count if not plan.own_class else math.ceil(plan.count / plan.round_slots)
    shared = replace(plan, runners=min(SHARES * plan.runners, parts))
    with engine.streamed(partial(_played, sink), ((shared, part) for part in range(shared.runners))) as outcomes:
        yield from outcomes


@dataclass(slots=True)
class _Pace:
    """How fast episodes have come, from all workers, and how large they were."""

    played: int = 0
    nbytes: int = 0
    began: float = field(default_factory=time.monotonic)

    def size(self, workers: int, *, timed: bool) -> int:
        """Episodes of one block, as far as is known."""
        if not self.played:
            return 0
        by_bytes = BYTES * self.played // max(self.nbytes, 1)
        each = self.played / max(time.monotonic() - self.began, 1e-9) / workers
        return min(by_bytes, int(each * SECONDS)) if timed else by_bytes


def _blocks(plan: Plan, workers: int, pace: _Pace) -> Iterator[tuple[Plan, int]]:
    done = 0
    while plan.episodes is None or done < plan.episodes:
        most = ROUNDS * plan.num_envs
        if plan.episodes is not None:
            most = min(most, -(-plan.episodes // (SHARES * workers)))
        size = max(plan.num_envs, min(most, pace.size(workers, timed=not plan.own_class)))
        size = size if plan.episodes is None else min(size, plan.episodes - done)
        yield replace(plan, first=plan.first + done, episodes=size, steps=None, runners=1), 0
        done += size


# ---- on a worker ----

_kept: list[tuple[Plan, Environment, Any]] = []  # the last plan, without its episodes, with its environment and policy


def _played(sink: MakeSink[Taken], share: tuple[Plan, int]) -> Iterator[Taken]:
    """What runner `share[1]` of a plan gives. Raises StopRequested where that is not all."""
    plan, runner = share
    environment, policy = _opened(plan)
    how: dict[str, Any] = {"environment": environment, "policy": policy, "sink": sink}
    with open_runner(plan, runner, **how, stopped=lambda: requested() is not None) as playing:
        yield from playing.batches()
    check()


def _opened(plan: Plan) -> tuple[Environment, Any]:
    like = replace(plan, first=0, episodes=1, steps=None, runners=1)
    if not (_kept and _kept[0][0] == like):
        _close()
        environment = open_planned(plan)
        try:
            _kept.append((like, environment, policy_of(plan, environment)))
        except BaseException:
            environment.close()
            raise
        Finalize(None, _close, exitpriority=1)  # when the worker ends
    return _kept[0][1:]


def _close() -> None:
    while _kept:
        _kept.pop()[1].close()
