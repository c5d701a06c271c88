"""Target copies: modules that follow others slowly (Polyak and Juditsky 1992; Lillicrap et al. 2016, section 3)."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

__all__ = ["frozen_copy", "move_towards"]

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def frozen_copy(module: AnyModule) -> AnyModule:
    """A copy with the same weights, of which no gradient is taken."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def move_towards(target: nn.Module, source: nn.Module, step: float) -> None:
    """Move each parameter of `target` by `step`, from 0 to 1, of the way to that of `source`; buffers are copied."""
    for mine, theirs in zip(target.parameters(), source.parameters(), strict=True):
        mine.lerp_(theirs, step)
    for held, shown in zip(target.buffers(), source.buffers(), strict=True):
        held.copy_(shown)
