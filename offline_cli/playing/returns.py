"""What `evaluate` gives back; all of it has a form in JSON.

Returns and lengths of episodes: what an evaluation keeps of what is played.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.playing.plan import Plan
from offline_cli.playing.slots import Index
from offline_cli.policies.policy import Acted
from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["EvaluateResult", "Outcomes", "Returns"]


@dataclass(frozen=True, slots=True)
class EvaluateResult:
    """Whole episodes of one policy."""

    episodes: int
    return_mean: float
    return_std: float  # sample standard deviation
    return_ci95: float  # half the width of the 95% confidence interval of the mean
    return_min: float
    return_max: float
    length_mean: float  # steps
    environment: str
    explore: bool  # actions were drawn, not the likeliest
    seed: int
    checkpoint: int | None = None  # the run is not finished, and this update's policy played; None: it is

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """What E whole episodes came to, in any order."""

    indices: Index  # (E,) which they are
    returns: NDArray[np.float64]  # (E,) undiscounted, in the environment's units
    lengths: NDArray[np.int64]  # (E,) steps

    def __len__(self) -> int:
        return len(self.indices)

    @classmethod
    def in_order(cls, parts: Sequence[Outcomes]) -> Outcomes:
        """All of them, by index."""
        indices, returns, lengths = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("indices", "returns", "lengths")
        )
        order = np.argsort(indices)
        return cls(indices[order], returns[order], lengths[order])


class Returns:
    """See Sink; `take` gives Outcomes."""

    row_bytes = 0

    def __init__(self, plan: Plan, runner: int, slots: int, spaces: tuple[Space, Space], fingerprint: str) -> None:
        """See MakeSink."""
        self._plan, self._runner = plan, runner
        self._episode = np.zeros(slots, np.int64)
        self._sums = np.zeros(slots)
        self._steps = np.zeros(slots, np.int64)
        self._ended: list[tuple[Index, NDArray[np.float64], NDArray[np.int64]]] = []

    @property
    def full(self) -> bool:
        """Whether an episode has ended: progress is told by episode."""
        return bool(self._ended)

    def begin(self, slots: Index, episodes: Index) -> None:
        """See Sink."""
        self._episode[slots], self._sums[slots], self._steps[slots] = episodes, 0.0, 0

    def act(self, obs: Tree, infos: NDArray[Any] | None, acted: Acted) -> None:
        """Nothing."""

    def reward(self, rewards: NDArray[Any]) -> None:
        """See Sink."""
        self._sums += rewards
        self._steps += 1

    def end(self, slots: Index, flags: tuple[NDArray[Any], NDArray[Any]], finals: Tree, infos: NDArray[Any] | None) -> None:
        """See Sink."""
        self._ended.append((self._plan.indices(self._runner, self._episode[slots]), self._sums[slots], self._steps[slots]))

    def take(self, limit: int | None = None) -> Outcomes | None:
        """All that have ended, whatever their order."""
        ended, self._ended = self._ended, []
        return Outcomes.in_order([Outcomes(*part) for part in ended]) if ended else None
