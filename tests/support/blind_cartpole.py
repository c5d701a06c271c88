"""CartPole without velocities, and an expert that sees them: which way things move has to be told from several observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

POSITIONS = [0, 2]  # of the cart, and the pole's angle; 1 and 3 are their velocities
SLIPS = 0.5  # share of the steps


class BlindCartPole(gym.ObservationWrapper[Any, Any, Any]):
    """CartPole-v1 whose observations are the cart's position and the pole's angle."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        box = self.env.observation_space
        assert isinstance(box, gym.spaces.Box)
        self.observation_space = gym.spaces.Box(box.low[POSITIONS], box.high[POSITIONS], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[POSITIONS]


class SlipperyCartPole(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole-v1 whose motor does as it likes half of the time, so that the expert has to show how to recover."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))

    def step(self, action: Any) -> Any:
        chance = self.unwrapped.np_random
        return self.env.step(int(chance.integers(2)) if chance.random() < SLIPS else action)


def expert(observations: Any) -> Any:
    """Actions (B,) for observations (B, 4) of CartPole-v1: towards where the pole falls, and on the whole to the middle."""
    return (observations @ np.array([0.05, 0.15, 1.0, 0.5]) > 0).astype(np.int64)
