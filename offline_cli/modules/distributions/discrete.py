"""ActionHead, the base class of action heads, and the heads of discrete actions: a choice, several choices, bits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, distributions, nn

from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["ACCURACY", "MSE", "ActionHead", "Categorical", "MultiBernoulli", "MultiCategorical", "TorchHead", "rows", "split"]

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
        return [part.form for part in self.modules() if hasattr(part, "form")]

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
        """Actions (B, ...), drawn as RLlib draws them: the same random numbers give the same actions."""

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


class TorchHead(ActionHead):
    """An action head over one of torch's distributions."""

    @abstractmethod
    def distribution(self, inputs: Tensor) -> Any:
        """A `torch.distributions.Distribution` of B rows."""

    @abstractmethod
    def events(self, inputs: Tensor, actions: Tensor) -> Tensor:
        """`actions` (B, ...) as the distribution takes them."""

    def logp(self, inputs: Tensor, actions: Tree) -> Tensor:
        """(B,) log-likelihood, or log-density, of actions (B, ...)."""
        found: Tensor = self.distribution(inputs).log_prob(self.events(inputs, actions))
        return found

    def entropy(self, inputs: Tensor) -> Tensor:
        """(B,) nats; differential entropy of densities."""
        found: Tensor = self.distribution(inputs).entropy()
        return found


class Categorical(TorchHead):
    """Discrete(n, start): one logit per choice."""

    def __init__(self, space: spaces.Discrete[Any]) -> None:
        super().__init__()
        self.size, self.start, self.dtype = int(space.n), int(space.start), np.dtype(space.dtype)

    def distribution(self, inputs: Tensor) -> Any:
        """See TorchHead."""
        return distributions.Categorical(logits=inputs, validate_args=False)

    def events(self, inputs: Tensor, actions: Tensor) -> Tensor:
        """(B,) counted from 0."""
        return actions - self.start

    def greedy(self, inputs: Tensor) -> Tensor:
        """(B,) int64."""
        return inputs.argmax(-1) + self.start

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B,) int64."""
        return torch.multinomial(torch.softmax(inputs.detach(), -1), 1, True, generator=generator)[:, 0] + self.start


class MultiCategorical(ActionHead):
    """MultiDiscrete(nvec, start): the logits of each component, one after the other; components are independent."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        super().__init__()
        self.shape, self.dtype = space.nvec.shape, np.dtype(space.dtype)
        self.counts = [int(n) for n in space.nvec.ravel()]
        self.size = sum(self.counts)
        starts = space.start.ravel().tolist()
        self.parts = [
            Categorical(spaces.Discrete(count, start=start)) for count, start in zip(self.counts, starts, strict=True)
        ]

    def _fed(self, inputs: Tensor) -> list[tuple[Categorical, Tensor]]:
        return list(zip(self.parts, split(inputs, self.counts), strict=True))

    def logp(self, inputs: Tensor, actions: Tree) -> Tensor:
        """(B,) for actions (B, *nvec.shape)."""
        pairs = zip(self._fed(inputs), rows(actions).unbind(-1), strict=True)
        return torch.stack([part.logp(logits, choices) for (part, logits), choices in pairs]).sum(0)

    def entropy(self, inputs: Tensor) -> Tensor:
        """(B,) nats."""
        return torch.stack([part.entropy(logits) for part, logits in self._fed(inputs)]).sum(0)

    def greedy(self, inputs: Tensor) -> Tensor:
        """(B, *nvec.shape) int64."""
        return self.joined([part.greedy(logits) for part, logits in self._fed(inputs)])

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, *nvec.shape) int64."""
        return self.joined([part.sample(logits, generator) for part, logits in self._fed(inputs)])

    def joined(self, choices: list[Tensor]) -> Tensor:
        """(B, *nvec.shape) of choices (B,), one component each."""
        return torch.stack(choices, -1).reshape(-1, *self.shape)


class MultiBernoulli(TorchHead):
    """MultiBinary(n): one logit per bit."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        super().__init__()
        self.shape, self.dtype = tuple(space.shape), np.dtype(space.dtype)
        self.size = math.prod(self.shape)

    def distribution(self, inputs: Tensor) -> Any:
        """See TorchHead."""
        return distributions.Independent(distributions.Bernoulli(logits=inputs, validate_args=False), 1)

    def events(self, inputs: Tensor, actions: Tensor) -> Tensor:
        """(B, n) of 0 and 1."""
        return rows(actions).to(inputs.dtype)

    def greedy(self, inputs: Tensor) -> Tensor:
        """(B, *n) int64."""
        return (inputs > 0).long().reshape(-1, *self.shape)

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, *n) int64."""
        return torch.bernoulli(torch.sigmoid(inputs), generator=generator).long().reshape(-1, *self.shape)
