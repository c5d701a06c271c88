"""States of episodes, and what else can be said about one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode
from offline_cli.testing import assert_same_episode

Make = Callable[..., SingleAgentEpisode]


@pytest.mark.parametrize("numpyized", [False, True])
def test_a_state_makes_an_equal_episode(nested: Make, numpyized: bool) -> None:
    episode = nested(truncated=True, agent_id="a", t_started=3)
    episode.custom_data["k"] = "v"
    if numpyized:
        episode.to_numpy()
    again = SingleAgentEpisode.from_state(copy.deepcopy(episode.get_state()))
    assert again.get_state().keys() == episode.get_state().keys()
    assert_same_episode(again, episode)
    assert (again.is_truncated, again.is_numpy, again.observation_space) == (True, numpyized, episode.observation_space)


def test_episodes_survive_pickle_and_deepcopy(nested: Make) -> None:
    episode = nested().to_numpy()
    for again in (pickle.loads(pickle.dumps(episode)), copy.deepcopy(episode)):
        assert_same_episode(again, episode)
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
    assert_same_episode(again, episode)
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


def test_infos_that_begin_late_line_up_with_observations(counting: Make) -> None:
    episode = counting()
    episode.add_env_step(9, 9, 1.0, {"k": 1})
    assert episode.get_infos() == [{}, {}, {}, {}, {}, {"k": 1}]
