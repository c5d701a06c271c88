"""What every action head does, on rows of numbers and on trees of actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import torch
from torch import Tensor, nn

from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["ACCURACY", "MSE", "ActionHead", "rows", "split"]

ACCURACY: Final = "accuracy"  # share of actions whose greedy guess is right in every component
MSE: Final = "mse"  # mean over dimensions of the squared error, in the units of networks: 2 is the width of the bounds


class ActionHead(nn.Module, ABC):
    """A distribution over one action space, made from rows of `size` network outputs."""

    size: int
    limits: Tensor | None  # (2, size): the least and the most that each input may be; None: no input is limited

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("limits", None, persistent=False)

    def limited(self, outputs: Tensor) -> Tensor:
        """What a network puts out (B, ..., size) as inputs of the distribution that is learned, played and recorded."""
        return outputs if self.limits is None else torch.clamp(outputs, self.limits[0], self.limits[1])

    @abstractmethod
    def logp(self, inputs: Tensor, actions: Tree) -> Tensor:
        """(B,) log-likelihood of `actions` (B, ...) under `inputs` (B, size)."""

    @abstractmethod
    def entropy(self, inputs: Tensor) -> Tensor:
        """(B,) entropy in nats."""

    @abstractmethod
    def greedy(self, inputs: Tensor) -> Tree:
        """The likeliest actions (B, ...)."""

    @abstractmethod
    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tree:
        """Drawn actions (B, ...)."""

    @abstractmethod
    def scores(self, inputs: Tensor, actions: Tree) -> dict[str, Tensor]:
        """How close the greedy actions come, per row (B,): `accuracy` (0 or 1) or `mse`."""

    @abstractmethod
    def for_env(self, actions: Tree) -> Tree:
        """Arrays (B, ...) as an environment takes them: its units, bounds and dtype."""

    def stretched_by(self, environment: Space) -> Space:
        """The space whose bounds `for_env` stretches actions to, in an environment with this action space."""
        return environment

    def play_in(self, space: Space) -> None:
        """From now on `for_env` is for an environment with this action space; until then, for one with the head's own."""


def split(inputs: Tensor, sizes: list[int]) -> list[Tensor]:
    """Columns of `inputs` (B, sum of sizes) in blocks."""
    return list(torch.split_with_sizes(inputs, sizes, -1))


def rows(actions: Tensor) -> Tensor:
    """(B, n) for actions (B, *shape), a shape of () included."""
    return actions.reshape(actions.shape[0], -1)
