"""The random numbers of a policy: uniform numbers per slot and step.

Every random choice of a policy is a function of uniform numbers in [0, 1), so that episodes keep theirs whichever slot and
block they are played in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from offline_cli.playing.plan import Plan

__all__ = ["Chance", "EpisodeChance", "RoundChance", "SharedChance"]

AHEAD = 64  # steps that numbers are drawn ahead: one call instead of so many, which gives the same


class Chance(Protocol):
    """Uniform numbers for each step."""

    def begin(self, slots: NDArray[np.int64], episodes: NDArray[np.int64]) -> None:
        """These slots begin these episodes."""

    def draw(self) -> NDArray[np.float64]:
        """(slots, size) for the next step."""


class EpisodeChance:
    """One generator per episode."""

    def __init__(self, plan: Plan, slots: int, size: int) -> None:
        self._plan = plan
        self._generators: list[Any] = [None] * slots
        self._ahead = np.zeros((slots, AHEAD, size))
        self._t = np.ones(slots, np.int64)  # steps into the numbers drawn; a slot that has not begun never gets to 0
        self._slots = np.arange(slots)
        self._none = None if size else np.zeros((slots, 0))

    def begin(self, slots: NDArray[np.int64], episodes: NDArray[np.int64]) -> None:
        """See Chance."""
        if self._none is not None:
            return
        for slot, episode in zip(slots.tolist(), episodes.tolist(), strict=True):
            self._generators[slot] = np.random.Generator(np.random.PCG64(self._plan.chance_key(episode)))
        self._t[slots] = 0

    def draw(self) -> NDArray[np.float64]:
        """See Chance."""
        if self._none is not None:
            return self._none
        at = self._t % AHEAD
        for slot in np.flatnonzero(at == 0).tolist():
            if self._generators[slot] is not None:
                self._generators[slot].random(out=self._ahead[slot])
        self._t += 1
        drawn: NDArray[np.float64] = self._ahead[self._slots, at]
        return drawn


class SharedChance:
    """One generator for all slots of an environment's own vector class, whose own chance is shared as well."""

    def __init__(self, seed: int, slots: int, size: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._shape = AHEAD, slots, size
        self._ahead: Iterator[NDArray[np.float64]] = iter(())  # (slots, size) for each step
        self._none = None if size else np.zeros((slots, size))

    def begin(self, slots: NDArray[np.int64], episodes: NDArray[np.int64]) -> None:
        """Nothing."""

    def draw(self) -> NDArray[np.float64]:
        """See Chance."""
        if self._none is not None:
            return self._none
        drawn = next(self._ahead, None)
        if drawn is None:
            self._ahead = iter(self._generator.random(self._shape))
            drawn = next(self._ahead)
        return drawn


class RoundChance:
    """One generator for all slots of each round of an environment's own vector class."""

    def __init__(self, plan: Plan, slots: int, size: int) -> None:
        self._plan, self._shape = plan, (slots, size)
        self._generator = np.random.default_rng(0)

    def begin(self, slots: NDArray[np.int64], episodes: NDArray[np.int64]) -> None:
        """These are all the episodes of the next round."""
        self._generator = np.random.default_rng(self._plan.chance_key(int(episodes[0])))

    def draw(self) -> NDArray[np.float64]:
        """See Chance."""
        return self._generator.random(self._shape)
