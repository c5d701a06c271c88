"""Choices as ones and zeros: what the pieces and the getters encode, and what lies outside the space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli import ConnectorV2, SingleAgentEpisode
from offline_cli.connectors.common.flattening import FlattenObservations
from offline_cli.connectors.env_to_module.default_pipeline import env_to_module_pipeline
from offline_cli.connectors.env_to_module.observation_preprocessor import OneHot
from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space

CHOICES = gym.spaces.Discrete(2)
TWO = gym.spaces.MultiDiscrete([3, 4])


def begun(space: Space, *observations: Any) -> list[SingleAgentEpisode]:
    episodes = []
    for number, observation in enumerate(observations):
        episode = SingleAgentEpisode(id_=f"e{number}", observation_space=space, action_space=CHOICES)
        episode.add_env_reset(observation)
        episodes.append(episode)
    return episodes


@pytest.mark.parametrize("encode", ["piece", "flattened"])
@pytest.mark.parametrize(
    ("space", "value", "said"),
    [
        (TWO, np.array([3, 0]), r"a value of 3 in component 0 is outside .* \(0 to 2\)"),
        (TWO, np.array([0, -1]), r"a value of -1 in component 1 is outside .* \(0 to 3\)"),
        (gym.spaces.MultiDiscrete([[2, 2], [2, 3]]), np.array([[0, 0], [2, 0]]), r"a value of 2 in component \(1, 0\)"),
        (gym.spaces.MultiDiscrete([2, 3], start=[0, 1]), np.array([0, 0]), r"a value of 0 in component 1 .* \(1 to 3\)"),
        (gym.spaces.Discrete(3), 3, r"a value of 3 is outside Discrete\(3\) \(0 to 2\)"),
        (gym.spaces.Discrete(3), -1, "a value of -1 is outside"),
        (gym.spaces.Discrete(3, start=4), 0, r"a value of 0 is outside .* \(4 to 6\)"),
        (gym.spaces.Discrete(3), 1.5, r"a value of 1\.5 is not a whole number, as a choice of Discrete\(3\) \(0 to 2\)"),
    ],
)
def test_a_choice_outside_its_space_is_an_error_that_names_value_and_component(
    encode: str, space: Any, value: Any, said: str
) -> None:
    piece: ConnectorV2 = OneHot() if encode == "piece" else FlattenObservations()
    pipeline = env_to_module_pipeline(space, CHOICES, custom=[piece])
    episodes = begun(space, space.start, value)
    with pytest.raises(BadEpisode, match=said) as caught:
        pipeline(episodes=episodes, rl_module=None)
    assert "row 1" in caught.value.where


@settings(deadline=None)
@given(data=st.data(), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), count=st.integers(1, 6))
def test_one_hot_vectors_lead_back_to_the_choices_and_others_are_an_error(
    data: st.DataObject, sizes: list[int], count: int
) -> None:
    starts = data.draw(st.lists(st.integers(-3, 3), min_size=len(sizes), max_size=len(sizes)))
    space = gym.spaces.MultiDiscrete(sizes, start=starts)
    rows = data.draw(st.lists(st.tuples(*[st.integers(-4, 7)] * len(sizes)), min_size=count, max_size=count))
    episodes = begun(space, *map(np.array, rows))
    pipeline = env_to_module_pipeline(space, CHOICES, custom=[OneHot()])
    if not all(space.contains(np.array(row)) for row in rows):
        with pytest.raises(BadEpisode, match="is outside"):
            pipeline(episodes=episodes, rl_module=None)
        return
    vectors = pipeline(episodes=episodes, rl_module=None)["obs"].numpy()
    parts = np.split(vectors, np.cumsum(sizes)[:-1], axis=1)
    assert all((part.sum(1) == 1).all() for part in parts)
    chosen = np.stack([part.argmax(1) + start for part, start in zip(parts, starts, strict=True)], axis=1)
    np.testing.assert_array_equal(chosen, rows)
