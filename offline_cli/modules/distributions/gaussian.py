"""The heads of Box actions (a diagonal Gaussian) and of Dict and Tuple actions (one head for each part)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, distributions, nn

from offline_cli.modules.action_units import for_environment, span_of
from offline_cli.modules.distributions.discrete import ACCURACY, MSE, ActionHead, TorchHead, rows, split
from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["LOG_STD_RANGE", "DiagonalGaussian", "GaussianForm", "Nested"]

# Experts are exact, so that likelihood alone would narrow the Gaussian without end, and a few steps would drown all others.
# A floor of 0.05 (the bounds are 2 apart) trains Pendulum's clone in 800 updates; with 0.007 it is not there after 1200.
# docs/training.md states both limits.
LOG_STD_RANGE: Final = (-3.0, 2.0)


@dataclass(frozen=True, slots=True)
class GaussianForm:
    """How a network's outputs become the mean and the log standard deviation of a Gaussian."""

    mean: Literal["linear", "tanh"] = "linear"  # tanh: within the bounds, whatever the network puts out
    log_std: tuple[float, float] = LOG_STD_RANGE  # clamped to

    def __post_init__(self) -> None:
        low, high = self.log_std
        if self.mean not in ("linear", "tanh") or not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ValueError(f"a Gaussian with mean {self.mean!r} and log_std in {self.log_std}")


class DiagonalGaussian(TorchHead):
    """Box: a mean and a log standard deviation per dimension (`size` = 2 n); integer boxes are rounded for the environment.

    What is learned from data of the scale `env` is stretched by the bounds of `space`, by which that data was scaled down;
    what is learned from `normalized` data by those of the environment that is played in.
    """

    def __init__(self, space: spaces.Box, *, normalized: bool, form: GaussianForm) -> None:
        super().__init__()
        self.form = form
        self.shape = space.shape
        self.dimensions = math.prod(space.shape)
        self.size = 2 * self.dimensions
        unlimited = torch.tensor([[-math.inf], [math.inf]]).expand(2, self.dimensions)
        log_std = torch.tensor(form.log_std)[:, None].expand(2, self.dimensions)
        self.limits = torch.cat([unlimited, log_std], 1)
        self._by_environment = normalized and np.dtype(space.dtype).kind == "f"
        self._span = span_of(space)
        self._space = self._environment = space

    def limited(self, outputs: Tensor) -> Tensor:
        """See ActionHead."""
        if self.form.mean == "tanh":
            mean, log_std = self._halves(outputs)
            outputs = torch.cat([torch.tanh(mean), log_std], -1)
        return super().limited(outputs)

    def stretched_by(self, environment: Space) -> Space:
        """See ActionHead."""
        return environment if self._by_environment else self._space

    def play_in(self, space: Space) -> None:
        """See ActionHead."""
        assert isinstance(space, spaces.Box), space
        self._environment = space
        if self._by_environment:
            self._span = span_of(space)

    def _halves(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation, (B, n) each."""
        return inputs[..., : self.dimensions], inputs[..., self.dimensions :]

    def distribution(self, inputs: Tensor) -> Any:
        """See TorchHead."""
        mean, log_std = self._halves(inputs)
        return distributions.Independent(distributions.Normal(mean, log_std.exp(), validate_args=False), 1)

    def events(self, inputs: Tensor, actions: Tensor) -> Tensor:
        """(B, n)."""
        return rows(actions)

    def greedy(self, inputs: Tensor) -> Tensor:
        """(B, *shape): the mean."""
        return self._halves(inputs)[0].reshape(-1, *self.shape)

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, *shape): may lie outside [-1, 1]; `for_env` clips."""
        mean, log_std = self._halves(inputs.detach())
        return torch.normal(mean, log_std.exp(), generator=generator).reshape(-1, *self.shape)

    def scores(self, inputs: Tensor, actions: Tree) -> dict[str, Tensor]:
        """`mse`."""
        return {MSE: (self._halves(inputs)[0] - rows(actions)).square().mean(-1)}

    def for_env(self, actions: Tree) -> NDArray[Any]:
        """(B, *shape) in the environment's units, within its bounds, in its dtype."""
        return for_environment(np.asarray(actions), self._environment, self._span)


class Nested(ActionHead):
    """Dict or Tuple: independent heads side by side; actions are trees."""

    def __init__(self, space: spaces.Dict | spaces.Tuple, parts: list[ActionHead]) -> None:
        super().__init__()
        self.keys = tuple(space.spaces) if isinstance(space, spaces.Dict) else None
        self.parts = nn.ModuleList(parts)
        self.sizes = [part.size for part in parts]
        self.size = sum(self.sizes)

    def heads(self) -> list[ActionHead]:
        """One for each part."""
        return [part for part in self.parts if isinstance(part, ActionHead)]

    def limited(self, outputs: Tensor) -> Tensor:
        """See ActionHead."""
        return torch.cat([head.limited(part) for head, part in self._fed(outputs)], -1)

    def _fed(self, inputs: Tensor) -> list[tuple[ActionHead, Tensor]]:
        return list(zip(self.heads(), split(inputs, self.sizes), strict=True))

    def _children(self, actions: Any) -> list[Any]:
        return [actions[key] for key in self.keys] if self.keys is not None else list(actions)

    def joined(self, children: list[Tree]) -> Tree:
        """An action, of those of its parts."""
        return dict(zip(self.keys, children, strict=True)) if self.keys is not None else tuple(children)

    def logp(self, inputs: Tensor, actions: Tree) -> Tensor:
        """(B,): the parts' add up."""
        pairs = zip(self._fed(inputs), self._children(actions), strict=True)
        return torch.stack([head.logp(part, child) for (head, part), child in pairs]).sum(0)

    def entropy(self, inputs: Tensor) -> Tensor:
        """(B,): the parts' add up."""
        return torch.stack([head.entropy(part) for head, part in self._fed(inputs)]).sum(0)

    def greedy(self, inputs: Tensor) -> Tree:
        """A tree of (B, ...)."""
        return self.joined([head.greedy(part) for head, part in self._fed(inputs)])

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tree:
        """A tree of (B, ...)."""
        return self.joined([head.sample(part, generator) for head, part in self._fed(inputs)])

    def scores(self, inputs: Tensor, actions: Tree) -> dict[str, Tensor]:
        """`accuracy` where every discrete part is right, `mse` as the mean over the continuous parts."""
        found: dict[str, list[Tensor]] = {}
        for (head, part), child in zip(self._fed(inputs), self._children(actions), strict=True):
            for name, score in head.scores(part, child).items():
                found.setdefault(name, []).append(score)
        joined = {name: torch.stack(parts) for name, parts in found.items()}
        return {name: parts.amin(0) if name == ACCURACY else parts.mean(0) for name, parts in joined.items()}

    def stretched_by(self, environment: Any) -> Space:
        """See ActionHead."""
        pairs = zip(self.heads(), self._children(environment.spaces), strict=True)
        parts = self.joined([head.stretched_by(child) for head, child in pairs])
        return spaces.Dict(parts) if isinstance(parts, dict) else spaces.Tuple(parts)

    def play_in(self, space: Any) -> None:
        """See ActionHead."""
        for head, child in zip(self.heads(), self._children(space.spaces), strict=True):
            head.play_in(child)

    def for_env(self, actions: Tree) -> Tree:
        """A tree of arrays (B, ...)."""
        pairs = zip(self.heads(), self._children(actions), strict=True)
        return self.joined([head.for_env(child) for head, child in pairs])
