"""States of episodes, and what else can be said about one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from offline_cli.episodes.buffers.lookback_buffer import InfiniteLookbackBuffer
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode, OfflineCliError

Make = Callable[..., SingleAgentEpisode]


@pytest.mark.parametrize("numpyized", [False, True])
def test_a_state_makes_an_equal_episode(nested: Make, numpyized: bool) -> None:
    episode = nested(truncated=True, agent_id="a", t_started=3)
    episode.custom_data["k"] = "v"
    if numpyized:
        episode.to_numpy()
    again = SingleAgentEpisode.from_state(copy.deepcopy(episode.get_state()))
    assert again.get_state().keys() == episode.get_state().keys()
    for name in (
        "observations",
        "actions",
        "rewards",
        "infos",
        "extra_model_outputs",
        "custom_data",
        "agent_id",
        "t",
        "t_started",
    ):
        assert getattr(again, name) == getattr(episode, name), name
    assert (again.is_truncated, again.is_numpy, again.observation_space) == (True, numpyized, episode.observation_space)


def test_episodes_survive_pickle_and_deepcopy(nested: Make) -> None:
    episode = nested().to_numpy()
    for again in (pickle.loads(pickle.dumps(episode)), copy.deepcopy(episode)):
        assert again.actions == episode.actions
        again.set_rewards(new_data=9.0, at_indices=0)
    assert episode.get_rewards(0) == 0.0


@pytest.mark.parametrize(
    "change",
    [
        {"extra_model_outputs": {}},
        {"_temporary_timestep_data": {"k": 1}, "custom_data": None},
        {"_temporary_timestep_data": None, "custom_data": None},
        {"is_terminated": np.bool_(True)},
    ],
)
def test_states_of_older_versions_are_read(counting: Make, change: dict[str, Any]) -> None:
    state = {**counting().get_state(), **change}
    if state["custom_data"] is None:
        del state["custom_data"]
    episode = SingleAgentEpisode.from_state(state)
    assert episode.custom_data == (change.get("_temporary_timestep_data") or {})
    assert episode.is_terminated is bool(change.get("is_terminated", False))


@pytest.mark.parametrize("numpyized", [False, True])
def test_tuples_that_became_lists_in_msgpack_become_tuples_again(nested: Make, numpyized: bool) -> None:
    episode = nested()
    if numpyized:
        episode.to_numpy()
    state = episode.get_state()
    data = state["actions"]["data"]
    state["actions"]["data"] = list(data) if numpyized else [list(item) for item in data]
    again = SingleAgentEpisode.from_state(state)
    assert again.actions == episode.actions
    assert isinstance(again.get_actions(0), tuple)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("rewards",), None, "rewards"),
        (("t",), 9, "steps between t_started and t"),
        (("observations", "data"), {"a": np.zeros(5), "b": np.zeros(4)}, "lengths"),
        (("observations", "data"), [0.0, 1.0], "not an array"),
    ],
)
def test_states_of_another_form_are_refused(counting: Make, path: tuple[str, ...], value: Any, message: str) -> None:
    state = copy.deepcopy(counting().to_numpy().get_state())
    inner = state if len(path) == 1 else state[path[0]]
    inner[path[-1]] = value
    with pytest.raises(BadEpisode) as caught:
        SingleAgentEpisode.from_state(state)
    assert message in str(caught.value)
    assert "episode e" in caught.value.where


def test_a_state_without_a_key_is_refused_by_its_name(counting: Make) -> None:
    state = counting().get_state()
    del state["t_started"]
    with pytest.raises(BadEpisode, match="t_started"):
        SingleAgentEpisode.from_state(state)


def test_equal_spaces_of_many_states_are_one_object(nested: Make) -> None:
    states = [copy.deepcopy(nested().get_state()) for _ in range(2)]
    first, second = map(SingleAgentEpisode.from_state, states)
    assert first.observation_space is second.observation_space


def test_facts_of_an_episode(counting: Make) -> None:
    episode = counting(t_started=7)
    assert (episode.env_steps(), episode.agent_steps(), episode.t, episode.get_return()) == (4, 4, 11, 6.0)
    assert episode.get_duration_s() == 0.0
    episode.add_env_step(9, 9, 1.0)
    episode.add_env_step(9, 9, 1.0)
    assert episode.get_duration_s() > 0.0


def test_the_data_dict_has_t_rows_in_every_column(counting: Make) -> None:
    for steps in (0, 3):
        columns = counting(steps, terminated=steps == 3, t_started=2).get_data_dict()
        assert {name: len(column) for name, column in columns.items()} == dict.fromkeys(columns, steps)
    assert columns["terminateds"] == [False, False, True]
    assert columns["t"] == [2, 3, 4]


def test_setting_a_space_sets_it_for_fills_too(counting: Make) -> None:
    episode = counting()
    episode.action_space = gym.spaces.Discrete(50)
    assert episode.get_actions(99, fill=3).dtype == np.int64


def test_temporary_timestep_data_points_to_custom_data(counting: Make) -> None:
    for call in (counting().add_temporary_timestep_data, counting().get_temporary_timestep_data):
        with pytest.raises(OfflineCliError, match="custom_data"):
            call("key")


def test_empty_infos_are_dicts_of_their_own(counting: Make) -> None:
    episode = counting()
    episode.get_infos(0)["k"] = 1
    assert episode.get_infos() == [{"k": 1}, {}, {}, {}, {}]


def test_infos_that_begin_late_line_up_with_observations(counting: Make) -> None:
    episode = counting()
    episode.add_env_step(9, 9, 1.0, {"k": 1})
    assert episode.get_infos() == [{}, {}, {}, {}, {}, {"k": 1}]


def test_buffers_can_be_used_by_themselves() -> None:
    buffer = InfiniteLookbackBuffer([1, 2, 3], lookback=1)
    buffer.append(4)
    buffer[0] = 20
    buffer.pop()
    assert (buffer[:], len(buffer), buffer.len_incl_lookback()) == ([20, 3], 2, 3)
    assert (buffer + 1).data == [2, 21, 4]
    assert (buffer + InfiniteLookbackBuffer([8, 9], lookback=1)).data == [1, 20, 3, 9]
    buffer.finalize()
    buffer.extend([5, 6])
    buffer.pop(0)
    assert buffer.data.tolist() == [20, 3, 5, 6]
    with pytest.raises(BadEpisode, match="numpy"):
        buffer + 1
