"""Action heads: likelihood, entropy, greedy and sampled actions for every action space that has a density.

A head reads a flat row of numbers, `action_dist_inputs`, as a distribution over actions, all on tensors and without waiting for
the device, so that a whole update can be captured as a CUDA graph. It reads them as RLlib does, so that a recording of them
tells every reader which distribution was played: the limits of the log standard deviation are in the numbers already, because
`RLModule` passes what a network puts out through `limited`. Names follow `offline_cli.spaces`: Discrete counts from its
`start`.

Box actions are Gaussian with a standard deviation per dimension, in the units of networks: about [-1, 1] within the bounds, see
`action_units`, which also turns them into what an environment takes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, distributions, nn

from offline_cli.choices import ActionScale as Scale
from offline_cli.errors import BadConfig
from offline_cli.spaces import Space, check_supported
from offline_cli.trees import Tree

__all__ = [
    "ACCURACY",
    "CLONING",
    "HITS",
    "LOG_STD_RANGE",
    "ActionHead",
    "Categorical",
    "DiagonalGaussian",
    "GaussianForm",
    "MultiBernoulli",
    "MultiCategorical",
    "Nested",
    "build_head",
    "check_scale",
    "rows",
]

ACCURACY: Final = "accuracy"  # share of actions whose greedy guess is right in every component
HITS: Final = "hits"  # (B, E) of E discrete components, whether each is right; no score, but what accuracy is made of
MSE: Final = "mse"  # mean over dimensions of the squared error, in the units of networks: 2 is the width of the bounds
EDGE: Final = 2.0**-24  # float32 knows no number between 1 - EDGE and 1; chances of exactly 0 or 1 would give infinities

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


CLONING: Final = GaussianForm()


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
    chance_size: int  # how many uniform numbers `drawn` takes for an action
    limits: Tensor | None  # (2, size): the least and the most that each input may be; None: no input is limited

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("limits", None, persistent=False)

    def limited(self, outputs: Tensor) -> Tensor:
        """What a network puts out (B, ..., size) as inputs of the distribution that is learned, played and recorded."""
        if self.limits is None:
            return outputs
        learned = torch.is_grad_enabled() and outputs.requires_grad
        limited: Tensor = (_Limited.apply if learned else torch.clamp)(outputs, self.limits[0], self.limits[1])
        return limited

    def forms(self) -> list[GaussianForm]:
        """The form of each part that has one: where a network's outputs are read in more than one way."""
        return [part.form for part in self.modules() if isinstance(part, DiagonalGaussian)]

    @abstractmethod
    def logp(self, inputs: Tensor, actions: Tree) -> Tensor:
        """(B,) log-likelihood, or log-density, of `actions` (B, ...) under `inputs` (B, size)."""

    @abstractmethod
    def entropy(self, inputs: Tensor) -> Tensor:
        """(B,) entropy in nats, differential of densities."""

    @abstractmethod
    def greedy(self, inputs: Tensor) -> Tree:
        """The likeliest actions (B, ...)."""

    @abstractmethod
    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tree:
        """Actions (B, ...), drawn as RLlib draws them: the same random numbers give the same actions."""

    @abstractmethod
    def drawn(self, inputs: Tensor, chance: Tensor) -> Tree:
        """Actions (B, ...) by `chance` (B, chance_size), uniform in [0, 1): each row's own, whatever its neighbours are."""

    def scores(self, inputs: Tensor, actions: Tree) -> dict[str, Tensor]:
        """How close the greedy actions come, per row (B,): `accuracy` (1 where every component is right, else 0) or `mse`.

        With `accuracy` come `hits` (B, E): each of E discrete components, in C order.
        """
        hits = rows(self.greedy(inputs) == actions)
        return {ACCURACY: hits.all(-1).float(), HITS: hits}

    def stretched_by(self, environment: Any) -> Space:
        """The space to whose bounds actions are stretched in an environment with this action space."""
        found: Space = environment
        return found


def rows(actions: Tensor) -> Tensor:
    """(B, n) for actions (B, *shape), a shape of () included."""
    return actions.reshape(actions.shape[0], -1)


