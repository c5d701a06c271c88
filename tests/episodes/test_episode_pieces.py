"""Cutting, slicing and joining episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode
from offline_cli.testing import assert_same_episode

Make = Callable[..., SingleAgentEpisode]


def test_a_slice_keeps_flags_at_the_end_and_timesteps_everywhere(counting: Make) -> None:
    episode = counting(terminated=True)
    assert episode[2:].is_terminated
    assert episode[1:99].is_terminated
    assert not episode[:2].is_terminated
    assert (episode[1:3].t_started, episode[1:3].t, len(episode[1:3])) == (1, 3, 2)
    assert episode[-99:2].get_actions() == [10, 11]
    assert episode[3:1].get_observations() == [3]


@pytest.mark.parametrize("numpyized", [False, True])
def test_a_slice_looks_back_on_the_steps_before_it(nested: Make, numpyized: bool) -> None:
    episode = nested()
    if numpyized:
        episode.to_numpy()
    piece = episode.slice(slice(3, 4), len_lookback_buffer=3)
    assert piece.get_actions(-3, neg_index_as_lookback=True)[0] == 0
    assert len(piece) == 1
    assert episode.slice(slice(1, 2), len_lookback_buffer=3).actions.lookback == 1


def test_slices_with_a_step_and_single_indices_are_refused(counting: Make) -> None:
    with pytest.raises(BadEpisode):
        counting()[::2]
    with pytest.raises(BadEpisode, match="get_observations"):
        counting()[2]  # type: ignore[index]


def test_pieces_keep_agent_and_module_and_cut_copies_custom_data(counting: Make) -> None:
    episode = counting(agent_id="left", module_id="shared", multi_agent_episode_id="m")
    episode.custom_data["frames"] = [1]
    for piece in (episode.cut(), episode[1:2]):
        assert (piece.agent_id, piece.module_id, piece.multi_agent_episode_id) == ("left", "shared", "m")
    episode.cut().custom_data["frames"].append(2)
    assert episode.custom_data == {"frames": [1]}
    assert episode[1:2].custom_data == {}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_chunks_join_whichever_of_them_is_numpyized(nested: Make, first: bool, second: bool) -> None:
    whole = nested(6)
    left, right = nested(6)[:2], nested(6)[2:]
    for chunk, numpyized in ((left, first), (right, second)):
        if numpyized:
            chunk.to_numpy()
    left.concat_episode(right)
    assert left.is_numpy is first
    whole._start_time = left._start_time
    assert_same_episode(left, whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id_": "other"}, "other"),
        ({"t_started": 5}, "5"),
        ({"observations": [9, 9]}, "observation"),
        ({"extra_model_outputs": {"x": [1]}}, "extra model outputs"),
    ],
)
def test_chunks_that_do_not_continue_the_episode_are_refused(counting: Make, change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "id_": "e",
        "observations": [4, 5],
        "actions": [1],
        "rewards": [1.0],
        "t_started": 4,
        "len_lookback_buffer": 0,
    }
    episode = counting()
    with pytest.raises(BadEpisode, match=message):
        episode.concat_episode(SingleAgentEpisode(**{**given, **change}))
    assert len(episode) == 4


def test_joining_takes_over_both_flags_infos_and_custom_data(counting: Make) -> None:
    episode = counting()
    chunk = episode.cut()
    chunk.add_env_step(5, 5, 5.0, {"k": 1}, terminated=True, truncated=True)
    chunk.custom_data["x"] = 1
    episode.concat_episode(chunk)
    assert (episode.is_terminated, episode.is_truncated) == (True, True)
    assert episode.get_infos() == [{}, {}, {}, {}, {}, {"k": 1}]
    assert episode.custom_data == {"x": 1}
