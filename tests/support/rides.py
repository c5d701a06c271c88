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


def changed(state: SingleAgentEpisode, **arrays: Any) -> SingleAgentEpisode:
    """`state`, with `obs` or `actions` passed through a function."""
    if "obs" in arrays:
        state.set_observations(new_data=list(arrays["obs"](np.stack(state.get_observations()))))
    if "actions" in arrays:
        state.set_actions(new_data=list(arrays["actions"](np.stack(state.get_actions()))))
    return state


def held(channel: int, since: int) -> Any:
    """A function that lets a channel of observations keep its value from a step on."""

    def hold(obs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        obs = obs.copy()
        obs[since:, channel] = obs[since, channel]
        return obs

    return hold
