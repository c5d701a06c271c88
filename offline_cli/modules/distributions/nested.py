"""The head of Dict and Tuple actions: one head for each part."""

from __future__ import annotations

import math

import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.modules.distributions.head import ACCURACY, ActionHead, split
from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["Nested"]


class Nested(ActionHead):
    """Dict or Tuple: independent heads side by side; actions are trees."""

    def __init__(self, space: spaces.Dict | spaces.Tuple, parts: list[ActionHead]) -> None:
        super().__init__()
        self.keys = tuple(space.spaces) if isinstance(space, spaces.Dict) else None
        self.parts = nn.ModuleList(parts)
        self.sizes = [part.size for part in parts]
        self.size = sum(self.sizes)
        self.limits = _joined_limits(parts)

    def _heads(self, inputs: Tensor) -> list[tuple[ActionHead, Tensor]]:
        return list(zip(self._parts(), split(inputs, self.sizes), strict=True))

    def _parts(self) -> list[ActionHead]:
        return [part for part in self.parts if isinstance(part, ActionHead)]

    def _children(self, actions: Tree) -> list[Tree]:
        return [actions[key] for key in self.keys] if self.keys is not None else list(actions)

    def _joined(self, children: list[Tree]) -> Tree:
        return dict(zip(self.keys, children, strict=True)) if self.keys is not None else tuple(children)

    def logp(self, inputs: Tensor, actions: Tree) -> Tensor:
        """(B,): the parts' add up."""
        pairs = zip(self._heads(inputs), self._children(actions), strict=True)
        return torch.stack([head.logp(part, child) for (head, part), child in pairs]).sum(0)

    def entropy(self, inputs: Tensor) -> Tensor:
        """(B,): the parts' add up."""
        return torch.stack([head.entropy(part) for head, part in self._heads(inputs)]).sum(0)

    def greedy(self, inputs: Tensor) -> Tree:
        """A tree of (B, ...)."""
        return self._joined([head.greedy(part) for head, part in self._heads(inputs)])

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tree:
        """A tree of (B, ...)."""
        return self._joined([head.sample(part, generator) for head, part in self._heads(inputs)])

    def scores(self, inputs: Tensor, actions: Tree) -> dict[str, Tensor]:
        """`accuracy` where every discrete part is right, `mse` as the mean over the continuous parts."""
        found: dict[str, list[Tensor]] = {}
        for (head, part), child in zip(self._heads(inputs), self._children(actions), strict=True):
            for name, score in head.scores(part, child).items():
                found.setdefault(name, []).append(score)
        joined = {name: torch.stack(parts) for name, parts in found.items()}
        return {name: parts.amin(0) if name == ACCURACY else parts.mean(0) for name, parts in joined.items()}

    def stretched_by(self, environment: Space) -> Space:
        """See ActionHead."""
        assert isinstance(environment, (spaces.Dict, spaces.Tuple)), environment
        pairs = zip(self._parts(), self._children(environment.spaces), strict=True)
        parts = self._joined([head.stretched_by(child) for head, child in pairs])
        return spaces.Dict(parts) if isinstance(parts, dict) else spaces.Tuple(parts)

    def play_in(self, space: Space) -> None:
        """See ActionHead."""
        assert isinstance(space, (spaces.Dict, spaces.Tuple)), space
        for head, child in zip(self._parts(), self._children(space.spaces), strict=True):
            head.play_in(child)

    def for_env(self, actions: Tree) -> Tree:
        """A tree of arrays (B, ...)."""
        pairs = zip(self._parts(), self._children(actions), strict=True)
        return self._joined([head.for_env(child) for head, child in pairs])


def _joined_limits(parts: list[ActionHead]) -> Tensor | None:
    """(2, sum of sizes); None where no part has limits."""
    if all(part.limits is None for part in parts):
        return None
    free = torch.tensor([[-math.inf], [math.inf]])
    return torch.cat([free.expand(2, part.size) if part.limits is None else part.limits for part in parts], 1)
