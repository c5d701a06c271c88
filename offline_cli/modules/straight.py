"""The forward pass of a plain network without what nn.Module does around each layer; refuses networks that are not plain.

With small networks and batches most of a forward pass is Python between the layers: 64 rows through 64x64 take half the time
this way. The kernels are the same, and so are the results, bit for bit. Weights are those of the moment: train, then ask
again.
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

from offline_cli.modules.policy import FeedForwardPolicy
from offline_cli.modules.rl_module import RLModule

__all__ = ["straight_forward"]

IN_PLACE: Final[dict[type[nn.Module], Callable[[Tensor], Tensor]]] = {nn.ReLU: torch.relu_, nn.Tanh: torch.tanh_}


def straight_forward(module: RLModule) -> Callable[[Tensor], Tensor] | None:
    """From observations (B, n) float32 to action distribution inputs, without gradients; None where `module` is more than an
    MLP over one vector."""
    space = module.observation_space
    plain = type(module) is FeedForwardPolicy and isinstance(space, spaces.Box) and space.dtype == np.float32
    if not plain or len(space.shape or ()) != 1 or any(_has_hooks(part) for part in module.modules()):
        return None
    assert isinstance(module, FeedForwardPolicy), "just looked at"
    limited = module.action_head.limited
    layers = [(*_detached(linear), _call(then)) for linear, then in _pairs(module.network)]

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


def _detached(layer: nn.Linear) -> tuple[Tensor, Tensor]:
    return layer.weight.detach(), layer.bias.detach()


def _call(activation: nn.Module | None) -> Callable[[Tensor], Tensor] | None:
    """What gives the same numbers, in place where that is known to."""
    return None if activation is None else IN_PLACE.get(type(activation), activation.forward)


def _has_hooks(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks) or any(p.dtype != torch.float32 for p in part.parameters(False))
