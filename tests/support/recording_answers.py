"""An environment for every kind of action whose distribution a test works out again; and a module of somebody's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from offline_cli.modules import RLModule
from offline_cli.modules.distributions import build_head

SKEWED = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([0.5, 10.0], np.float32))
ANSWERS: dict[str, gym.Space[Any]] = {
    "box": SKEWED,
    "box without bounds": spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
    "float64 box": spaces.Box(-3.0, 11.0, (2,), np.float64),
    "discrete": spaces.Discrete(3, start=5),
    "multi-discrete": spaces.MultiDiscrete([3, 2]),
    "dict": spaces.Dict({"aim": SKEWED, "more": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1.0, 1.0, (1,), np.float32)])}),
    "tuple with bits": spaces.Tuple([spaces.MultiBinary(2), SKEWED]),
}


class Answering(gym.Env[Any, Any]):
    """Takes actions of `ANSWERS[name]`, twelve to an episode."""

    def __init__(self, name: str) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = ANSWERS[name]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 12
        return self._seen(), {}

    def _seen(self) -> Any:
        return self.np_random.normal(size=3).astype(np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._left -= 1
        return self._seen(), 1.0, self._left == 0, False, {}


class Wild(RLModule):
    """Somebody's own module, which knows nothing of limits."""

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        obs = batch["obs"]
        return {"action_dist_inputs": torch.cat([obs[:, :2], 9 * obs[:, :2]], 1)}


def wild() -> RLModule:
    observations = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    module = Wild(observations, SKEWED, build_head(SKEWED, action_scale="env"))
    module.anchor = torch.nn.Parameter(torch.zeros(1))
    return module


own = wild()
gym.register("Answering-v0", Answering)
