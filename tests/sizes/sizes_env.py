"""An environment as long and as wide as one asks for; named by module, as a user's is."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class SizedEnv(gym.Env[Any, Any]):
    """Episodes of `length` steps whose observations, of `dims` numbers, are all the step's number; the action is rewarded."""

    def __init__(self, dims: int = 2, length: int = 2) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (dims,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._dims, self._length, self._step = dims, length, 0

    def _seen(self) -> Any:
        return np.full(self._dims, self._step, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._seen(), float(action), self._step >= self._length, False, {}


gym.register("SizedShort-v0", SizedEnv, kwargs={"length": 2})
gym.register("SizedWide-v0", SizedEnv, kwargs={"dims": 10_000, "length": 5})
gym.register("SizedLong-v0", SizedEnv, kwargs={"length": 20_000})
gym.register("SizedLonger-v0", SizedEnv, kwargs={"length": 40_000})
