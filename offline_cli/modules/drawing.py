"""Actions drawn with given uniform numbers, and a fast forward pass for plain networks.

* `drawn_actions`: actions drawn with given uniform numbers; the same numbers give the same actions. `ActionHead.sample` draws
  from one generator for a whole batch. Here every row has uniform numbers of its own, so that a row's action does not depend on
  its neighbours.
* `straight_forward`: the forward pass of a plain network without what nn.Module does around each layer; None for networks that
  are not plain. With small networks and batches most of a forward pass is Python between the layers: 64 rows through 64x64 take
  half the time this way. The kernels are the same, and so are the results, bit for bit. It uses the weights of the moment of
  the call: after training, call it again.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from offline_cli.modules.distributions import (
    ActionHead,
    Categorical,
    DiagonalGaussian,
    MultiBernoulli,
    MultiCategorical,
    Nested,
)
from offline_cli.modules.distributions.discrete import split
from offline_cli.modules.policy_modules import FeedForwardPolicy
from offline_cli.modules.rl_module import RLModule
from offline_cli.trees import Tree

__all__ = ["chance_size", "drawn_actions", "straight_forward"]

EDGE = 2.0**-24  # float32 knows no number between 1 - EDGE and 1; chances of exactly 0 or 1 would give infinities

IN_PLACE: Final[dict[type[nn.Module], Callable[[Tensor], Tensor]]] = {nn.ReLU: torch.relu_, nn.Tanh: torch.tanh_}


def chance_size(head: ActionHead) -> int:
    """How many uniform numbers an action of `head` takes."""
    if isinstance(head, Nested):
        return sum(map(chance_size, head.heads()))
    return head.dimensions if isinstance(head, DiagonalGaussian) else head.size


def drawn_actions(head: ActionHead, inputs: Tensor, chance: Tensor) -> Tree:
    """Actions (B, ...) of the distributions (B, head.size) by `chance` (B, chance_size(head)), uniform in [0, 1)."""
    return _drawn(head, inputs, chance.clamp(EDGE, 1 - EDGE))


def _drawn(head: ActionHead, inputs: Tensor, chance: Tensor) -> Tree:
    match head:
        case Categorical():
            return _category(inputs, chance) + head.start
        case MultiCategorical():
            parts = zip(head.parts, split(inputs, head.counts), split(chance, head.counts), strict=True)
            return head.joined([_category(logits, own) + part.start for part, logits, own in parts])
        case MultiBernoulli():
            return (chance < torch.sigmoid(inputs)).long().reshape(-1, *head.shape)
        case DiagonalGaussian():
            log_std = inputs[:, head.dimensions :]
            mean: Tensor = head.greedy(inputs)
            return mean + (torch.special.ndtri(chance) * log_std.exp()).reshape(mean.shape)
        case Nested():
            chances = split(chance, [chance_size(part) for part in head.heads()])
            each = zip(head.heads(), split(inputs, head.sizes), chances, strict=True)
            return head.joined([_drawn(part, row, own) for part, row, own in each])
    raise AssertionError(head)  # build_head makes no other


def _category(logits: Tensor, chance: Tensor) -> Tensor:
    """Gumbel's trick: the argmax of logit plus noise."""
    return (logits - (-chance.log()).log()).argmax(-1)


def straight_forward(module: RLModule) -> Callable[[Tensor], Tensor] | None:
    """From observations (B, n) float32 to action distribution inputs, without gradients; None where `module` is more than an
    MLP over one vector."""
    space = module.observation_space
    plain = type(module) is FeedForwardPolicy and isinstance(space, spaces.Box) and space.dtype == np.float32
    if not plain or len(space.shape or ()) != 1 or any(_has_hooks(part) for part in module.modules()):
        return None
    assert isinstance(module, FeedForwardPolicy), "just looked at"
    limited = module.action_head.limited
    layers = [(linear.weight.detach(), linear.bias.detach(), _call(then)) for linear, then in _pairs(module.network)]

    def forward(features: Tensor) -> Tensor:
        for weight, bias, activation in layers:
            features = functional.linear(features, weight, bias)
            if activation is not None:
                features = activation(features)
        return limited(features)

    return forward


def _pairs(network: nn.Sequential) -> list[tuple[nn.Linear, nn.Module | None]]:
    """Each linear layer of an `mlp` and the activation after it, which the last one has not."""
    linears = [layer for layer in network if isinstance(layer, nn.Linear)]
    others = [layer for layer in network if not isinstance(layer, nn.Linear)]
    return list(zip_longest(linears, others))


def _call(activation: nn.Module | None) -> Callable[[Tensor], Tensor] | None:
    """What gives the same numbers, in place where that is known to."""
    return None if activation is None else IN_PLACE.get(type(activation), activation.forward)


def _has_hooks(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks) or any(p.dtype != torch.float32 for p in part.parameters(False))
