"""Action heads: likelihood, entropy, greedy and drawn actions for every action space; refuses spaces without a density.

A head reads a flat row of numbers, `action_dist_inputs`, as a distribution over actions, all on tensors and without a wait for
the device, so that a whole update can be captured as a CUDA graph. It reads them as RLlib does, so that a recording of them
tells every reader which distribution was played: the limits of the log standard deviation are in the numbers already, because
`RLModule` passes what a network puts out through `limited`. Names follow `offline_cli.spaces`: Discrete counts from its
`start`.

Box actions are Gaussian with a spread of its own per dimension, in the units of networks: about [-1, 1] within the bounds, see
`action_units`. `for_env` alone turns them into what an environment takes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from offline_cli.errors import BadConfig
from offline_cli.modules.action_units import for_environment, span_of
from offline_cli.spaces import Space, check_supported
from offline_cli.trees import Tree

__all__ = [
    "ActionHead",
    "Categorical",
    "DiagonalGaussian",
    "MultiBernoulli",
    "MultiCategorical",
    "Nested",
    "build_head",
    "check_scale",
]

ACCURACY: Final = "accuracy"  # share of actions whose greedy guess is right in every component
MSE: Final = "mse"  # mean over dimensions of the squared error, in the units of networks: 2 is the width of the bounds
# Experts are exact, so that likelihood alone would narrow the Gaussian without end, and a few steps would drown all others.
# A floor of 0.05 (the bounds are 2 apart) trains Pendulum's clone in 800 updates; with 0.007 it is not there after 1200.
# docs/training.md states both limits.
LOG_STD_RANGE: Final = (-3.0, 2.0)


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

    def scores(self, inputs: Tensor, actions: Tree) -> dict[str, Tensor]:
        """`accuracy`."""
        return {ACCURACY: (self.greedy(inputs) == actions).float()}

    def for_env(self, actions: Tree) -> NDArray[Any]:
        """(B,) in the space's dtype."""
        return np.asarray(actions).astype(self.dtype, copy=False)


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
        choices = (_rows(actions) - self.start).long()
        parts = _split(inputs, self.counts)
        losses = [functional.cross_entropy(part, choices[:, i], reduction="none") for i, part in enumerate(parts)]
        return -torch.stack(losses).sum(0)

    def entropy(self, inputs: Tensor) -> Tensor:
        """(B,) nats."""
        return torch.stack([_categorical_entropy(part) for part in _split(inputs, self.counts)]).sum(0)

    def greedy(self, inputs: Tensor) -> Tensor:
        """(B, *nvec.shape) int64."""
        return self._joined([part.argmax(-1) for part in _split(inputs, self.counts)])

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, *nvec.shape) int64."""
        return self._joined([_draw_category(part, generator) for part in _split(inputs, self.counts)])

    def _joined(self, choices: list[Tensor]) -> Tensor:
        flat = torch.stack(choices, -1) + self.start
        return flat.reshape(-1, *self.shape)

    def scores(self, inputs: Tensor, actions: Tree) -> dict[str, Tensor]:
        """`accuracy`: right only where every component is."""
        return {ACCURACY: (self.greedy(inputs) == actions).flatten(1).all(-1).float()}

    def for_env(self, actions: Tree) -> NDArray[Any]:
        """(B, *nvec.shape) in the space's dtype."""
        return np.asarray(actions).astype(self.dtype, copy=False)


class MultiBernoulli(ActionHead):
    """MultiBinary(n): one logit per bit."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        super().__init__()
        self.shape, self.dtype = tuple(space.shape), np.dtype(space.dtype)
        self.size = math.prod(self.shape)

    def logp(self, inputs: Tensor, actions: Tree) -> Tensor:
        """(B,) for actions (B, *n) of 0 and 1."""
        bits = _rows(actions).to(inputs.dtype)
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

    def scores(self, inputs: Tensor, actions: Tree) -> dict[str, Tensor]:
        """`accuracy`: right only where every bit is."""
        return {ACCURACY: (self.greedy(inputs) == actions).flatten(1).all(-1).float()}

    def for_env(self, actions: Tree) -> NDArray[Any]:
        """(B, *n) in the space's dtype."""
        return np.asarray(actions).astype(self.dtype, copy=False)


