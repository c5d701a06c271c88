"""What an env runner asks for actions, and tells what came of them; refuses nothing, plays nothing itself."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from offline_cli.playing.slots import Index, Slots
from offline_cli.policies.policy import Acted
from offline_cli.trees import Tree

__all__ = ["Actor", "PolicyFailure"]


class PolicyFailure(Exception):
    """The policy, or a piece around it, raised; `row` is the first slot that it raises for alone."""

    def __init__(self, row: int, cause: BaseException, who: str = "the policy") -> None:
        super().__init__(str(cause))
        self.row, self.cause, self.who = row, cause, who


class Actor(Protocol):
    """A policy for S slots. All methods raise PolicyFailure."""

    padded: int  # rows that it wants observations to have, at least S

    def begin(self, slots: Index, episodes: Index, at: Slots) -> None:
        """These slots begin these episodes (their indices in the recording), at the observations that `at` has."""

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """Observations: leaves (padded, ...); chance: (S, size). Gives S rows; those of idle slots are some valid actions."""

    def end(self, slots: Index, at: Slots, finals: Tree, infos: NDArray[Any] | None) -> None:
        """The last step has ended the episodes of these slots; `finals` and `infos`: see `Slots.finals`."""

    def went_on(self, at: Slots, live: NDArray[np.bool_]) -> None:
        """The last step has ended none of the episodes in slots that are `live`."""
