"""The action head: likelihood, entropy, greedy and sampled actions for every action space that has a density.

A head turns a flat row of numbers, `action_dist_inputs`, into a distribution over actions, on tensors and without a device
synchronization. The layout is RLlib's, so a recording of these inputs tells every reader which distribution was played. They
include the limits of the log standard deviation: `RLModule` passes network outputs through `limited`. A space has one part for
each leaf, depth first; the parts' log-likelihoods and entropies add up.

Box actions are Gaussian with a standard deviation per dimension, in network units: the bounds map to [-1, 1]. `ForEnvironment`
maps them back to the environment's bounds. Data of the scale `env` is scaled to network units before training; data of the
scale `normalized` (raw module outputs) already has them. The rules are RLlib's (`normalize_action`, `unsquash_action`) where
it has one:

* A Box with any infinite bound is not scaled: it keeps the environment's units. The largest number of a wide dtype, which some
  environments use in place of infinity, counts as infinite.
* Integer boxes are recorded in the environment's units at either scale. Networks use [-1, 1] for them too.
* Normalized actions beyond [-1, 1] are learned unclipped. Actions sent to an environment are clipped to its bounds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, distributions, nn

from offline_cli.choices import ActionScale as Scale
from offline_cli.episodes.episode_spaces import space_tree
from offline_cli.errors import BadConfig
from offline_cli.spaces import Space, check_supported, leaf_spaces, map_space
from offline_cli.trees import Tree, flatten, leaves, map_leaves, unflatten_like

__all__ = [
    "ACCURACY",
    "CLONING",
    "HITS",
    "LOG_STD_RANGE",
    "ActionHead",
    "ForEnvironment",
    "GaussianForm",
    "Span",
    "build_head",
    "check_scale",
    "in_network_units",
    "network_space",
    "rows",
    "span_of",
]


ROWS: Final = 1 << 16  # rows scaled at a time, so that the float64 copy stays small


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """The finite bounds of a Box: arrays of its shape, in the environment's units.

    They keep the Box's dtype if it can hold the width, so that `stretched` equals RLlib's result bit for bit.
    """

    low: NDArray[Any]
    width: NDArray[Any]

    def normalised(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """(B, *shape) in [-1, 1] within the bounds."""
        half = self.width.astype(np.float64) / 2
        divisor = np.where(half > 0, half, 1.0)  # avoid dividing by 0 where low equals high
        within: NDArray[np.float64] = (values.astype(np.float64) - (self.low + half)) / divisor
        return within

    def stretched(self, values: NDArray[Any]) -> NDArray[Any]:
        """(B, *shape) in the environment's units: the inverse of `normalised`."""
        stretched: NDArray[Any] = self.low + (values + 1.0) * self.width / 2.0
        return stretched


def span_of(space: spaces.Box) -> Span | None:
    """The bounds for scaling actions; None for unbounded spaces."""
    dtype, low, high = np.dtype(space.dtype), space.low.astype(np.float64), space.high.astype(np.float64)
    if dtype.kind == "f":  # float64 boxes often carry float32's largest number
        limit = float(np.finfo(np.float16 if dtype.itemsize == 2 else np.float32).max)
    else:
        limit = float(np.iinfo(dtype).max) if dtype.itemsize >= 4 else float("inf")
    if not ((np.abs(low) < limit) & (np.abs(high) < limit)).all():
        return None
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            width = space.high - space.low
        if np.isfinite(width).all():
            low, high = space.low, space.high
    return Span(low, high - low)


