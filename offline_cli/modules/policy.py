"""The feed-forward policy of behaviour cloning, and how to build it from spaces; refuses recurrent networks (not built yet)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.modules.distributions import ActionHead, build_head
from offline_cli.modules.networks import ACTIVATIONS, ObservationEncoder, mlp
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import Space

__all__ = ["FeedForwardPolicy", "build_module"]


class FeedForwardPolicy(RLModule):
    """Encoder, hidden layers, one linear layer to the action head's inputs."""

    def __init__(
        self, observation_space: Space, action_space: Space, head: ActionHead, *, hidden: Sequence[int], activation: str
    ) -> None:
        super().__init__(observation_space, action_space, head)
        self.encoder = ObservationEncoder(observation_space)
        self.network = mlp([self.encoder.size, *hidden, head.size], activation)

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        outputs: Tensor = self.network(self.encoder(batch[Columns.OBS]))
        return {Columns.ACTION_DIST_INPUTS: outputs.float()}


def build_module(
    observation_space: Space,
    action_space: Space,
    *,
    hidden: Sequence[int] = (256, 256),
    activation: str = "relu",
    action_scale: str = "unknown",
    seed: int = 0,
) -> RLModule:
    """A policy with fresh weights that follow from `seed` alone, on the CPU.

    `activation` is a key of `networks.ACTIVATIONS`, else ValueError. Raises UnsupportedSpace, and BadConfig for Box actions of
    unknown scale.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is none of {list(ACTIVATIONS)}")
    head = build_head(action_space, action_scale=action_scale)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FeedForwardPolicy(observation_space, action_space, head, hidden=hidden, activation=activation)
