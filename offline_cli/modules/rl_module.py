"""RLModule, what every policy is: named tensors in, named tensors out; refuses to know losses, data or environments.

The three forward methods follow RLlib: `forward_inference` to play greedily, `forward_exploration` to play with chance and
`forward_train` inside an update. Each takes a batch (`Columns.OBS` at least) and gives a dict with
`Columns.ACTION_DIST_INPUTS`, from which `action_head` makes actions, their likelihood and their entropy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.modules.distributions import ActionHead
from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["RLModule"]


class RLModule(nn.Module, ABC):
    """A policy over the given spaces. Subclasses define `_forward`, and override another forward where it differs."""

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        action_head: ActionHead,
        model_config: Mapping[str, Any] | None = None,
    ) -> None:
        """`model_config`: what connector pieces ask for by RLlib's names: `max_seq_len` of a stateful module."""
        super().__init__()
        self.model_config = dict(model_config or {})
        self.observation_space = observation_space
        self.action_space = action_space
        self.action_head = action_head

    @abstractmethod
    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """`batch[OBS]`: a tree of leaves (B, *shape). Gives at least ACTION_DIST_INPUTS, (B, action_head.size)."""

    def forward_inference(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """For playing greedily."""
        return self._forward(batch)

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """For playing with chance."""
        return self._forward(batch)

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """For an update: gradients flow."""
        return self._forward(batch)

    def get_initial_state(self) -> dict[str, Any]:
        """The state of one row before its first step; empty: the module remembers nothing between steps."""
        return {}

    def is_stateful(self) -> bool:
        """Whether the module remembers something between steps, and wants `state_in` and a time axis."""
        return bool(self.get_initial_state())

    def act(self, observations: Tree, *, explore: bool = False, generator: torch.Generator | None = None) -> Tree:
        """Actions (B, ...) for observations (B, ...): the likeliest, or drawn with `generator`.

        Box actions are in the units of networks, about [-1, 1]; `action_head.for_env` makes them the environment's.
        """
        with torch.inference_mode():
            batch = {Columns.OBS: observations}
            outputs = self.forward_exploration(batch) if explore else self.forward_inference(batch)
            inputs: Tensor = outputs[Columns.ACTION_DIST_INPUTS]
            return self.action_head.sample(inputs, generator) if explore else self.action_head.greedy(inputs)
