"""The six snippets that RLlib's Episodes page refers to without showing them, written here in our own words."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from offline_cli.episodes.single_agent_episode import SingleAgentEpisode


@pytest.fixture
def episode() -> SingleAgentEpisode:
    """Observations 10 to 15, actions 0 to 4, rewards 0.0 to 0.4: a reset and five steps."""
    episode = SingleAgentEpisode(observation_space=gym.spaces.Discrete(100), action_space=gym.spaces.Discrete(10))
    episode.add_env_reset(observation=10, infos={"seed": 1})
    for step in range(5):
        episode.add_env_step(
            observation=11 + step,
            action=step,
            reward=step / 10,
            infos={"step": step},
            terminated=step == 4,
            extra_model_outputs={"action_logp": -float(step)},
        )
    return episode


# ---- 01: creating and filling ----


def test_after_the_reset_there_is_one_observation_and_still_no_step() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(observation="obs_0", infos={"a": 1})
    assert episode.is_reset
    assert len(episode) == 0
    assert episode.get_observations() == ["obs_0"]


def test_every_step_adds_an_action_a_reward_and_the_next_observation(episode: SingleAgentEpisode) -> None:
    assert len(episode) == 5
    assert (len(episode.observations), len(episode.actions), len(episode.rewards), len(episode.infos)) == (6, 5, 5, 6)
    assert episode.is_terminated
    assert not episode.is_truncated
    assert episode.get_return() == pytest.approx(1.0)


# ---- 02: getters ----


def test_getters_give_one_item_for_an_index_and_a_list_for_a_list_or_slice(episode: SingleAgentEpisode) -> None:
    assert episode.get_observations(0) == 10
    assert episode.get_rewards(-1) == 0.4
    assert episode.get_actions([0, 2]) == [0, 2]
    assert episode.get_observations(slice(1, 3)) == [11, 12]
    assert episode.get_infos(-1) == {"step": 4}


def test_extra_model_outputs_are_got_by_their_key(episode: SingleAgentEpisode) -> None:
    assert episode.get_extra_model_outputs("action_logp", -2) == -3.0
    assert episode.get_extra_model_outputs(key="action_logp", indices=slice(0, 2)) == [0.0, -1.0]


# ---- 03: numpy'ized or not ----


def test_complex_observations_become_one_struct_of_batched_arrays() -> None:
    space = gym.spaces.Dict({"camera": gym.spaces.Box(0, 1, (2, 2)), "arm": gym.spaces.Tuple([gym.spaces.Discrete(3)])})
    episode = SingleAgentEpisode(observation_space=space)
    episode.add_env_reset(space.sample())
    for _ in range(2):
        episode.add_env_step(space.sample(), 0, 0.0)
    assert isinstance(episode.get_observations()[0], dict)
    observations = episode.to_numpy().get_observations()
    assert observations["camera"].shape == (3, 2, 2)
    assert isinstance(observations["arm"], tuple)
    assert observations["arm"][0].shape == (3,)


# ---- 04: cut and lookback ----


def test_cut_gives_a_chunk_that_goes_on_where_the_episode_stopped() -> None:
    episode = SingleAgentEpisode(observations=[0, 1, 2, 3], actions=[1, 2, 3], rewards=[1.0, 2.0, 3.0], len_lookback_buffer=0)
    chunk = episode.cut(len_lookback_buffer=1)
    assert chunk.id_ == episode.id_
    assert (len(chunk), chunk.t_started, chunk.t) == (0, 3, 3)
    assert chunk.get_actions(-1) == 3
    assert chunk.get_rewards(-1) == 3.0
    assert chunk.get_observations([-2, -1]) == [2, 3]


# ---- 05: looking back with a fill value ----


def test_the_last_five_rewards_are_filled_where_there_are_fewer() -> None:
    episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[1, 2], rewards=[1.0, 2.0], len_lookback_buffer=0)
    assert episode.get_rewards(slice(-5, None), fill=0.0) == [0.0, 0.0, 0.0, 1.0, 2.0]
    chunk = episode.cut(len_lookback_buffer=2)
    assert chunk.get_rewards(slice(-5, None), fill=0.0) == [0.0, 0.0, 0.0, 1.0, 2.0]
    np.testing.assert_array_equal(episode.to_numpy().get_rewards(slice(-5, None), fill=0.0), [0.0, 0.0, 0.0, 1.0, 2.0])


# ---- 06: looping over timesteps while looking back ----


@pytest.mark.parametrize("numpyized", [False, True])
def test_with_neg_index_as_lookback_a_window_slides_over_all_timesteps(numpyized: bool) -> None:
    whole = SingleAgentEpisode(
        observations=list(range(7)), actions=list(range(6)), rewards=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], len_lookback_buffer=0
    )
    chunk = whole.slice(slice(2, None), len_lookback_buffer=2)
    if numpyized:
        chunk.to_numpy()
    windows = [
        [float(reward) for reward in chunk.get_rewards(slice(ts - 3, ts), neg_index_as_lookback=True, fill=-1.0)]
        for ts in range(len(chunk))
    ]
    assert windows == [[-1.0, 0.0, 1.0], [0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]