class TorchHead(ActionHead):
    """An action head over one of torch's distributions."""

    @abstractmethod
    def distribution(self, inputs: Tensor) -> Any:
        """A `torch.distributions.Distribution` of B rows."""

    def events(self, inputs: Tensor, actions: Tensor) -> Tensor:
        """`actions` (B, ...) as the distribution takes them: (B, n) in the dtype of the inputs."""
        return rows(actions).to(inputs.dtype)

    def logp(self, inputs: Tensor, actions: Tree) -> Tensor:
        found: Tensor = self.distribution(inputs).log_prob(self.events(inputs, actions))
        return found

    def entropy(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.distribution(inputs).entropy()
        return found


class Categorical(TorchHead):
    """Discrete(n, start): one logit per choice; actions are (B,) int64."""

    def __init__(self, count: int, start: int) -> None:
        super().__init__()
        self.size = self.chance_size = count
        self.start = start

    def distribution(self, inputs: Tensor) -> Any:
        return distributions.Categorical(logits=inputs, validate_args=False)

    def events(self, inputs: Tensor, actions: Tensor) -> Tensor:
        """(B,) counted from 0."""
        return actions - self.start

    def greedy(self, inputs: Tensor) -> Tensor:
        return inputs.argmax(-1) + self.start

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.multinomial(torch.softmax(inputs.detach(), -1), 1, True, generator=generator)[:, 0] + self.start

    def drawn(self, inputs: Tensor, chance: Tensor) -> Tensor:
        """By Gumbel's trick: the argmax of logit plus noise."""
        return (inputs - (-chance.clamp(EDGE, 1 - EDGE).log()).log()).argmax(-1) + self.start


class MultiBernoulli(TorchHead):
    """MultiBinary(n): one logit per bit; actions are (B, *n) int64."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.size = self.chance_size = math.prod(shape)

    def distribution(self, inputs: Tensor) -> Any:
        return distributions.Independent(distributions.Bernoulli(logits=inputs, validate_args=False), 1)

    def greedy(self, inputs: Tensor) -> Tensor:
        return (inputs > 0).long().reshape(-1, *self.shape)

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.bernoulli(torch.sigmoid(inputs), generator=generator).long().reshape(-1, *self.shape)

    def drawn(self, inputs: Tensor, chance: Tensor) -> Tensor:
        return (chance.clamp(EDGE, 1 - EDGE) < torch.sigmoid(inputs)).long().reshape(-1, *self.shape)


class DiagonalGaussian(TorchHead):
    """Box: a mean and a log standard deviation per dimension (`size` = 2 n); actions are (B, *shape), and may lie beyond.

    What is learned from data of the scale `env` is stretched by the bounds of `space`, by which that data was scaled down;
    what is learned from `normalized` data by those of the environment that is played in. Integer boxes have the scale `env`.
    """

    def __init__(self, space: spaces.Box, *, normalized: bool, form: GaussianForm) -> None:
        super().__init__()
        self.form, self.shape = form, space.shape
        self.dimensions = self.chance_size = math.prod(space.shape)
        self.size = 2 * self.dimensions
        unlimited = torch.tensor([[-math.inf], [math.inf]]).expand(2, self.dimensions)
        log_std = torch.tensor(form.log_std)[:, None].expand(2, self.dimensions)
        self.limits = torch.cat([unlimited, log_std], 1)
        self._scaled_by = None if normalized and np.dtype(space.dtype).kind == "f" else space

    def limited(self, outputs: Tensor) -> Tensor:
        if self.form.mean == "tanh":
            mean, log_std = self._halves(outputs)
            outputs = torch.cat([torch.tanh(mean), log_std], -1)
        return super().limited(outputs)

    def _halves(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation, (B, n) each."""
        return inputs[..., : self.dimensions], inputs[..., self.dimensions :]

    def distribution(self, inputs: Tensor) -> Any:
        mean, log_std = self._halves(inputs)
        return distributions.Independent(distributions.Normal(mean, log_std.exp(), validate_args=False), 1)

    def events(self, inputs: Tensor, actions: Tensor) -> Tensor:
        """(B, n)."""
        return rows(actions)

    def greedy(self, inputs: Tensor) -> Tensor:
        """The mean."""
        return self._halves(inputs)[0].reshape(-1, *self.shape)

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        mean, log_std = self._halves(inputs.detach())
        return torch.normal(mean, log_std.exp(), generator=generator).reshape(-1, *self.shape)

    def drawn(self, inputs: Tensor, chance: Tensor) -> Tensor:
        mean, log_std = self._halves(inputs)
        noise: Tensor = torch.special.ndtri(chance.clamp(EDGE, 1 - EDGE))
        return (mean + noise * log_std.exp()).reshape(-1, *self.shape)

    def scores(self, inputs: Tensor, actions: Tree) -> dict[str, Tensor]:
        """`mse`."""
        return {MSE: (self._halves(inputs)[0] - rows(actions)).square().mean(-1)}

    def stretched_by(self, environment: Any) -> Space:
        return super().stretched_by(environment) if self._scaled_by is None else self._scaled_by


class _Joint(ActionHead):
    """Independent heads side by side, whose actions are the parts of one; log-likelihoods and entropies add up."""

    def __init__(self, parts: list[ActionHead]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.heads = tuple(parts)
        self.size = sum(part.size for part in parts)
        self.chance_size = sum(part.chance_size for part in parts)
        self._is_limited = bool(self.forms())

    @abstractmethod
    def apart(self, actions: Any) -> list[Any]:
        """The parts of actions (B, ...)."""

    @abstractmethod
    def joined(self, parts: list[Tree]) -> Any:
        """Actions of their parts."""

    def _fed(self, inputs: Tensor) -> Iterator[tuple[ActionHead, Tensor]]:
        """Each part with its columns."""
        return zip(self.heads, torch.split_with_sizes(inputs, [head.size for head in self.heads], -1), strict=True)

    def limited(self, outputs: Tensor) -> Tensor:
        return torch.cat([head.limited(part) for head, part in self._fed(outputs)], -1) if self._is_limited else outputs

    def logp(self, inputs: Tensor, actions: Tree) -> Tensor:
        pairs = zip(self._fed(inputs), self.apart(actions), strict=True)
        return torch.stack([head.logp(part, child) for (head, part), child in pairs]).sum(0)

    def entropy(self, inputs: Tensor) -> Tensor:
        return torch.stack([head.entropy(part) for head, part in self._fed(inputs)]).sum(0)

    def greedy(self, inputs: Tensor) -> Tree:
        return self.joined([head.greedy(part) for head, part in self._fed(inputs)])

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tree:
        return self.joined([head.sample(part, generator) for head, part in self._fed(inputs)])

    def drawn(self, inputs: Tensor, chance: Tensor) -> Tree:
        chances = torch.split_with_sizes(chance, [head.chance_size for head in self.heads], -1)
        return self.joined([head.drawn(part, own) for (head, part), own in zip(self._fed(inputs), chances, strict=True)])

    def scores(self, inputs: Tensor, actions: Tree) -> dict[str, Tensor]:
        """`accuracy` where every discrete part is right, `mse` as the mean over the continuous parts."""
        found: dict[str, list[Tensor]] = {}
        for (head, part), child in zip(self._fed(inputs), self.apart(actions), strict=True):
            for name, score in head.scores(part, child).items():
                found.setdefault(name, []).append(score)
        joined = {name: torch.stack(parts) for name, parts in found.items() if name != HITS}
        scores = {name: parts.amin(0) if name == ACCURACY else parts.mean(0) for name, parts in joined.items()}
        return scores | ({HITS: torch.cat(found[HITS], -1)} if HITS in found else {})


class MultiCategorical(_Joint):
    """MultiDiscrete(nvec, start): the logits of each component, one after the other; actions are (B, *nvec.shape) int64."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        counts = zip(space.nvec.ravel().tolist(), space.start.ravel().tolist(), strict=True)
        super().__init__([Categorical(count, start) for count, start in counts])
        self.shape = space.nvec.shape

    def apart(self, actions: Any) -> list[Any]:
        return list(rows(actions).unbind(-1))

    def joined(self, parts: list[Tree]) -> Any:
        return torch.stack(parts, -1).reshape(-1, *self.shape)


class Nested(_Joint):
    """Dict or Tuple: one head for each part, in the order of the space; actions are trees."""

    def __init__(self, space: spaces.Dict | spaces.Tuple, parts: list[ActionHead]) -> None:
        super().__init__(parts)
        self.keys = tuple(space.spaces) if isinstance(space, spaces.Dict) else None

    def apart(self, actions: Any) -> list[Any]:
        return [actions[key] for key in self.keys] if self.keys is not None else list(actions)

    def joined(self, parts: list[Tree]) -> Any:
        return dict(zip(self.keys, parts, strict=True)) if self.keys is not None else tuple(parts)

    def stretched_by(self, environment: Any) -> Space:
        pairs = zip(self.heads, self.apart(environment.spaces), strict=True)
        parts = self.joined([head.stretched_by(child) for head, child in pairs])
        return spaces.Dict(parts) if self.keys is not None else spaces.Tuple(parts)


def build_head(space: Space, *, action_scale: str, form: GaussianForm = CLONING) -> ActionHead:
    """The head for `space`; `action_scale`, of the data that will be learned from, is `env` or `normalized`, for Box alone,
    as is `form`.

    Raises UnsupportedSpace for spaces that cannot be stored, BadConfig for a Box of unknown scale.
    """
    check_supported(space, where="action space")
    return _build(space, action_scale, form)


def _build(space: Space, action_scale: str, form: GaussianForm) -> ActionHead:
    match space:
        case spaces.Discrete():
            return Categorical(int(space.n), int(space.start))
        case spaces.MultiDiscrete():
            return MultiCategorical(space)
        case spaces.MultiBinary():
            return MultiBernoulli(tuple(space.shape))
        case spaces.Box():
            if np.dtype(space.dtype).kind == "f":
                check_scale(action_scale, where="action space")
            return DiagonalGaussian(space, normalized=action_scale == "normalized", form=form)
        case spaces.Dict() | spaces.Tuple():
            parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
            return Nested(space, [_build(part, action_scale, form) for part in parts])
    raise AssertionError(space)  # check_supported refuses every other type


def check_scale(action_scale: str, *, where: str) -> None:
    """Raise BadConfig, with the remedy, unless Box actions of this scale can be learned."""
    if action_scale not in get_args(Scale):
        what = f"Box actions of {action_scale} scale: env units, or a module's outputs in about [-1, 1]?"
        fix = "say --action-scale env (most recorders) or --action-scale normalized (RLlib's recordings)"
        raise BadConfig(what, where=where, fix=fix)
