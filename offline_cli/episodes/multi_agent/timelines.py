"""When each agent got an observation: environment timesteps to the agent's own.

A timeline has one tag per environment timestep, lookback buffer included: the agent's timestep whose observation it got then,
counted from the agent's first in the whole episode, or SKIP where it got none. All timelines of an episode have one length and
one lookback, so that an index means the same moment to every agent.
"""

from __future__ import annotations

from typing import Any

from offline_cli.episodes.buffers.indexing import Indices
from offline_cli.episodes.buffers.lookback_buffer import InfiniteLookbackBuffer

__all__ = ["SKIP", "Timeline", "first_seen", "last_seen", "seen"]

SKIP = "S"


class Timeline(InfiniteLookbackBuffer):
    """Tags of one agent: a list that never becomes arrays. RLlib's own code can read it, in states for RLlib."""

    __slots__ = ()

    def get(self, indices: Indices = None, *, _ignore_last_ts: bool = False, **options: Any) -> Any:
        """As `InfiniteLookbackBuffer.get`. `_ignore_last_ts`, RLlib's word: for data that ends a step earlier."""
        if _ignore_last_ts:
            return InfiniteLookbackBuffer(self.data[:-1], self.lookback).get(indices, **options)
        return super().get(indices, **options)

    def copy(self) -> Timeline:
        """The same tags, in a list of their own."""
        return Timeline(self.data, self.lookback)


def seen(tags: list[Any]) -> list[int]:
    """The agent's timesteps among `tags`, in order."""
    return [tag for tag in tags if tag != SKIP]


def first_seen(tags: list[Any]) -> int:
    """The position of the first observation; the number of tags where there is none."""
    return next((at for at, tag in enumerate(tags) if tag != SKIP), len(tags))


def last_seen(tags: list[Any]) -> int:
    """The position of the last observation; -1 where there is none."""
    return next((at for at in range(len(tags) - 1, -1, -1) if tags[at] != SKIP), -1)
