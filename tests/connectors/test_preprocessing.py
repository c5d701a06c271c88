"""Observation preprocessors, one's own and ours, beside an environment and beside a learner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from rllib_answers import Answers, asked_nightly

from offline_cli import Columns, MultiAgentEpisode, SingleAgentEpisode
from offline_cli.connectors import FlattenObservations, OneHot
from offline_cli.connectors.env_to_module.observation_preprocessor import (
    MultiAgentObservationPreprocessor,
    ObservationPreprocessor,
    WriteObservationsToEpisodes,
    env_to_module_pipeline,
)
from offline_cli.connectors.learner.added_columns import learner_pipeline
from offline_cli.errors import BadEpisode

VECTOR = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
CHOICES = gym.spaces.Discrete(2)


def going_on(space: Any, observations: list[Any]) -> SingleAgentEpisode:
    episode = SingleAgentEpisode(id_="e", observation_space=space, action_space=CHOICES)
    episode.add_env_reset(observations[0])
    for observation in observations[1:]:
        episode.add_env_step(observation, 0, 1.0)
    return episode


class Doubled(ObservationPreprocessor):
    """Twice the observation, and the length of the episode."""

    def recompute_output_observation_space(self, observations: Any, actions: Any) -> Any:
        return gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def preprocess(self, observation: Any, episode: Any) -> Any:
        return np.append(observation * 2, np.float32(len(episode)))


class DoubledByName(Doubled):
    def preprocess(self, observation: Any, *, episode: Any) -> Any:
        return Doubled.preprocess(self, observation, episode)


VECTORS = [np.array([t, -t], np.float32) for t in range(3)]


@pytest.mark.parametrize("piece", [Doubled, DoubledByName])
def test_preprocess_gets_the_episode_where_it_asks_for_it(piece: Callable[[], Any]) -> None:
    pipeline = env_to_module_pipeline(VECTOR, CHOICES, custom=[piece()])
    episode = going_on(VECTOR, VECTORS)
    assert pipeline(episodes=[episode], rl_module=None)[Columns.OBS].tolist() == [[4, -4, 2]]
    assert [obs.tolist() for obs in episode.get_observations()] == [[0, 0], [1, -1], [4, -4, 2]]
    assert episode.observation_space == pipeline.observation_space


def test_a_learner_preprocesses_every_observation_and_the_recording_is_left_alone() -> None:
    recorded = going_on(VECTOR, VECTORS).to_numpy()
    pipeline = learner_pipeline(VECTOR, CHOICES, custom=lambda *_: [Doubled(as_learner_connector=True)])
    episode = SingleAgentEpisode.from_state(recorded.get_state())
    batch = pipeline(episodes=[episode], rl_module=None)
    assert batch[Columns.OBS].tolist() == [[0, 0, 2], [2, -2, 2]]
    assert recorded.get_observations().shape == (3, 2)


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (gym.spaces.Discrete(3), 1, [0, 1, 0]),
        (gym.spaces.Discrete(3, start=4), 6, [0, 0, 1]),
        (gym.spaces.MultiDiscrete([3, 4]), np.array([1, 3]), [0, 1, 0, 0, 0, 0, 1]),
        (
            gym.spaces.MultiDiscrete([[2, 2], [2, 3]], start=[[0, 1], [0, 0]]),
            np.array([[1, 2], [0, 2]]),
            [0, 1, 0, 1, 1, 0, 0, 0, 1],
        ),
    ],
)
def test_choices_become_one_hot_vectors_side_by_side(space: Any, value: Any, expected: list[int]) -> None:
    pipeline = env_to_module_pipeline(space, CHOICES, custom=[OneHot()])
    found = pipeline(episodes=[going_on(space, [value])], rl_module=None)[Columns.OBS]
    assert found.tolist() == [expected]
    assert pipeline.observation_space.contains(found[0].numpy())


def test_observations_of_the_batch_are_written_into_the_episodes() -> None:
    episodes = [going_on(VECTOR, VECTORS), going_on(VECTOR, VECTORS[:1])]
    changed = gym.spaces.Box(-9, 9, (3,), np.float32)
    batch = {Columns.OBS: [np.full(3, 7, np.float32), np.full(3, 8, np.float32)]}
    assert WriteObservationsToEpisodes(changed, CHOICES)(batch=batch, episodes=episodes) is batch
    assert [episode.get_observations(-1).tolist() for episode in episodes] == [[7, 7, 7], [8, 8, 8]]
    assert episodes[0].observation_space == changed
    assert episodes[0].get_observations(0).tolist() == [0, 0]


class Twin(MultiAgentObservationPreprocessor):
    """Every agent sees the sum of all observations."""

    def preprocess(self, observations: Any) -> Any:
        total = sum(observations.values())
        return dict.fromkeys(observations, total)


AGENTS = gym.spaces.Dict({"a": VECTOR, "b": VECTOR, "c": VECTOR})


def of_two_agents() -> MultiAgentEpisode:
    """An episode of three agents, two of which have just seen something."""
    episode = MultiAgentEpisode(observation_space=AGENTS.spaces, action_space=dict.fromkeys(AGENTS.spaces, CHOICES))
    episode.add_env_reset(observations=dict.fromkeys("abc", VECTORS[0]))
    seen = {"a": VECTORS[1], "b": VECTORS[2]}
    episode.add_env_step(seen, dict.fromkeys("abc", 0), dict.fromkeys("abc", 1.0))
    return episode


def test_a_multi_agent_preprocessor_sees_all_agents_that_stepped() -> None:
    episode = of_two_agents()
    Twin(AGENTS, AGENTS)(batch={}, episodes=[episode])
    last = {agent: one.get_observations(-1).tolist() for agent, one in episode.agent_episodes.items()}
    assert last == {"a": [3, -3], "b": [3, -3], "c": [0, 0]}


def test_a_single_agent_preprocessor_is_called_for_each_agent_that_stepped() -> None:
    class Halved(ObservationPreprocessor):
        def preprocess(self, observation: Any) -> Any:
            return observation / 2

    episode = of_two_agents()
    Halved(AGENTS, AGENTS)(batch={}, episodes=[episode])
    last = {agent: one.get_observations(-1).tolist() for agent, one in episode.agent_episodes.items()}
    assert last == {"a": [0.5, -0.5], "b": [1, -1], "c": [0, 0]}
    assert episode.agent_episodes["a"].observation_space == VECTOR


NESTED = gym.spaces.Dict({"b": VECTOR, "a": gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.MultiDiscrete([2, 3])])})


@asked_nightly
@pytest.mark.parametrize(
    ("space", "piece"),
    [(gym.spaces.Discrete(5), OneHot), (gym.spaces.MultiDiscrete([3, 4]), OneHot), (NESTED, FlattenObservations)],
    ids=["choice", "choices", "nested"],
)
def test_the_built_in_preprocessing_is_that_of_rllib(answers: Answers, space: Any, piece: Any) -> None:
    def asked() -> Any:
        from ray.rllib.models.preprocessors import get_preprocessor

        return [get_preprocessor(space)(space).transform(observation) for observation in observations]

    space.seed(0)
    observations = [space.sample() for _ in range(10)]
    pipeline = env_to_module_pipeline(space, CHOICES, custom=[piece()])
    for observation, wanted in zip(observations, answers(asked), strict=True):
        found = pipeline(episodes=[going_on(space, [observation])], rl_module=None)[Columns.OBS].numpy()[0]
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("space", "value", "named"),
    [
        (gym.spaces.MultiDiscrete([3, 4]), np.array([3, 0]), "3.*0"),
        (gym.spaces.MultiDiscrete([[2, 2], [2, 3]]), np.array([[0, 0], [2, 0]]), "2.*2"),
        (gym.spaces.Discrete(3), 3, "3"),
        (gym.spaces.Discrete(3, start=4), 0, "0"),
        (gym.spaces.Discrete(3), 1.5, r"1\.5"),
    ],
)
def test_a_choice_outside_its_space_is_an_error_that_names_value_and_component(space: Any, value: Any, named: str) -> None:
    for piece in (OneHot(), FlattenObservations()):
        pipeline = env_to_module_pipeline(space, CHOICES, custom=[piece])
        with pytest.raises(BadEpisode, match=named) as caught:
            pipeline(episodes=[going_on(space, [space.start]), going_on(space, [value])], rl_module=None)
        assert "row 1" in caught.value.where
