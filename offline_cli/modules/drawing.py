"""Actions drawn with given uniform numbers: the same numbers give the same actions; refuses to draw any numbers itself.

`ActionHead.sample` draws from one generator for a whole batch. Here every row brings its own chance, so that a row's action
does not depend on its neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from offline_cli.modules.distributions import (
    ActionHead,
    Categorical,
    DiagonalGaussian,
    MultiBernoulli,
    MultiCategorical,
    Nested,
)
from offline_cli.trees import Tree

__all__ = ["chance_size", "drawn_actions"]

EDGE = 2.0**-24  # float32 knows no number between 1 - EDGE and 1; chances of exactly 0 or 1 would give infinities


def chance_size(head: ActionHead) -> int:
    """How many uniform numbers an action of `head` takes."""
    return head.dimensions if isinstance(head, DiagonalGaussian) else _sum_of_parts(head)


def _sum_of_parts(head: ActionHead) -> int:
    return sum(map(chance_size, _parts(head))) if isinstance(head, Nested) else head.size


def drawn_actions(head: ActionHead, inputs: Tensor, chance: Tensor) -> Tree:
    """Actions (B, ...) of the distributions (B, head.size) by `chance` (B, chance_size(head)), uniform in [0, 1)."""
    return _drawn(head, inputs, chance.clamp(EDGE, 1 - EDGE))


def _drawn(head: ActionHead, inputs: Tensor, chance: Tensor) -> Tree:
    match head:
        case Categorical():
            return _category(inputs, chance) + head.start
        case MultiCategorical():
            pairs = zip(_split(inputs, head.counts), _split(chance, head.counts), strict=True)
            return (torch.stack([_category(*pair) for pair in pairs], -1) + head.start).reshape(-1, *head.shape)
        case MultiBernoulli():
            return (chance < torch.sigmoid(inputs)).long().reshape(-1, *head.shape)
        case DiagonalGaussian():
            log_std = inputs[:, head.dimensions :]
            mean: Tensor = head.greedy(inputs)
            return mean + (torch.special.ndtri(chance) * log_std.exp()).reshape(mean.shape)
        case Nested():
            parts = _parts(head)
            chances = _split(chance, [chance_size(part) for part in parts])
            drawn = [_drawn(*part) for part in zip(parts, _split(inputs, head.sizes), chances, strict=True)]
            return dict(zip(head.keys, drawn, strict=True)) if head.keys is not None else tuple(drawn)
    raise AssertionError(head)  # build_head makes no other


def _parts(head: Nested) -> list[ActionHead]:
    return [part for part in head.parts if isinstance(part, ActionHead)]


def _split(tensor: Tensor, sizes: list[int]) -> list[Tensor]:
    """Columns in blocks."""
    return list(torch.split_with_sizes(tensor, sizes, -1))


def _category(logits: Tensor, chance: Tensor) -> Tensor:
    """Gumbel's trick: the argmax of logit plus noise."""
    return (logits - (-chance.log()).log()).argmax(-1)
