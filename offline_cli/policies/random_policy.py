"""The policy `random`: every action of the space, as likely as `space.sample` has it; refuses nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from offline_cli.policies.policy import Acted
from offline_cli.policies.uniform import uniform_drawer, uniform_size
from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["RandomPolicy"]


class RandomPolicy:
    """Draws actions and looks at nothing."""

    fingerprint = "random"
    action_scale = "env"
    rows_alike = True
    shows_numbers = True

    def __init__(self, action_space: Space) -> None:
        self._draw = uniform_drawer(action_space)
        self.chance_size = uniform_size(action_space)

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """See Policy."""
        actions = self._draw(chance)
        return Acted(actions, actions)
