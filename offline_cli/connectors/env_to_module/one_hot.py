"""Choices as ones and zeros; refuses spaces that do not count choices."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.connectors.common.observation_transform import ObservationTransform
from offline_cli.connectors.common.sizes import check_size
from offline_cli.spaces import Space, describe

__all__ = ["OneHot"]


class OneHot(ObservationTransform):
    """Discrete(n) becomes (n,) float32, MultiDiscrete the vectors of its parts, one after the other. `start` is honoured.

    Discrete(3), 1 -> [0, 1, 0]; MultiDiscrete([3, 4]), [1, 3] -> [0, 1, 0, 0, 0, 0, 1].
    """

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """Box(0, 1). Raises SpaceMismatch for other spaces than Discrete and MultiDiscrete."""
        size = sum(self._counted(observations)[0])
        check_size(self, (size,))
        return spaces.Box(0.0, 1.0, (size,), np.float32)

    def transform(self, rows: Any, space: Space, agent_id: Any) -> NDArray[np.float32]:
        """(N, size) for N observations."""
        counts, starts = self._counted(space)
        choices = np.asarray(rows).reshape(len(rows), -1) - starts
        encoded = np.zeros((len(choices), sum(counts)), np.float32)
        np.put_along_axis(encoded, choices + np.cumsum([0, *counts[:-1]]), 1.0, axis=1)
        return encoded

    def _counted(self, space: Space) -> tuple[list[int], NDArray[np.int64]]:
        """How many choices each part has, and where each counts from."""
        if isinstance(space, spaces.Discrete):
            return [int(space.n)], np.array([int(space.start)])
        if isinstance(space, spaces.MultiDiscrete):
            return [int(n) for n in space.nvec.ravel()], space.start.ravel().astype(np.int64)
        got = f"observations of {describe(space)}"
        raise self.misfit(got, "Discrete or MultiDiscrete", fix="flatten_observations takes any space apart")
