"""The order of every epoch: each step exactly once, as follows from the run's seed and the number of the epoch alone.

So the position in the data is the update number, and a resumed run goes on with the batches that would have come next. Steps in
memory are permuted as a whole. Steps on disk lie in units (neighbouring records): an epoch permutes the units, takes a pool of
them at a time, and permutes the steps of each pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from offline_cli.playing.slots import draw

__all__ = ["EpochOrder", "PoolPlan", "of_window"]

STEPS, WINDOWS, UNITS, POOLS = 11, 12, 13, 14  # set these seeds apart from others drawn from the same run seed
PLANS: Final = 2  # that are kept: while batches come from one epoch, the first pool of the next one is read


@dataclass(frozen=True, slots=True, eq=False)
class PoolPlan:
    """How an epoch goes through units on disk."""

    units: Tensor  # (units,) int64, their numbers; a pool is `units_per_pool` neighbours of these
    starts: Tensor  # (pools,) int64, the step of the epoch with which each pool begins


class EpochOrder:
    """The orders that one seed gives; may be asked by two threads."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.plan = lru_cache(PLANS)(self._plan)

    def of_steps(self, epoch: int, steps: int) -> Tensor:
        """(steps,) int64: the order of steps in memory."""
        return _shuffled(self._seed, STEPS, epoch, steps)

    def _plan(self, epoch: int, steps: int, unit: int, units_per_pool: int) -> PoolPlan:
        """The plan for `steps` steps in units of so many: all are of one size but the last of the file, wherever it comes.

        Drawn once per epoch, however many pools there are.
        """
        count = -(-steps // unit)
        units = _shuffled(self._seed, UNITS, epoch, count)
        starts = torch.arange(0, count, units_per_pool) * unit
        short = (units == count - 1).nonzero()[0, 0]
        starts[short // units_per_pool + 1 :] -= count * unit - steps
        return PoolPlan(units, starts)

    def of_pool(self, number: int, steps: int) -> Tensor:
        """(steps,) int64: the order of the steps of one pool, which are counted through all epochs."""
        return _shuffled(self._seed, POOLS, number, steps)


def of_window(seed: int, number: int, steps: int) -> Tensor:
    """(steps,) int64: the order in which the steps of a window are written to disk."""
    return _shuffled(seed, WINDOWS, number, steps)


def _shuffled(seed: int, purpose: int, number: int, count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(draw(seed, purpose, number)))
