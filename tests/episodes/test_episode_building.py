"""How an episode grows, and becomes arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode

Make = Callable[..., SingleAgentEpisode]


def test_given_steps_are_lookback_buffer_unless_told_otherwise(counting: Make) -> None:
    assert len(counting(3, len_lookback_buffer="auto")) == 0
    assert len(counting(3, len_lookback_buffer=1)) == 2
    assert len(counting(3)) == 3


def test_disagreeing_lengths_are_named_with_their_numbers() -> None:
    with pytest.raises(BadEpisode, match=r"2.*3.*1.*2.*1"):
        SingleAgentEpisode(observations=[0, 1], actions=[1, 2, 3], rewards=[0.0, 1.0], len_lookback_buffer=0)


@pytest.mark.parametrize("lookback", [-1, "all"])
def test_a_lookback_length_that_is_none_is_refused(counting: Make, lookback: Any) -> None:
    with pytest.raises(BadEpisode, match="len_lookback_buffer"):
        counting(3, len_lookback_buffer=lookback)


def test_resets_and_steps_out_of_turn_are_refused(counting: Make) -> None:
    for call in (
        lambda: counting().add_env_reset(0),
        lambda: SingleAgentEpisode().add_env_step(1, 1, 1.0),
        lambda: counting(terminated=True).add_env_step(1, 1, 1.0),
    ):
        with pytest.raises(BadEpisode):
            call()


def test_a_step_with_other_extra_outputs_is_refused_and_changes_nothing(counting: Make) -> None:
    episode = counting(extra_model_outputs={"logp": [0.0] * 4})
    with pytest.raises(BadEpisode, match="logp"):
        episode.add_env_step(1, 1, 1.0)
    assert len(episode) == 4
    episode.validate()


def test_a_numpyized_episode_grows_by_steps_of_its_spaces_only(
    nested: Make, dict_item: Callable[[int], dict[str, Any]]
) -> None:
    episode = nested().to_numpy()
    episode.add_env_step(dict_item(5), (1, np.zeros(2, np.float32)), 1.0, extra_model_outputs={"state": {"h": np.zeros(3)}})
    assert episode.get_observations()["a"].shape == (6, 2)
    with pytest.raises(BadEpisode, match="timestep 6"):
        episode.add_env_step(
            dict_item(50), (1, np.zeros(2, np.float32)), 1.0, extra_model_outputs={"state": {"h": np.zeros(3)}}
        )
    assert len(episode) == 5
    episode.validate()


@pytest.mark.parametrize("rewards", [[1, 2], [np.float32(1), np.float32(2)]])
def test_rewards_are_float64_once_numpyized(rewards: list[Any]) -> None:
    episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[0, 1], rewards=rewards, len_lookback_buffer=0).to_numpy()
    assert episode.get_rewards().dtype == np.float64


def test_ragged_observations_are_refused_with_step_and_shapes() -> None:
    episode = SingleAgentEpisode(
        observations=[np.zeros(2), np.zeros(3)], actions=[0], rewards=[0.0], len_lookback_buffer=0, id_="ragged"
    )
    with pytest.raises(BadEpisode, match=r"\(3,\).*\(2,\)") as caught:
        episode.to_numpy()
    assert caught.value.where == "episode ragged, observations, its only leaf"
