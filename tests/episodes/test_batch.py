"""EpisodeBatch: its rows, its parts, and what keeps two of them from sharing one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.testing import assert_same_batch, episode_batches


def batch_of(**changes: Any) -> EpisodeBatch:
    """Episodes of 2, 0 and 3 steps whose observations count 0, 1, ... and actions 10, 11, ..."""
    fields: dict[str, Any] = {
        "ids": ("a", "b", "c"),
        "starts": np.array([0, 2, 2, 5]),
        "obs": {"x": np.arange(8, dtype=np.float32), "y": (np.arange(16).reshape(8, 2),)},
        "actions": np.arange(10, 15),
        "rewards": np.arange(5.0),
        "terminated": np.array([True, False, False]),
        "truncated": np.array([False, False, True]),
        "extra": {"logp": np.arange(5, dtype=np.float32)},
        "infos": [{"i": i} for i in range(8)],
        "t_started": np.array([0, 0, 7]),
        "custom_data": ({}, {"k": 1}, {}),
    }
    return EpisodeBatch(**{**fields, **changes})


def test_observations_and_steps_line_up() -> None:
    batch = batch_of()
    assert batch.acted_obs()["x"].tolist() == [0, 1, 4, 5, 6]
    assert batch.next_obs()["x"].tolist() == [1, 2, 5, 6, 7]
    assert batch.timesteps().tolist() == [0, 1, 7, 8, 9]
    assert batch.returns.tolist() == [1.0, 0.0, 9.0]
    terminateds, truncateds = batch.step_flags()
    assert terminateds.tolist() == [False, True, False, False, False]
    assert truncateds.tolist() == [False, False, False, False, True]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"starts": np.array([0, 2, 5])}, "starts"),
        ({"starts": np.array([0, 3, 2, 5])}, "starts"),
        ({"obs": {"x": np.zeros(5)}}, r"obs\.x.*5.*8"),
        ({"rewards": np.zeros(8)}, "rewards"),
        ({"agent_ids": ("a",)}, "agent_ids"),
    ],
    ids=str,
)
def test_lengths_that_disagree_are_refused_by_name(change: dict[str, Any], what: str) -> None:
    with pytest.raises(BadEpisode, match=what) as caught:
        batch_of(**change)
    assert "episode a" in caught.value.where


@settings(deadline=None, max_examples=15)
@given(episode_batches(), st.data())
def test_any_selection_holds_the_episodes_it_names(batch: EpisodeBatch, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(batch) - 1), max_size=4))
    part = batch.select(chosen)
    assert part.ids == tuple(batch.ids[e] for e in chosen)
    for place, e in enumerate(chosen):
        assert_same_batch(part.select(slice(place, place + 1)), batch.select([e]))


@settings(deadline=None, max_examples=15)
@given(episode_batches(), st.integers(0, 4))
def test_two_parts_joined_again_are_the_whole(batch: EpisodeBatch, cut: int) -> None:
    parts = [batch.select(slice(0, cut)), batch.select(slice(cut, None))]
    assert_same_batch(EpisodeBatch.concat(parts), batch)


def test_a_run_of_episodes_is_a_view() -> None:
    batch = batch_of()
    assert np.shares_memory(batch.select(slice(1, 3)).actions, batch.actions)
    assert batch.select(slice(2, 1)).num_steps == 0


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"actions": np.arange(10, 15, dtype=np.int32)}, "actions"),
        ({"obs": {"x": np.zeros((8, 1), np.float32), "y": (np.zeros((8, 2), int),)}}, r"obs\.x"),
        ({"obs": {"x": np.zeros(8, np.float32)}}, r"obs\.y\.0"),
        ({"extra": {}}, "logp"),
        ({"action_space": spaces.Discrete(9)}, "action_space"),
    ],
    ids=str,
)
def test_episodes_of_two_structures_do_not_share_a_batch(change: dict[str, Any], what: str) -> None:
    with pytest.raises(BadEpisode, match=what):
        EpisodeBatch.concat([batch_of(), batch_of(**change)])


def test_a_mask_selects_the_episodes_that_it_marks_and_has_their_number() -> None:
    batch = batch_of()
    assert batch.select(batch.lengths != 2).ids == ("b", "c")
    assert batch.select(np.zeros(3, np.bool_)).lengths.tolist() == []
    with pytest.raises(IndexError):
        batch.select(np.ones(2, np.bool_))
