"""The tensors of a checkpoint by name, of this version and the one before.

    modules.policy.network.0.weight   parameters and buffers of every module
    adam.0.mean                       of the optimizer of each group, by its number
    sum.nll                           losses added up since the last row of metrics
    best.network.0.weight             the policy of the best check
    refreshed.policy...               the modules that columns were last computed with, where they are computed anew
    generator, generator_cuda         torch's random generators

Version 1 knew behaviour cloning alone: the weights of its only module, and those of the best check, were one flat tensor each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

__all__ = ["BEST", "MODULES", "REFRESHED", "copy_into", "is_of_version_1", "part", "policy_weights", "prefixed", "upgraded"]

MODULES: Final = "modules."
BEST: Final = "best."
REFRESHED: Final = "refreshed."
POLICY: Final = "policy."
FLAT, FLAT_BEST = "weights", "best"  # of version 1


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under names with `prefix` before them."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names have `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def copy_into(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy the tensors of the same names into `own`, in place, without gradients."""
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def is_of_version_1(tensors: Mapping[str, Tensor]) -> bool:
    """Whether a checkpoint of that version holds them."""
    return FLAT in tensors


def policy_weights(tensors: Mapping[str, Tensor], policy: nn.Module) -> dict[str, Tensor]:
    """The state of `policy` in a checkpoint of either version. Raises ValueError where flat weights are not as many as its."""
    if is_of_version_1(tensors):
        return _split(tensors[FLAT], policy)
    return part(tensors, f"{MODULES}{POLICY}")


def upgraded(tensors: Mapping[str, Tensor], policy: nn.Module, *, loss: str) -> dict[str, Tensor]:
    """A checkpoint of version 1 as one of this version; `loss`: the name of its only loss. Raises ValueError as above, and
    where it has no sum of losses.
    """
    if "loss_sum" not in tensors:
        raise ValueError("loss_sum")
    found = prefixed(f"{MODULES}{POLICY}", _split(tensors[FLAT], policy))
    if FLAT_BEST in tensors:
        found |= prefixed(BEST, _split(tensors[FLAT_BEST], policy))
    found |= prefixed("adam.0.", part(tensors, "adam."))
    found |= {name: tensor for name, tensor in tensors.items() if name.startswith("generator")}
    return found | {f"sum.{loss}": tensors["loss_sum"]}


def _split(flat: Tensor, policy: nn.Module) -> dict[str, Tensor]:
    named = dict(policy.named_parameters())
    sizes = [parameter.numel() for parameter in named.values()]
    if flat.shape != (sum(sizes),):
        raise ValueError(f"weights of shape {tuple(flat.shape)} for a network of {sum(sizes)}")
    parts = torch.split(flat, sizes)
    return {name: one.view_as(named[name]) for name, one in zip(named, parts, strict=True)}
