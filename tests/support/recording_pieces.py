"""Modules with and without memory, and pieces of a user's own; a module of its own, so that runner processes find it too."""

from __future__ import annotations

import os
import threading
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from odd_pieces import Scaled

from offline_cli import ConnectorV2
from offline_cli.modules import build_module, build_recurrent_module

SEEN = spaces.Box(-np.inf, np.inf, (3,), np.float32)
STACKED = spaces.Box(-np.inf, np.inf, (12,), np.float32)
CHOICES: Any = spaces.Discrete(3)
AIM = spaces.Box(-2.0, 3.0, (2,), np.float32)


def flat(module: Any) -> Any:
    """With all weights zero: whatever it sees, every action is as likely."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return module


net = build_module(SEEN, CHOICES, hidden=[16], seed=1)
stacked = build_module(STACKED, CHOICES, hidden=[16], seed=1)
aiming = build_module(STACKED, AIM, hidden=[16], action_scale="normalized", seed=2)
memory = build_recurrent_module(SEEN, CHOICES, hidden=[8], memory_size=5, max_seq_len=4, seed=3)
memory_stacked = build_recurrent_module(STACKED, CHOICES, hidden=[8], memory_size=5, max_seq_len=4, seed=3)

nested = build_module(
    spaces.Box(-np.inf, np.inf, (35,), np.float32),
    spaces.Tuple([spaces.Discrete(3, start=5), spaces.Box(0.0, np.inf, (1,), np.float32)]),
    hidden=[16],
    action_scale="normalized",
    seed=5,
)


class Failing(ConnectorV2):
    """Raises at the third observation of every episode of 20 steps, or at the last one."""

    def __init__(self, at: int = 2, lock: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.at = at
        self.lock = threading.Lock() if lock else None  # a thing that has no copies

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            seen = episode.get_observations(-1)
            if seen[1] == 20 and seen[0] == self.at:
                raise ValueError("cannot see")
        return batch


class Forgetful(ConnectorV2):
    """Gives no batch."""

    def __call__(self, **_: Any) -> Any:
        return None


class Doubling(ConnectorV2):
    """Two actions where the environment takes one."""

    def __call__(self, *, batch: Any, **_: Any) -> Any:
        self.foreach_batch_item_change_in_place(batch, "actions", lambda action, *_: np.array([action, action]))
        return batch


class Wordy(ConnectorV2):
    """Puts out a word."""

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, "word", "hello", episode)
        return batch


class Fickle(ConnectorV2):
    """Puts out one number, and later two."""

    size = 0

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        self.size += 1
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, "number", np.zeros(self.size), episode)
        return batch


class Uneven(ConnectorV2):
    """Puts out one number, and two for episodes that are further on."""

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, "number", np.zeros(1 + (len(episode) > 3)), episode)
        return batch


class Lying(ConnectorV2):
    """Gives other observations than it says."""

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, "obs", episode.get_observations(-1)[:2], episode)
        return batch


class Exiting(ConnectorV2):
    """Calls exit."""

    def __call__(self, **_: Any) -> Any:
        raise SystemExit(3)


class Where(ConnectorV2):
    """Notes which processes it ran in, and for which episodes."""

    pids: ClassVar[set[int]] = set()
    ids: ClassVar[set[str]] = set()

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        self.pids.add(os.getpid())
        self.ids.update(episode.id_ for episode in self.single_agent_episode_iterator(episodes))
        return batch


class Scribbling(ConnectorV2):
    """Writes over all that it is given."""

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            episode.set_observations(new_data=np.full(3, 7.0, np.float32), at_indices=-1)
            info = episode.get_infos(-1)
            info["scribble"] = 1
        return batch


def scaled(env: gym.Env[Any, Any]) -> list[ConnectorV2]:
    """A builder by function."""
    assert env.observation_space == SEEN
    return [Scaled()]
