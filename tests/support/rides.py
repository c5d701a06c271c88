"""Episodes of a made-up robot, well behaved, for tests that break one thing in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from offline_cli import SingleAgentEpisode

Made = Callable[..., str]
Run = Callable[..., str]


def episode(name: str, seed: int, *, steps: int = 120, reward: float = 1.0, **given: Any) -> SingleAgentEpisode:
    """Two sensors that wander, one that is always 3, and a smooth action."""
    random = np.random.default_rng(seed)
    t = np.arange(steps + 1)
    obs = np.stack([np.sin(t / 9 + seed), 20 + random.normal(size=steps + 1).cumsum() / 10, np.full(steps + 1, 3.0)], 1)
    actions = np.sin(t[:-1, None] / 11 + random.normal(size=2)) * 0.9 + random.normal(size=(steps, 2)) * 0.02
    return SingleAgentEpisode(
        id_=name,
        observations=list(obs.astype(np.float32)),
        actions=list(actions.clip(-1, 1).astype(np.float32)),
        rewards=list(reward + random.normal(size=steps) / 10),
        terminated=True,
        observation_space=spaces.Box(-100, 100, (3,), np.float32),
        action_space=spaces.Box(-1, 1, (2,), np.float32),
        len_lookback_buffer=0,
        **given,
    )
