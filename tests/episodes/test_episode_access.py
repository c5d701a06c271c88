"""Getters and setters of an episode: which records they take, fill and overwrite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode, EpisodeIndexError, OfflineCliError

Make = Callable[..., SingleAgentEpisode]


@pytest.mark.parametrize("numpyized", [False, True])
def test_an_index_outside_the_episode_is_an_index_error_that_names_episode_and_data(counting: Make, numpyized: bool) -> None:
    episode = counting()
    if numpyized:
        episode.to_numpy()
    with pytest.raises(IndexError) as caught:
        episode.get_rewards(7)
    assert isinstance(caught.value, OfflineCliError)
    assert "episode e, rewards" in caught.value.where
    with pytest.raises(EpisodeIndexError, match="timestep 9"):
        episode.get_observations([0, 9])


@pytest.mark.parametrize("numpyized", [False, True])
def test_a_filled_range_has_one_record_per_position_on_both_sides(counting: Make, numpyized: bool) -> None:
    episode = counting(3)
    if numpyized:
        episode.to_numpy()
    options: dict[str, Any] = {"neg_index_as_lookback": True, "fill": 9}
    assert list(episode.get_rewards(slice(-2, 5), **options)) == [9, 9, 0, 1, 2, 9, 9]
    assert list(episode.get_rewards(slice(-2, 5, 2), **options)) == [9, 0, 2, 9]
    assert list(episode.get_rewards(slice(4, -2, -1), **options)) == [9, 9, 2, 1, 0, 9]
    assert list(episode.get_rewards(slice(3, 3), **options)) == []


def test_fill_follows_every_leaf_of_a_nested_space(nested: Make) -> None:
    for episode in (nested(), nested().to_numpy()):
        item = episode.get_actions(99, fill=2)
        assert isinstance(item, tuple)
        assert item[0] == 2
        np.testing.assert_array_equal(item[1], np.full(2, 2, np.float32))
    batch = nested().to_numpy().get_observations([0, 99], fill=0.0)
    assert batch["a"].shape == (2, 2)
    assert batch["b"].tolist() == [0, 0]


def test_a_fill_that_the_space_cannot_hold_is_refused() -> None:
    episode = SingleAgentEpisode(observations=[np.zeros(1, np.uint8)], observation_space=gym.spaces.Box(0, 9, (1,), np.uint8))
    with pytest.raises(BadEpisode, match="fill"):
        episode.get_observations(9, fill=-1)


def test_one_hot_counts_from_the_start_of_a_discrete_space() -> None:
    space = gym.spaces.Discrete(3, start=5)
    episode = SingleAgentEpisode(observations=[0, 1], actions=[6], rewards=[0.0], action_space=space, len_lookback_buffer=0)
    assert episode.get_actions(0, one_hot_discrete=True).tolist() == [0.0, 1.0, 0.0]
    assert episode.to_numpy().get_actions(one_hot_discrete=True).tolist() == [[0.0, 1.0, 0.0]]
    assert episode.get_actions([-9], fill=0, one_hot_discrete=True).tolist() == [[0.0, 0.0, 0.0]]


def test_one_hot_of_multi_discrete_joins_one_vector_per_part() -> None:
    space = gym.spaces.MultiDiscrete([2, 3])
    episode = SingleAgentEpisode(
        observations=[np.array([1, 2]), np.array([0, 0])], actions=[0], rewards=[0.0], len_lookback_buffer=0
    )
    episode.observation_space = space
    assert episode.get_observations(one_hot_discrete=True)[0].tolist() == [0, 1, 0, 0, 1]
    assert episode.to_numpy().get_observations(one_hot_discrete=True).tolist() == [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]


def test_the_older_singular_spellings_do_the_same(nested: Make, dict_item: Callable[[int], dict[str, Any]]) -> None:
    episode = nested()
    episode.set_reward(new_value=5.0, at_index=-1)
    episode.set_observation(new_value=dict_item(7), at_index=-1)
    episode.set_action(new_value=(8, np.zeros(2, np.float32)), at_index=0)
    episode.set_info(new_value={"k": 1}, at_index=0)
    episode.set_extra_model_output(key="state", new_value={"h": np.ones(3)}, at_index=0)
    assert episode.get_reward(-1, fill=0.0) == 5.0
    assert episode.get_observation(-1)["b"] == 7
    assert episode.get_action(0)[0] == 8
    assert episode.get_info(0) == {"k": 1}
    assert episode.get_extra_model_output("state", 0)["h"].tolist() == [1, 1, 1]
    assert SingleAgentEpisode(observations=[0]).get_reward(-1, fill=0.0) == 0.0


@pytest.mark.parametrize("numpyized", [False, True])
def test_setters_overwrite_one_several_a_range_or_all(counting: Make, numpyized: bool) -> None:
    episode = counting(len_lookback_buffer=1)
    if numpyized:
        episode.to_numpy()
    array = np.array if numpyized else list
    episode.set_rewards(new_data=7.5, at_indices=-1, neg_index_as_lookback=True)
    assert list(episode.get_rewards(slice(-1, None), neg_index_as_lookback=True)) == [7.5, 1.0, 2.0, 3.0]
    episode.set_rewards(new_data=array([8.0, 9.0]), at_indices=[0, -1])
    assert list(episode.get_rewards()) == [8.0, 2.0, 9.0]
    episode.set_rewards(new_data=array([4.0, 5.0]), at_indices=slice(1, None))
    assert list(episode.get_rewards()) == [8.0, 4.0, 5.0]
    episode.set_rewards(new_data=array([1.0, 1.0, 1.0]))
    assert episode.get_return() == 3.0


@pytest.mark.parametrize("numpyized", [False, True])
def test_an_extra_model_output_is_set_by_its_key(numpyized: bool) -> None:
    outputs = {"logp": [0.0, 1.0, 2.0], "value": [3.0, 4.0, 5.0]}
    steps: dict[str, Any] = {"observations": [0, 1, 2, 3], "actions": [0, 1, 0], "rewards": [0.0, 1.0, 2.0]}
    episode = SingleAgentEpisode(**steps, extra_model_outputs=outputs, len_lookback_buffer=0)
    if numpyized:
        episode.to_numpy()
    episode.set_extra_model_outputs(key="logp", new_data=7.0, at_indices=1)
    assert list(episode.get_extra_model_outputs("logp")) == [0.0, 7.0, 2.0]
    assert list(episode.get_extra_model_outputs("value")) == [3.0, 4.0, 5.0]
    with pytest.raises(KeyError):
        episode.set_extra_model_outputs(key="reward", new_data=7.0, at_indices=1)


@pytest.mark.parametrize("numpyized", [False, True])
def test_setters_refuse_another_number_of_values_and_change_nothing(counting: Make, numpyized: bool) -> None:
    episode = counting()
    if numpyized:
        episode.to_numpy()
    for indices in (None, [0, 1], slice(0, 2)):
        with pytest.raises(EpisodeIndexError, match="3"):
            episode.set_rewards(new_data=[9.0, 9.0, 9.0], at_indices=indices)
    with pytest.raises(EpisodeIndexError):
        episode.set_rewards(new_data=[9.0, 9.0], at_indices=[0, 17])
    assert list(episode.get_rewards()) == [0.0, 1.0, 2.0, 3.0]


def test_numpyized_nested_data_is_set_leaf_by_leaf(nested: Make, dict_item: Callable[[int], dict[str, Any]]) -> None:
    episode = nested().to_numpy()
    episode.set_observations(new_data=dict_item(7), at_indices=0)
    episode.set_actions(new_data=(np.array([5, 6]), np.ones((2, 2), np.float32)), at_indices=slice(0, 2))
    episode.set_actions(new_data=[(8, np.zeros(2, np.float32))], at_indices=[-1])
    assert episode.get_observations(0)["a"].tolist() == [7, -7]
    assert episode.get_actions()[0].tolist() == [5, 6, 2, 8]


def test_numpyized_data_is_set_only_to_values_of_its_space_and_all_leaves_or_none(nested: Make) -> None:
    episode = nested().to_numpy()
    with pytest.raises(BadEpisode):
        episode.set_observations(new_data={"a": np.ones(2, np.float32), "b": 99}, at_indices=0)
    with pytest.raises(BadEpisode):
        episode.set_observations(new_data={"a": np.ones(2, np.float32)}, at_indices=0)
    assert episode.get_observations(0)["a"].tolist() == [0, 0]


def test_episode_state_and_pieces_do_not_write_into_each_other(counting: Make) -> None:
    episode = counting().to_numpy()
    state, part, chunk = episode.get_state(), episode[1:3], episode.cut(2)
    part.set_rewards(new_data=-1.0, at_indices=0)
    chunk.set_rewards(new_data=-2.0, at_indices=-1)
    episode.set_rewards(new_data=-3.0, at_indices=2)
    assert state["rewards"]["data"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert part.get_rewards().tolist() == [-1.0, 2.0]
    assert chunk.get_rewards(slice(-2, None)).tolist() == [2.0, -2.0]
    assert episode.get_rewards().tolist() == [0.0, 1.0, -3.0, 3.0]
