"""What an algorithm makes its modules for: spaces, the scale of actions, and the network that the user chose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from offline_cli.modules.network import Critic, Network
from offline_cli.modules.networks import BY_BOUNDS
from offline_cli.modules.rl_module import RLModule
from offline_cli.playing.seeds import draw, for_torch
from offline_cli.spaces import Space

__all__ = ["Task"]

CRITIC_WEIGHTS = 15  # sets these seeds apart from others drawn from the same run seed


@dataclass(slots=True, eq=False)
class Task:
    """Makes modules on the CPU; all weights follow from `seed`, and from the order in which modules are made."""

    observation_space: Space  # what the policy sees: after the learner pipeline
    action_space: Space
    action_scale: str  # "env" | "normalized"; "unknown" only where no action is a Box
    network: Network
    seed: int = 0
    uint8_scaling: str = BY_BOUNDS
    made: RLModule | None = field(default=None, init=False)  # the policy, once it is there
    _critics: int = field(default=0, init=False)

    def policy(self) -> RLModule:
        """A policy over the spaces. Raises UnsupportedSpace, and BadConfig for Box actions of unknown scale."""
        with _seeded(self.seed):
            self.made = self.network.policy(
                self.observation_space, self.action_space, action_scale=self.action_scale, uint8_scaling=self.uint8_scaling
            )
        return self.made

    def critic(self, *, of_actions: bool = False, outputs: int = 1) -> Critic:
        """V(s), or Q(s, a) of actions in the units of networks: (B, outputs) float32. Each call gives other weights."""
        self._critics += 1
        with _seeded(draw(self.seed, CRITIC_WEIGHTS, self._critics)):
            return self.network.critic(
                self.observation_space,
                self.action_space if of_actions else None,
                outputs=outputs,
                uint8_scaling=self.uint8_scaling,
            )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(for_torch(seed))
        yield
