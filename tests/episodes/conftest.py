"""Small episodes with numbers that say where they belong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from offline_cli.episodes.single_agent_episode import SingleAgentEpisode

DICT = gym.spaces.Dict({"a": gym.spaces.Box(-9.0, 9.0, (2,), np.float32), "b": gym.spaces.Discrete(9)})
TUPLE = gym.spaces.Tuple([gym.spaces.Discrete(9), gym.spaces.Box(-9.0, 9.0, (2,), np.float32)])


def _counting(steps: int = 4, **options: Any) -> SingleAgentEpisode:
    """Observations 0, 1, ..., actions 10, 11, ..., rewards 0.0, 1.0, ..."""
    given: dict[str, Any] = {"id_": "e", "len_lookback_buffer": 0, **options}
    return SingleAgentEpisode(
        observations=list(range(steps + 1)),
        actions=[10 + step for step in range(steps)],
        rewards=[float(step) for step in range(steps)],
        **given,
    )


def _dict_item(number: int) -> dict[str, Any]:
    return {"a": np.array([number, -number], np.float32), "b": number}


def _nested(steps: int = 4, **options: Any) -> SingleAgentEpisode:
    given: dict[str, Any] = {"id_": "e", "len_lookback_buffer": 0, "observation_space": DICT, "action_space": TUPLE, **options}
    return SingleAgentEpisode(
        observations=[_dict_item(step) for step in range(steps + 1)],
        actions=[(step, np.array([step, step], np.float32)) for step in range(steps)],
        rewards=[float(step) for step in range(steps)],
        extra_model_outputs={"state": [{"h": np.full(3, step, np.float32)} for step in range(steps)]},
        **given,
    )


@pytest.fixture(scope="session")
def counting() -> Callable[..., SingleAgentEpisode]:
    """A function: episodes of plain numbers, of so many steps."""
    return _counting


@pytest.fixture(scope="session")
def nested() -> Callable[..., SingleAgentEpisode]:
    """A function: episodes of dicts and tuples, of so many steps."""
    return _nested


@pytest.fixture(scope="session")
def dict_item() -> Callable[[int], dict[str, Any]]:
    """A function: an observation of `nested`, by its number."""
    return _dict_item
