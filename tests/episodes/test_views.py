"""An EpisodeBatch and its single episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode
from offline_cli.testing import assert_same_episode

OBS = gym.spaces.Dict({"x": gym.spaces.Box(-99.0, 99.0, (2,), np.float32), "p": gym.spaces.Tuple([gym.spaces.Discrete(99)])})
ACT = gym.spaces.MultiDiscrete([99, 99])


def made(name: str, steps: int, *, numpyized: bool = False, **options: Any) -> SingleAgentEpisode:
    given: dict[str, Any] = {"observation_space": OBS, "action_space": ACT, "len_lookback_buffer": 0, **options}
    episode = SingleAgentEpisode(
        name,
        observations=[{"x": np.full(2, step, np.float32), "p": (step,)} for step in range(steps + 1)],
        actions=[np.array([step, 2 * step]) for step in range(steps)],
        rewards=list(range(steps)),
        extra_model_outputs={"logp": [np.float32(-step) for step in range(steps)]},
        **given,
    )
    return episode.to_numpy() if numpyized else episode


@pytest.mark.parametrize("numpyized", [(False, False, False), (True, True, True), (True, False, True)])
def test_a_batch_of_episodes_has_one_array_per_leaf(numpyized: tuple[bool, bool, bool]) -> None:
    sizes = (3, 1, 2)
    batch = EpisodeBatch.from_episodes(
        made(f"e{i}", steps, numpyized=flag) for i, (steps, flag) in enumerate(zip(sizes, numpyized, strict=True))
    )
    assert batch.ids == ("e0", "e1", "e2")
    assert batch.starts.tolist() == [0, 3, 4, 6]
    assert batch.obs["x"][:, 0].tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2]
    assert batch.obs["p"][0].tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2]
    assert batch.actions.tolist() == [[0, 0], [1, 2], [2, 4], [0, 0], [0, 0], [1, 2]]
    assert batch.rewards.dtype == np.float64
    assert batch.rewards.tolist() == [0, 1, 2, 0, 0, 1]
    assert batch.extra["logp"].dtype == np.float32
    assert batch.infos is None
    assert batch.observation_space == OBS


def test_an_episode_of_a_batch_equals_the_one_it_was_made_of() -> None:
    episode = made("e1", 3, terminated=True, t_started=5, agent_id="a", module_id="m", multi_agent_episode_id="x")
    episode.custom_data["k"] = 1
    episode.set_infos(new_data={"i": 1}, at_indices=2)
    episode._start_time, episode._last_step_time = 1.0, 3.0
    again = EpisodeBatch.from_episodes([made("e0", 2), episode])[1]
    again.validate()
    episode.to_numpy()
    assert_same_episode(again, episode)
    assert (again._start_time, again._last_step_time) == (1.0, 3.0)
    assert again.is_numpy


def test_setters_of_a_view_leave_the_batch_alone() -> None:
    batch = EpisodeBatch.from_episodes([made("e0", 2), made("e1", 2)])
    view = batch[0]
    assert np.shares_memory(view.get_observations()["x"], batch.obs["x"])
    view.set_observations(new_data={"x": np.full(2, 7, np.float32), "p": (7,)}, at_indices=0)
    view.set_rewards(new_data=7.0, at_indices=0)
    view.custom_data["k"] = 1
    assert view.get_observations(0)["x"].tolist() == [7, 7]
    assert batch.obs["x"][0].tolist() == [0, 0]
    assert batch.rewards[0] == 0
    assert batch[0].custom_data == {}


@pytest.mark.parametrize("numpyized", [False, True])
def test_episodes_of_a_first_observation_only_are_legal(numpyized: bool) -> None:
    batch = EpisodeBatch.from_episodes([made("e0", 0, numpyized=numpyized), made("e1", 2), made("e2", 0, numpyized=numpyized)])
    assert batch.lengths.tolist() == [0, 2, 0]
    assert batch.actions.shape == (2, 2)
    assert batch.extra["logp"].shape == (2,)
    assert [len(episode) for episode in batch] == [0, 2, 0]


def plain(name: str, observations: list[Any], **options: Any) -> SingleAgentEpisode:
    return SingleAgentEpisode(name, observations=observations, actions=[0], rewards=[0.0], len_lookback_buffer=0, **options)


ZERO = np.zeros(2, np.float32)


@pytest.mark.parametrize("finish", [lambda episode: episode, lambda episode: episode.to_numpy()], ids=["lists", "arrays"])
@pytest.mark.parametrize(
    "observations",
    [
        [np.zeros(3, np.float32), np.zeros(3, np.float32)],
        [np.zeros(2), np.zeros(2)],
        [{"x": ZERO}, {"x": ZERO}],
        [(ZERO,), (ZERO,)],
        [1, 2],
    ],
    ids=["shape", "dtype", "dict", "tuple", "scalar"],
)
def test_episodes_that_cannot_share_arrays_are_refused_by_name(
    observations: list[Any], finish: Callable[[SingleAgentEpisode], SingleAgentEpisode]
) -> None:
    with pytest.raises(BadEpisode) as caught:
        EpisodeBatch.from_episodes([plain("good", [ZERO, ZERO]), finish(plain("odd", observations))])
    assert "episode odd" in caught.value.where
    assert "obs" in caught.value.what


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (ZERO, np.full(2, 1 / 3)),
        (np.zeros(2, np.int64), np.full(2, 0.5)),
        (np.zeros(2, np.uint8), np.full(2, -1)),
        (1, 0.5),
    ],
)
def test_a_type_that_changes_within_an_episode_becomes_one_that_holds_every_step(first: Any, later: Any) -> None:
    for values in ([first, later], [later, first]):
        found = EpisodeBatch.from_episodes([plain("mixed", values)]).obs
        assert [np.array_equal(row, value) for row, value in zip(found, values, strict=True)] == [True, True]


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (np.full(2, (1 << 53) + 1), np.full(2, 0.5)),
        (1, "1"),
        (np.zeros(2), np.array(["a", "b"])),
    ],
)
def test_a_type_that_changes_so_that_no_type_holds_every_step_is_refused(first: Any, later: Any) -> None:
    for values in ([first, later], [later, first]):
        with pytest.raises(BadEpisode) as caught:
            EpisodeBatch.from_episodes([plain("mixed", values)])
        assert caught.value.where == "episode mixed, observations, its only leaf"


def test_episodes_of_different_spaces_are_refused() -> None:
    small, large = (gym.spaces.Box(-bound, bound, (2,), np.float32) for bound in (1.0, 2.0))
    with pytest.raises(BadEpisode, match="observation_space"):
        EpisodeBatch.from_episodes(
            [plain("a", [ZERO, ZERO], observation_space=small), plain("b", [ZERO, ZERO], observation_space=large)]
        )
