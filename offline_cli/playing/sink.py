"""What becomes of what an env runner plays: steps that are kept to be written, or returns and lengths alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from offline_cli.playing.plan import Plan
from offline_cli.playing.slots import Index
from offline_cli.policies.policy import Acted
from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["MakeSink", "Sink"]

Taken = TypeVar("Taken", covariant=True)


class Sink(Protocol[Taken]):
    """Gets each step of S slots; episodes are numbered from 0 as the runner begins them."""

    row_bytes: int  # that a step of one slot takes until its episode is taken; 0: nothing is kept of steps

    @property
    def full(self) -> bool:
        """Whether `take` must come before the next step."""

    def begin(self, slots: Index, episodes: Index) -> None:
        """These slots begin these episodes at the next step."""

    def act(self, obs: Tree, infos: NDArray[Any] | None, acted: Acted) -> None:
        """What was seen, leaves (at least S, ...), and done about it; rows of slots without an episode say nothing."""

    def reward(self, rewards: NDArray[Any]) -> None:
        """What came of it, (S,); ends the step."""

    def end(self, slots: Index, flags: tuple[NDArray[Any], NDArray[Any]], finals: Tree, infos: NDArray[Any] | None) -> None:
        """The episodes of these k slots have ended with the last step; flags: terminated and truncated, (k,) each.

        The arrays are the sink's own from now on.
        """

    def take(self, limit: int | None = None) -> Taken | None:
        """The whole episodes that come next, up to number `limit`; None where there are none."""


MakeSink = Callable[[Plan, int, int, tuple[Space, Space], str], Sink[Taken]]
"""From plan, runner, number of slots, spaces and the policy's fingerprint; it travels to runner processes."""
