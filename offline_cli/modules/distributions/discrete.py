"""ActionHead, the base class of action heads, and the heads of discrete actions: a choice, several choices, bits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["ACCURACY", "MSE", "ActionHead", "Categorical", "MultiBernoulli", "MultiCategorical", "rows", "split"]

ACCURACY: Final = "accuracy"  # share of actions whose greedy guess is right in every component
MSE: Final = "mse"  # mean over dimensions of the squared error, in the units of networks: 2 is the width of the bounds


class _Limited(torch.autograd.Function):
    """`torch.clamp`, but that an output above its limit learns to come down again: without a gradient it would stay there.

    What is large at first, as from observations that nobody scaled, would keep the widest Gaussian for ever. Below the least
    nothing is learned: experts are exact, and likelihood alone would go on.
    """

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, low: Tensor, high: Tensor) -> Tensor:
        ctx.save_for_backward(outputs, low, high)
        return torch.clamp(outputs, low, high)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        outputs, low, high = ctx.saved_tensors
        passed = torch.where(outputs > high, gradient.clamp(min=0), gradient)
        return torch.where(outputs < low, torch.zeros_like(passed), passed), None, None


class ActionHead(nn.Module, ABC):
    """A distribution over one action space, made from rows of `size` network outputs."""

    size: int
    dtype: np.dtype[Any]  # of the space, where it is one of choices
    limits: Tensor | None  # (2, size): the least and the most that each input may be; None: no input is limited

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("limits", None, persistent=False)

    def limited(self, outputs: Tensor) -> Tensor:
        """What a network puts out (B, ..., size) as inputs of the distribution that is learned, played and recorded."""
        if self.limits is None:
            return outputs
        learned = torch.is_grad_enabled() and outputs.requires_grad
        limit = _Limited.apply if learned else torch.clamp
        limited: Tensor = limit(outputs, self.limits[0], self.limits[1])
        return limited

    def forms(self) -> list[Any]:
        """The GaussianForm of each part that is one: where a network's outputs are read in more than one way."""
        found: list[Any] = [part.form for part in self.modules() if hasattr(part, "form")]
        return found

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

    def scores(self, inputs: Tensor, actions: Tree) -> dict[str, Tensor]:
        """How close the greedy actions come, per row (B,): `accuracy` (1 where every component is right, else 0) or `mse`."""
        return {ACCURACY: rows(self.greedy(inputs) == actions).all(-1).float()}

    def for_env(self, actions: Tree) -> Tree:
        """Arrays (B, ...) as an environment takes them: its units, bounds and dtype."""
        return np.asarray(actions).astype(self.dtype, copy=False)

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


class Categorical(ActionHead):
    """Discrete(n, start): one logit per choice."""

    def __init__(self, space: spaces.Discrete[Any]) -> None:
        super().__init__()
        self.size, self.start, self.dtype = int(space.n), int(space.start), np.dtype(space.dtype)

    def logp(self, inputs: Tensor, actions: Tree) -> Tensor:
        """(B,) for actions (B,)."""
        choice = actions - self.start if self.start else actions
        return -functional.cross_entropy(inputs, choice.long(), reduction="none")

    def entropy(self, inputs: Tensor) -> Tensor:
        """(B,) nats."""
        return _categorical_entropy(inputs)

    def greedy(self, inputs: Tensor) -> Tensor:
        """(B,) int64."""
        choice = inputs.argmax(-1)
        return choice + self.start if self.start else choice

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B,) int64."""
        return _draw_category(inputs, generator) + self.start


class MultiCategorical(ActionHead):
    """MultiDiscrete(nvec, start): the logits of each component, one after the other."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        super().__init__()
        self.shape, self.dtype = space.nvec.shape, np.dtype(space.dtype)
        self.counts = [int(n) for n in space.nvec.ravel()]
        self.size = sum(self.counts)
        self.start: Tensor
        self.register_buffer("start", torch.as_tensor(space.start.ravel().astype(np.int64)), persistent=False)

    def logp(self, inputs: Tensor, actions: Tree) -> Tensor:
        """(B,) for actions (B, *nvec.shape): components are independent, so theirs add up."""
        choices = (rows(actions) - self.start).long()
        parts = split(inputs, self.counts)
        losses = [functional.cross_entropy(part, choices[:, i], reduction="none") for i, part in enumerate(parts)]
        return -torch.stack(losses).sum(0)

    def entropy(self, inputs: Tensor) -> Tensor:
        """(B,) nats."""
        return torch.stack([_categorical_entropy(part) for part in split(inputs, self.counts)]).sum(0)

    def greedy(self, inputs: Tensor) -> Tensor:
        """(B, *nvec.shape) int64."""
        return self._joined([part.argmax(-1) for part in split(inputs, self.counts)])

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, *nvec.shape) int64."""
        return self._joined([_draw_category(part, generator) for part in split(inputs, self.counts)])

    def _joined(self, choices: list[Tensor]) -> Tensor:
        flat = torch.stack(choices, -1) + self.start
        return flat.reshape(-1, *self.shape)


class MultiBernoulli(ActionHead):
    """MultiBinary(n): one logit per bit."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        super().__init__()
        self.shape, self.dtype = tuple(space.shape), np.dtype(space.dtype)
        self.size = math.prod(self.shape)

    def logp(self, inputs: Tensor, actions: Tree) -> Tensor:
        """(B,) for actions (B, *n) of 0 and 1."""
        bits = rows(actions).to(inputs.dtype)
        return -functional.binary_cross_entropy_with_logits(inputs, bits, reduction="none").sum(-1)

    def entropy(self, inputs: Tensor) -> Tensor:
        """(B,) nats."""
        p = torch.sigmoid(inputs)
        return functional.binary_cross_entropy_with_logits(inputs, p, reduction="none").sum(-1)

    def greedy(self, inputs: Tensor) -> Tensor:
        """(B, *n) int64."""
        return (inputs > 0).long().reshape(-1, *self.shape)

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, *n) int64."""
        chance = torch.rand(inputs.shape, generator=generator, device=inputs.device, dtype=inputs.dtype)
        return (chance < torch.sigmoid(inputs)).long().reshape(-1, *self.shape)


def _categorical_entropy(logits: Tensor) -> Tensor:
    logp = functional.log_softmax(logits, -1)
    return -(logp.exp() * logp).sum(-1)


def _draw_category(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """Gumbel's trick: the argmax of logit minus log of an exponential draw; nothing here waits for the device."""
    chance = torch.empty_like(logits).exponential_(generator=generator)
    return (functional.log_softmax(logits, -1) - chance.log()).argmax(-1)
