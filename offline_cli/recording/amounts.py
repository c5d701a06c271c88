"""How much is recorded: so many episodes, or the fewest that have so many steps; refuses to give out one more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.playing.plan import Plan
from offline_cli.progress import Progress

__all__ = ["Amount", "is_enough", "limited", "progress_at", "rest_of"]


@dataclass(frozen=True, slots=True)
class Amount:
    """Whole episodes and their steps."""

    episodes: int = 0
    steps: int = 0

    def plus(self, batch: EpisodeBatch) -> Amount:
        return Amount(self.episodes + len(batch), self.steps + batch.num_steps)


def is_enough(plan: Plan, have: Amount) -> bool:
    """Whether `have` is all that `plan` asks for."""
    return have.episodes >= plan.episodes if plan.episodes is not None else have.steps >= (plan.steps or 0)


def rest_of(plan: Plan, have: Amount) -> Plan:
    """What is left of `plan` to play; it may be nothing, which `is_enough` tells."""
    return replace(
        plan,
        first=plan.first + have.episodes,
        episodes=None if plan.episodes is None else max(0, plan.episodes - have.episodes),
        steps=None if plan.steps is None else max(0, plan.steps - have.steps),
    )


def limited(batches: Iterator[EpisodeBatch], plan: Plan) -> Iterator[EpisodeBatch]:
    """The first of the episodes, as many as `plan` asks for."""
    have = Amount()
    for batch in batches:
        kept = batch.select(slice(0, _wanted(batch, plan, have)))
        have = have.plus(kept)
        yield kept
        if is_enough(plan, have):
            return


def _wanted(batch: EpisodeBatch, plan: Plan, have: Amount) -> int:
    """How many of the batch's episodes."""
    if plan.episodes is not None:
        return min(len(batch), plan.episodes - have.episodes)
    last = int(np.searchsorted(np.cumsum(batch.lengths), (plan.steps or 0) - have.steps))  # the one that reaches them
    return min(len(batch), last + 1)


def progress_at(plan: Plan, have: Amount, batch: EpisodeBatch) -> Progress:
    """Where the recording is, after `batch`, whose mean return and length are told."""
    figures = {"return": float(batch.rewards.sum()) / len(batch), "length": float(batch.lengths.mean())}
    if plan.episodes is not None:
        return Progress("recording", have.episodes, plan.episodes, "episodes", {**figures, "steps": float(have.steps)})
    steps = plan.steps or 0
    return Progress("recording", min(have.steps, steps), steps, "steps", {**figures, "episodes": float(have.episodes)})
