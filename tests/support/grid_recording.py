"""Episodes with uint8 observations of several bounds and nested actions, by arithmetic alone: the same on every machine."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch

__all__ = ["ACTIONS", "OBSERVATIONS", "grid_episodes"]

OBSERVATIONS = spaces.Dict(
    {
        "grid": spaces.Box(0, 1, (2, 2), np.uint8),
        "pixels": spaces.Box(0, 255, (3,), np.uint8),
        "speed": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    }
)
ACTIONS = spaces.Tuple(
    [
        spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([0.5, 10.0], np.float32)),
        spaces.Discrete(3),
        spaces.Dict({"knob": spaces.Box(-1.0, 1.0, (1,), np.float32), "lamps": spaces.MultiBinary(2)}),
    ]
)


def grid_episodes(*, episodes: int = 8, length: int = 20) -> EpisodeBatch:
    """Episodes whose actions, of the scale `normalized`, follow from the observations."""
    rows = np.arange(episodes * (length + 1))
    starts = np.arange(episodes + 1) * length
    acted = np.arange(starts[-1]) + np.repeat(np.arange(episodes), length)
    grid = ((rows[:, None] >> np.arange(4)) & 1).astype(np.uint8).reshape(-1, 2, 2)
    speed = (np.stack([rows * 13 % 17, rows * 7 % 11], -1) / 8 - 1).astype(np.float32)
    return EpisodeBatch(
        ids=tuple(f"grid-{i}" for i in range(episodes)),
        starts=starts,
        obs={"grid": grid, "pixels": (rows[:, None] * np.array([37, 11, 5]) % 256).astype(np.uint8), "speed": speed},
        actions=(
            speed[acted] / 2,
            acted % 3,
            {"knob": grid[acted, 0, :1].astype(np.float32) - 0.5, "lamps": grid[acted, 1].astype(np.int8)},
        ),
        rewards=np.ones(int(starts[-1])),
        terminated=np.ones(episodes, np.bool_),
        truncated=np.zeros(episodes, np.bool_),
        observation_space=OBSERVATIONS,
        action_space=ACTIONS,
    )