class ForEnvironment:
    """Convert actions, leaves (B, *shape), to the units, bounds and dtypes of an environment's action space."""

    def __init__(self, space: Space, stretched_by: Space | None = None, *, normalized: bool = True) -> None:
        """`normalized`: stretch boxes from [-1, 1] to the bounds of `stretched_by` (None: `space`), a space of the same
        structure; otherwise only clip them.
        """
        self._leaves, self._normalized = leaf_spaces(space), normalized
        by = leaf_spaces(stretched_by or space)
        boxes = {path: leaf for path, leaf in by.items() if normalized and isinstance(leaf, spaces.Box)}
        self._spans = {path: span_of(leaf) for path, leaf in boxes.items()}

    def __call__(self, actions: Tree) -> Tree:
        """Return new arrays, which environments may overwrite."""
        return unflatten_like(actions, [self._fitted(path, np.asarray(leaf)) for path, leaf in flatten(actions)])

    def _fitted(self, path: str, values: NDArray[Any]) -> NDArray[Any]:
        space = self._leaves[path]
        if not isinstance(space, spaces.Box):
            return values.astype(space.dtype)
        dtype, span = np.dtype(space.dtype), self._spans.get(path)
        if self._normalized and values.dtype.kind in "iub" and dtype.kind in "iu":  # choices: 0 is the lower bound
            values = space.low + values
        elif span is not None:
            values = span.stretched(values)
        values = np.clip(values, space.low, space.high)
        return (np.rint(values) if dtype.kind in "iu" else values).astype(dtype, copy=False)


def in_network_units(actions: Tree, space: Space, *, action_scale: str) -> Tree:
    """Recorded actions (leaves (N, *shape)) in network units: bounded Box leaves scaled to [-1, 1], float32.

    `action_scale` of float boxes: `env` or `normalized`. Float boxes that need no scaling become float32; all other leaves
    stay unchanged.
    """
    parts = leaf_spaces(space)
    return unflatten_like(actions, [_scaled(leaf, parts[path], action_scale) for path, leaf in flatten(actions)])


def _scaled(leaf: NDArray[Any], space: Space, action_scale: str) -> NDArray[Any]:
    if not isinstance(space, spaces.Box):
        return leaf
    floats = np.dtype(space.dtype).kind == "f"
    span = None if floats and action_scale == "normalized" else span_of(space)
    if span is None:
        return leaf.astype(np.float32, copy=False) if floats else leaf
    scaled = np.empty(leaf.shape, np.float32)
    for first in range(0, len(leaf), ROWS):
        scaled[first : first + ROWS] = span.normalised(leaf[first : first + ROWS])
    return scaled


def network_space(space: Space) -> Space:
    """The space of `in_network_units` results for actions of `space`: boxes are unbounded, as values may exceed [-1, 1]."""

    def unbounded(leaf: Space) -> Space:
        if not isinstance(leaf, spaces.Box) or (span_of(leaf) is None and np.dtype(leaf.dtype).kind != "f"):
            return leaf
        return spaces.Box(-np.inf, np.inf, leaf.shape, np.float32)

    return map_space(unbounded, space)


ACCURACY: Final = "accuracy"  # share of actions whose greedy prediction is right in every component
HITS: Final = "hits"  # (B, E) bool: whether each of E discrete components is right; accuracy is computed from it
MSE: Final = "mse"  # squared error averaged over dimensions, in network units: the bounds are 2 apart
EDGE: Final = 2.0**-24  # 1 - EDGE is the float32 below 1; a uniform number of exactly 0 or 1 would give infinite noise

# Experts are nearly deterministic: maximum likelihood alone would shrink σ without limit, and a few steps would dominate the
# loss. A floor of 0.05 (the bounds are 2 apart) clones Pendulum in 800 updates; with 0.007, 1200 are not enough.
LOG_STD_RANGE: Final = (-3.0, 2.0)


@dataclass(frozen=True, slots=True)
class GaussianForm:
    """How network outputs become the mean and the log standard deviation of a Gaussian."""

    mean: Literal["linear", "tanh"] = "linear"  # tanh keeps the mean within the bounds
    log_std: tuple[float, float] = LOG_STD_RANGE  # bounds of log σ

    def __post_init__(self) -> None:
        low, high = self.log_std
        if self.mean not in ("linear", "tanh") or not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ValueError(f"a Gaussian with mean {self.mean!r} and log_std in {self.log_std}")


CLONING: Final = GaussianForm()


def rows(actions: Tensor) -> Tensor:
    """Flatten actions (B, *shape) to (B, n); the shape may be ()."""
    return actions.reshape(actions.shape[0], -1)