class DiagonalGaussian(ActionHead):
    """Box: a mean and a log standard deviation per dimension (`size` = 2 n); integer boxes are rounded for the environment.

    What is learned from data of the scale `env` is stretched by the bounds of `space`, by which that data was scaled down;
    what is learned from `normalized` data by those of the environment that is played in.
    """

    def __init__(self, space: spaces.Box, *, normalized: bool) -> None:
        super().__init__()
        self.shape = space.shape
        self.dimensions = math.prod(space.shape)
        self.size = 2 * self.dimensions
        unlimited = torch.tensor([[-math.inf], [math.inf]]).expand(2, self.dimensions)
        log_std = torch.tensor(LOG_STD_RANGE)[:, None].expand(2, self.dimensions)
        self.limits = torch.cat([unlimited, log_std], 1)
        self._by_environment = normalized and np.dtype(space.dtype).kind == "f"
        self._span = span_of(space)
        self._space = self._environment = space

    def stretched_by(self, environment: Space) -> Space:
        """See ActionHead."""
        return environment if self._by_environment else self._space

    def play_in(self, space: Space) -> None:
        """See ActionHead."""
        assert isinstance(space, spaces.Box), space
        self._environment = space
        if self._by_environment:
            self._span = span_of(space)

    def _moments(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = _split(inputs, [self.dimensions, self.dimensions])
        return mean, log_std

    def logp(self, inputs: Tensor, actions: Tree) -> Tensor:
        """(B,) density of actions (B, *shape)."""
        mean, log_std = self._moments(inputs)
        z = (_rows(actions) - mean) * torch.exp(-log_std)
        return (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, inputs: Tensor) -> Tensor:
        """(B,) differential entropy, nats."""
        return (self._moments(inputs)[1] + 0.5 * (1 + math.log(2 * math.pi))).sum(-1)

    def greedy(self, inputs: Tensor) -> Tensor:
        """(B, *shape): the mean."""
        return self._shaped(self._moments(inputs)[0])

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, *shape): may lie outside [-1, 1]; `for_env` clips."""
        mean, log_std = self._moments(inputs)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        return self._shaped(mean + noise * log_std.exp())

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat.reshape(flat.shape[0], *self.shape)

    def scores(self, inputs: Tensor, actions: Tree) -> dict[str, Tensor]:
        """`mse`."""
        return {MSE: (self._moments(inputs)[0] - _rows(actions)).square().mean(-1)}

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
        self.limits = _joined_limits(parts)

    def _heads(self, inputs: Tensor) -> list[tuple[ActionHead, Tensor]]:
        return list(zip(self._parts(), _split(inputs, self.sizes), strict=True))

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


def build_head(space: Space, *, action_scale: str) -> ActionHead:
    """The head for `space`; `action_scale`, of the data that will be learned from, is `env` or `normalized`, for Box alone.

    Raises UnsupportedSpace for spaces that cannot be stored, BadConfig for a Box of unknown scale.
    """
    check_supported(space, where="action space")
    return _build(space, action_scale)


def _build(space: Space, action_scale: str) -> ActionHead:
    match space:
        case spaces.Discrete():
            return Categorical(space)
        case spaces.MultiDiscrete():
            return MultiCategorical(space)
        case spaces.MultiBinary():
            return MultiBernoulli(space)
        case spaces.Box():
            if np.dtype(space.dtype).kind == "f":
                check_scale(action_scale, where="action space")
            return DiagonalGaussian(space, normalized=action_scale == "normalized")
        case spaces.Dict():
            return Nested(space, [_build(part, action_scale) for part in space.spaces.values()])
        case spaces.Tuple():
            return Nested(space, [_build(part, action_scale) for part in space.spaces])
    raise AssertionError(space)  # check_supported refuses every other type


def check_scale(action_scale: str, *, where: str) -> None:
    """Raise BadConfig, with the remedy, unless Box actions of this scale can be learned."""
    if action_scale not in ("env", "normalized"):
        raise BadConfig(
            f"Box actions of {action_scale} scale: env units, or a module's outputs in about [-1, 1]?",
            where=where,
            fix="say --action-scale env (most recorders) or --action-scale normalized (RLlib's recordings)",
        )


def _split(inputs: Tensor, sizes: list[int]) -> list[Tensor]:
    """Columns of `inputs` (B, sum of sizes) in blocks."""
    return list(torch.split_with_sizes(inputs, sizes, -1))


def _joined_limits(parts: list[ActionHead]) -> Tensor | None:
    """(2, sum of sizes); None where no part has limits."""
    if all(part.limits is None for part in parts):
        return None
    free = torch.tensor([[-math.inf], [math.inf]])
    return torch.cat([free.expand(2, part.size) if part.limits is None else part.limits for part in parts], 1)


def _rows(actions: Tensor) -> Tensor:
    """(B, n) for actions (B, *shape), a shape of () included."""
    return actions.reshape(actions.shape[0], -1)


def _categorical_entropy(logits: Tensor) -> Tensor:
    logp = functional.log_softmax(logits, -1)
    return -(logp.exp() * logp).sum(-1)


def _draw_category(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """Gumbel's trick: the argmax of logit minus log of an exponential draw; nothing here waits for the device."""
    chance = torch.empty_like(logits).exponential_(generator=generator)
    return (functional.log_softmax(logits, -1) - chance.log()).argmax(-1)
