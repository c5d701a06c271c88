"""Plan: what determines the episodes of a recording or an evaluation, as one value that is sent to processes.

Episode i, counted from 0, is the i-th that begins. It is reset with `reset_seed(seed, i)`, and plays to its own end: "the first
N to finish" would favour short ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from offline_cli.environments import EnvironmentSpec
from offline_cli.policies.policy import PolicyOptions
from offline_cli.policies.seeds import Purpose, reset_seed

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that determines the episodes, and where they are played."""

    environment: EnvironmentSpec
    policies: tuple[str, ...] = ()  # one for all, or AGENT=POLICY for several agents
    opening: PolicyOptions = field(default_factory=PolicyOptions)  # how they are opened
    seed: int = 0
    purpose: Purpose = Purpose.RECORD
    round_: int = 0  # tells the checks of one run apart
    first: int = 0  # index of the first episode to play
    episodes: int | None = None  # how many to play from there; None: see steps
    steps: int | None = None  # play the fewest episodes that have so many
    infos: str = "plain"  # "all" | "plain" | "none": see `infos.py`
    vectorize: str = "sync"  # "sync" | "async"
    num_envs: int = 16  # copies of the environment, in each process that plays
    step_timeout: float | None = None  # seconds for a step of an `async` copy; None: any time
    threads: int | None = 1  # of torch; None: as many as there are

    @property
    def slots(self) -> int:
        """Copies that play side by side: no more than there are episodes."""
        return self.num_envs if self.episodes is None else max(1, min(self.num_envs, self.episodes))

    def reset_seed(self, episode: int) -> int:
        """What episode `episode` is reset with."""
        return reset_seed(self.seed, episode, self.purpose, self.round_)