class ActionHead(nn.Module):
    """A distribution over one action space, made from rows of `size` network outputs."""

    def __init__(self, space: Space, parts: Sequence[_LeafDistribution]) -> None:
        """`parts`: the distribution of each leaf of `space`, depth first."""
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._parts, self._like = tuple(parts), space_tree(space)
        self.size = sum(part.size for part in parts)
        self.chance_size = sum(part.chance_size for part in parts)  # uniform numbers that `drawn` needs per action

    def _fed(self, inputs: Tensor) -> Iterator[tuple[_LeafDistribution, Tensor]]:
        """Pair each part with its columns of (B, ..., size)."""
        return zip(self._parts, inputs.split_with_sizes([part.size for part in self._parts], -1), strict=True)

    def _apart(self, actions: Tree) -> list[Tensor]:
        return leaves(map_leaves(lambda _, leaf: leaf, self._like, actions))  # in the order of the space

    def _joined(self, actions: list[Tensor]) -> Tree:
        return unflatten_like(self._like, actions)

    def limited(self, outputs: Tensor) -> Tensor:
        """Turn network outputs (B, ..., size) into inputs of the distribution: limit mean and log standard deviation."""
        return torch.cat([part.limited(own) for part, own in self._fed(outputs)], -1) if self.forms() else outputs

    def forms(self) -> list[GaussianForm]:
        """The `GaussianForm` of each Gaussian part."""
        return [part.form for part in self._parts if isinstance(part, _Gaussian)]

    def logp(self, inputs: Tensor, actions: Tree) -> Tensor:
        """(B,) log-likelihood or log-density of `actions` (B, ...) under `inputs` (B, size)."""
        pairs = zip(self._fed(inputs), self._apart(actions), strict=True)
        return _total([part.logp(own, leaf) for (part, own), leaf in pairs])

    def entropy(self, inputs: Tensor) -> Tensor:
        """(B,) entropy in nats; differential entropy for Box."""
        return _total([part.entropy(own) for part, own in self._fed(inputs)])

    def greedy(self, inputs: Tensor) -> Tree:
        """The most likely actions (B, ...)."""
        return self._joined([part.greedy(own) for part, own in self._fed(inputs)])

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tree:
        """Sample actions (B, ...). The same random numbers give the same actions as in RLlib."""
        return self._joined([part.sample(own.detach(), generator) for part, own in self._fed(inputs)])

    def drawn(self, inputs: Tensor, chance: Tensor) -> Tree:
        """Sample actions (B, ...) from `chance` (B, chance_size), uniform in [0, 1): a row depends on its own numbers only."""
        chances = chance.clamp(EDGE, 1 - EDGE).split_with_sizes([part.chance_size for part in self._parts], -1)
        return self._joined([part.drawn(own, its) for (part, own), its in zip(self._fed(inputs), chances, strict=True)])

    def scores(self, inputs: Tensor, actions: Tree) -> dict[str, Tensor]:
        """Errors of the greedy actions per row (B,): `accuracy` (1 if every discrete component is right, else 0), and `mse`,
        averaged over the continuous leaves. `accuracy` comes with `hits` (B, E): one per discrete component, in C order.
        """
        hits, errors = list[Tensor](), list[Tensor]()
        for (part, own), leaf in zip(self._fed(inputs), self._apart(actions), strict=True):
            if isinstance(part, _Gaussian):
                errors.append((part.halves(own)[0] - rows(leaf)).square().mean(-1))
            else:
                hits.append(rows(part.greedy(own) == leaf))
        scores = {ACCURACY: torch.cat(hits, -1).all(-1).float()} if hits else {}
        scores |= {MSE: torch.stack(errors).mean(0)} if errors else {}
        return scores | ({HITS: torch.cat(hits, -1)} if hits else {})

    def stretched_by(self, environment: Space) -> Space:
        """The space whose bounds stretch actions for an environment with this action space."""
        own = iter(self._parts)
        return map_space(lambda leaf: next(own).scaled_by or leaf, environment)


