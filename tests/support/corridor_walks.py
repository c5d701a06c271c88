"""Walks in a corridor of four places, for estimates of a policy's value."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from offline_cli import EpisodeBatch

CORRIDOR = spaces.Discrete(4)


def walks(count: int, seed: int = 0, *, right: float = 0.5, logp: bool = True, shared_ids: bool = False) -> EpisodeBatch:
    """Walks of 6 steps over 4 places, to the right with the probability `right`; each step at the last place gives 1.

    `shared_ids`: walks of another seed have the same ids.
    """
    chance = np.random.default_rng(seed)
    actions = (chance.random((count, 6)) < right).astype(np.int64)
    places = np.zeros((count, 7), np.int64)
    for step in range(6):
        places[:, step + 1] = np.clip(places[:, step] + 2 * actions[:, step] - 1, 0, 3)
    chosen = np.where(actions, right, 1 - right)
    return EpisodeBatch(
        ids=tuple(f"{number}" if shared_ids else f"walk-{seed}-{number}" for number in range(count)),
        starts=np.arange(count + 1) * 6,
        obs=places.ravel(),
        actions=actions.ravel(),
        rewards=(places[:, 1:] == 3).astype(np.float64).ravel(),
        terminated=np.ones(count, np.bool_),
        truncated=np.zeros(count, np.bool_),
        extra={"action_logp": np.log(chosen).astype(np.float32).ravel()} if logp else {},
        observation_space=CORRIDOR,
        action_space=spaces.Discrete(2),
    )
