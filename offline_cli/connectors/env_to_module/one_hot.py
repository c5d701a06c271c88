"""Choices as ones and zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.connectors.common.observation_transform import ObservationTransform
from offline_cli.episodes.one_hot import hot_size, one_hot_leaf
from offline_cli.spaces import Space, describe

__all__ = ["OneHot"]


class OneHot(ObservationTransform):
    """Discrete(n) becomes (n,) float32, MultiDiscrete the vectors of its parts, one after the other. `start` is honoured.

    Discrete(3), 1 -> [0, 1, 0]; MultiDiscrete([3, 4]), [1, 3] -> [0, 1, 0, 0, 0, 0, 1].
    """

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """Box(0, 1). Raises SpaceMismatch for other spaces than Discrete and MultiDiscrete."""
        size = hot_size(self._counted(observations))
        self.check_size((size,))
        return spaces.Box(0.0, 1.0, (size,), np.float32)

    def transform(self, rows: Any, space: Space, agent_id: Any) -> NDArray[np.float32]:
        """(N, size) for N observations. Raises BadEpisode for a value outside the space."""
        vectors = one_hot_leaf(rows, self._counted(space), where=f"piece {type(self).__name__}")
        return vectors.reshape(len(vectors), -1)  # single choices may come as arrays of one

    def _counted(self, space: Space) -> spaces.Discrete[Any] | spaces.MultiDiscrete:
        """The space, which counts choices."""
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            return space
        got = f"observations of {describe(space)}"
        raise self.misfit(got, "Discrete or MultiDiscrete", fix="flatten_observations takes any space apart")
