"""What plays: observations and chance in, actions out; refuses nothing, plays nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from offline_cli.trees import Tree

__all__ = ["Acted", "Policy"]


@dataclass(slots=True, eq=False)  # not frozen: one is made at every step, which that would slow down threefold
class Acted:
    """What a policy made of B observations."""

    actions: Tree  # leaves (B, ...): as they are recorded
    for_env: Tree  # leaves (B, ...): as the environment takes them
    extras: Mapping[str, Tree] = field(default_factory=dict)  # extra model outputs by name: leaves (B, ...)


class Policy(Protocol):
    """A policy ready to play in one environment."""

    fingerprint: str  # tells it from others by content, where the content can be known
    action_scale: str  # "env" | "normalized": of the recorded actions
    chance_size: int  # uniform numbers that a row takes per step; 0: it leaves nothing to chance
    rows_alike: bool  # a row's result depends on the row alone, whatever the shape of the batch
    shows_numbers: bool  # what it computes actions from is in `extras`, so that a difference in the last bit can be seen

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """Observations: leaves (B, ...); chance: (B, chance_size), uniform in [0, 1)."""
