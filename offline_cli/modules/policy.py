"""The feed-forward policy of behaviour cloning, and how to build it from spaces; refuses recurrent networks (not built yet)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.errors import BadConfig
from offline_cli.modules.distributions import ActionHead, build_head
from offline_cli.modules.networks import ACTIVATIONS, BY_BOUNDS, ObservationEncoder, is_image, mlp
from offline_cli.modules.rl_module import RLModule
from offline_cli.options.cloning import ACTIVATION, HIDDEN
from offline_cli.spaces import Space, leaf_spaces

__all__ = ["FeedForwardPolicy", "build_module", "fewest_numbers"]

MAX_LAYERS = 1000
MAX_NUMBERS = 1 << 30  # 4 GiB of float32, and three times that while Adam trains them


class FeedForwardPolicy(RLModule):
    """Encoder, hidden layers, one linear layer to the action head's inputs."""

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        head: ActionHead,
        *,
        hidden: Sequence[int],
        activation: str,
        uint8_scaling: str = BY_BOUNDS,
    ) -> None:
        super().__init__(observation_space, action_space, head)
        self.encoder = ObservationEncoder(observation_space, uint8_scaling=uint8_scaling)
        self.network = mlp([self.encoder.size, *hidden, head.size], activation)

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        outputs: Tensor = self.network(self.encoder(batch[Columns.OBS]))
        return {Columns.ACTION_DIST_INPUTS: outputs.float()}


def fewest_numbers(observation_space: Space, action_space: Space, hidden: Sequence[int]) -> int:
    """The weights that such a policy has at least: counted before anything is made, because a space may say any size."""
    first, last = (hidden[0], hidden[-1]) if hidden else (1, 1)
    inner = sum(wide * next_wide + next_wide for wide, next_wide in itertools.pairwise(hidden))
    seen = sum(_width(leaf) for leaf in leaf_spaces(observation_space).values() if not is_image(leaf))
    chosen = sum(_width(leaf) for leaf in leaf_spaces(action_space).values())
    return first * seen + inner + last * chosen


def _width(leaf: Space) -> int:
    """Columns that a leaf has in a network: one for each choice, or each number."""
    if isinstance(leaf, spaces.Discrete):
        return int(leaf.n)
    if isinstance(leaf, spaces.MultiDiscrete):
        return sum(map(int, leaf.nvec.ravel()))
    return math.prod(leaf.shape or ())


def build_module(
    observation_space: Space,
    action_space: Space,
    *,
    hidden: Sequence[int] = HIDDEN.default,
    activation: str = ACTIVATION.default,
    action_scale: str = "unknown",
    uint8_scaling: str = BY_BOUNDS,
    seed: int | None = 0,
) -> RLModule:
    """A policy with fresh weights that follow from `seed` alone (None: from torch's random generator), on the CPU.

    `activation` is a key of `networks.ACTIVATIONS`, `uint8_scaling` BY_BOUNDS or BY_255, else ValueError. Raises
    UnsupportedSpace, and BadConfig for Box actions of unknown scale, and for a network that no machine holds.
    """
    numbers = fewest_numbers(observation_space, action_space, hidden)
    if len(hidden) > MAX_LAYERS:
        raise BadConfig(f"{len(hidden)} hidden layers", where="hidden layers", fix=f"at most {MAX_LAYERS}")
    if numbers > MAX_NUMBERS:
        fix = "check the spaces (`offline-cli inspect`) and the widths of the hidden layers"
        raise BadConfig(f"a network of {numbers} weights", where="observation space, hidden layers, action space", fix=fix)
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is none of {list(ACTIVATIONS)}")
    head = build_head(action_space, action_scale=action_scale)
    with nullcontext() if seed is None else torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        return FeedForwardPolicy(
            observation_space, action_space, head, hidden=hidden, activation=activation, uint8_scaling=uint8_scaling
        )