def _total(parts: list[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


class _LeafDistribution(nn.Module, ABC):
    """The distribution of one leaf. Methods: see ActionHead; actions are (B, *shape)."""

    size: int
    chance_size: int
    scaled_by: Space | None = None  # space whose bounds stretch the actions; None: the environment's

    def limited(self, outputs: Tensor) -> Tensor:
        return outputs

    @abstractmethod
    def logp(self, inputs: Tensor, actions: Tensor) -> Tensor: ...

    @abstractmethod
    def entropy(self, inputs: Tensor) -> Tensor: ...

    @abstractmethod
    def greedy(self, inputs: Tensor) -> Tensor: ...

    @abstractmethod
    def sample(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor: ...

    @abstractmethod
    def drawn(self, inputs: Tensor, chance: Tensor) -> Tensor: ...


class _Choices(_LeafDistribution):
    """Discrete and MultiDiscrete: concatenated logits of the components; actions are int64, starting at `starts`."""

    def __init__(self, counts: Sequence[int], starts: Sequence[int], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.counts, self.starts, self.shape = list(counts), list(starts), shape
        self.size = self.chance_size = sum(counts)

    def _each(self, inputs: Tensor) -> list[Any]:
        logits = inputs.split_with_sizes(self.counts, -1)
        return [distributions.Categorical(logits=one, validate_args=False) for one in logits]

    def _counted(self, choices: list[Tensor]) -> Tensor:
        found = [choice + start for choice, start in zip(choices, self.starts, strict=True)]
        return torch.stack(found, -1).reshape(-1, *self.shape)

    def logp(self, inputs: Tensor, actions: Tensor) -> Tensor:
        chosen = zip(self._each(inputs), rows(actions).unbind(-1), self.starts, strict=True)
        return _total([one.log_prob(choice - start) for one, choice, start in chosen])

    def entropy(self, inputs: Tensor) -> Tensor:
        return _total([one.entropy() for one in self._each(inputs)])

    def greedy(self, inputs: Tensor) -> Tensor:
        return self._counted([one.argmax(-1) for one in inputs.split_with_sizes(self.counts, -1)])

    def sample(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        chances = [torch.softmax(one, -1) for one in inputs.split_with_sizes(self.counts, -1)]
        return self._counted([torch.multinomial(one, 1, True, generator=generator)[:, 0] for one in chances])

    def drawn(self, inputs: Tensor, chance: Tensor) -> Tensor:
        """The Gumbel-max trick: argmax of logits plus Gumbel noise."""
        return self.greedy(inputs - (-chance.log()).log())


class _Bits(_LeafDistribution):
    """MultiBinary: one logit per bit; actions are int64."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.size = self.chance_size = math.prod(shape)

    def _distribution(self, inputs: Tensor) -> Any:
        return distributions.Independent(distributions.Bernoulli(logits=inputs, validate_args=False), 1)

    def logp(self, inputs: Tensor, actions: Tensor) -> Tensor:
        return self._distribution(inputs).log_prob(rows(actions).to(inputs.dtype))  # type: ignore[no-any-return]

    def entropy(self, inputs: Tensor) -> Tensor:
        return self._distribution(inputs).entropy()  # type: ignore[no-any-return]

    def greedy(self, inputs: Tensor) -> Tensor:
        return (inputs > 0).long().reshape(-1, *self.shape)

    def sample(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        return torch.bernoulli(torch.sigmoid(inputs), generator=generator).long().reshape(-1, *self.shape)

    def drawn(self, inputs: Tensor, chance: Tensor) -> Tensor:
        return (chance < torch.sigmoid(inputs)).long().reshape(-1, *self.shape)


class _Gaussian(_LeafDistribution):
    """Box: a mean and a log standard deviation per dimension (`size` = 2 n); actions may lie beyond the bounds.

    Policies trained on `env` data stretch actions by the bounds of `space`, which scaled that data; policies trained on
    `normalized` data by the bounds of the played environment. Integer boxes always have the scale `env`.
    """

    log_std: Tensor  # (2,) lower and upper limit

    def __init__(self, space: spaces.Box, *, normalized: bool, form: GaussianForm) -> None:
        super().__init__()
        self.form, self.shape = form, space.shape
        self.chance_size = math.prod(space.shape)
        self.size = 2 * self.chance_size
        self.register_buffer("log_std", torch.tensor(form.log_std), persistent=False)
        self.scaled_by = None if normalized and np.dtype(space.dtype).kind == "f" else space

    def halves(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation, (B, ..., n) each."""
        return inputs[..., : self.chance_size], inputs[..., self.chance_size :]

    def limited(self, outputs: Tensor) -> Tensor:
        mean, log_std = self.halves(outputs)
        learned = torch.is_grad_enabled() and outputs.requires_grad
        limited: Tensor = (_Limited.apply if learned else torch.clamp)(log_std, self.log_std[0], self.log_std[1])
        return torch.cat([torch.tanh(mean) if self.form.mean == "tanh" else mean, limited], -1)

    def _distribution(self, inputs: Tensor) -> Any:
        mean, log_std = self.halves(inputs)
        return distributions.Independent(distributions.Normal(mean, log_std.exp(), validate_args=False), 1)

    def logp(self, inputs: Tensor, actions: Tensor) -> Tensor:
        return self._distribution(inputs).log_prob(rows(actions))  # type: ignore[no-any-return]

    def entropy(self, inputs: Tensor) -> Tensor:
        return self._distribution(inputs).entropy()  # type: ignore[no-any-return]

    def greedy(self, inputs: Tensor) -> Tensor:
        """The mean."""
        return self.halves(inputs)[0].reshape(-1, *self.shape)

    def sample(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        mean, log_std = self.halves(inputs)
        return torch.normal(mean, log_std.exp(), generator=generator).reshape(-1, *self.shape)

    def drawn(self, inputs: Tensor, chance: Tensor) -> Tensor:
        mean, log_std = self.halves(inputs)
        noise: Tensor = torch.special.ndtri(chance)
        return (mean + noise * log_std.exp()).reshape(-1, *self.shape)


class _Limited(torch.autograd.Function):
    """`torch.clamp` with a gradient above the upper limit that pulls the output back down.

    Otherwise initially large outputs, for example from unscaled observations, would keep the widest Gaussian for ever. Below
    the lower limit the gradient is 0: experts are nearly deterministic, and likelihood alone would shrink σ without limit.
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


def build_head(space: Space, *, action_scale: str, form: GaussianForm = CLONING) -> ActionHead:
    """Build the head for `space`. `action_scale` of the training data (`env` or `normalized`) and `form` apply to Box only.

    Raises UnsupportedSpace for spaces that cannot be stored, BadConfig for a float Box of unknown scale.
    """
    check_supported(space, where="action space")
    return ActionHead(space, [_part(leaf, action_scale, form) for leaf in leaf_spaces(space).values()])


def _part(space: Space, action_scale: str, form: GaussianForm) -> _LeafDistribution:
    match space:
        case spaces.Discrete():
            return _Choices([int(space.n)], [int(space.start)], ())
        case spaces.MultiDiscrete():
            return _Choices(space.nvec.ravel().tolist(), space.start.ravel().tolist(), space.nvec.shape)
        case spaces.MultiBinary():
            return _Bits(tuple(space.shape))
        case spaces.Box():
            if np.dtype(space.dtype).kind == "f":
                check_scale(action_scale, where="action space")
            return _Gaussian(space, normalized=action_scale == "normalized", form=form)
    raise AssertionError(space)  # check_supported refuses every other type


def check_scale(action_scale: str, *, where: str) -> None:
    """Raise BadConfig unless `action_scale` is `env` or `normalized`."""
    if action_scale not in get_args(Scale):
        what = f"Box actions have the scale {action_scale!r}; expected env or normalized"
        fix = (
            "--action-scale env (environment units, most recorders) or --action-scale normalized ([-1, 1], RLlib's recordings)"
        )
        raise BadConfig(what, where=where, fix=fix)
