"""Stateful modules: time axis, zero padding, loss mask, states; one batch from arrays, episodes and lists of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from offline_cli import Columns, SingleAgentEpisode
from offline_cli.connectors import AddNextObservationsFromEpisodesToTrainBatch, ConnectorV2, learner_pipeline
from offline_cli.connectors.connector_v2 import Batch
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadEpisode, BadPiece
from offline_cli.modules import build_recurrent_module
from offline_cli.trees import flatten

OBS, ACT = spaces.Box(-99, 99, (1,), np.float32), spaces.Discrete(5)
T = 3


@pytest.fixture(scope="module")
def module() -> Any:
    return build_recurrent_module(OBS, ACT, hidden=(4,), memory_size=2, max_seq_len=T)


def batch_of(*lengths: int, states: bool = False) -> EpisodeBatch:
    """Observations count on from 1 over all episodes, so no real one is 0; states repeat the step's reward."""
    starts = np.cumsum([0, *lengths])
    n, e = int(starts[-1]), len(lengths)
    rewards = np.arange(1.0, n + 1)
    extra = {}
    if states:
        extra[Columns.STATE_OUT] = {name: np.tile(rewards[:, None, None], (1, 1, 2)).astype(np.float32) for name in ("h", "c")}
    return EpisodeBatch(
        ids=tuple(f"e{i}" for i in range(e)),
        starts=starts,
        obs=np.arange(1, n + e + 1, dtype=np.float32)[:, None],
        actions=np.arange(n) % 5,
        rewards=rewards,
        terminated=np.ones(e, bool),
        truncated=np.zeros(e, bool),
        extra=extra,
        observation_space=OBS,
        action_space=ACT,
    )


def as_lists(batch: EpisodeBatch) -> list[SingleAgentEpisode]:
    """The same episodes, not numpy'ized."""
    lists = []
    for episode in batch:
        growing = SingleAgentEpisode(episode.id_, observation_space=OBS, action_space=ACT)
        growing.add_env_reset(episode.get_observations(0))
        for t in range(len(episode)):
            growing.add_env_step(
                episode.get_observations(t + 1),
                episode.get_actions(t),
                episode.get_rewards(t),
                terminated=t == len(episode) - 1,
                extra_model_outputs={name: episode.get_extra_model_outputs(name, t) for name in episode.extra_model_outputs},
            )
        lists.append(growing)
    return lists


def same(one: Batch, two: Batch) -> None:
    left, right = dict(flatten(one)), dict(flatten(two))
    assert list(left) == list(right)
    for path in left:
        assert left[path].dtype == right[path].dtype, path
        assert torch.equal(left[path], right[path]), path


def test_episodes_are_cut_into_sequences_that_are_filled_up_with_zeros(module: Any) -> None:
    batch = learner_pipeline(OBS, ACT)(rl_module=module, episodes=batch_of(4, 2))
    assert batch[Columns.REWARDS].tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0]]
    assert batch[Columns.OBS].squeeze(-1).tolist() == [[1, 2, 3], [4, 0, 0], [6, 7, 0]]
    assert batch[Columns.LOSS_MASK].tolist() == [[True] * 3, [True, False, False], [True, True, False]]
    assert batch[Columns.SEQ_LENS].tolist() == [3, 1, 2]
    assert batch[Columns.TERMINATEDS].tolist() == [[False] * 3, [True, False, False], [False, True, False]]


def test_states_are_those_before_each_sequence(module: Any) -> None:
    state_in = learner_pipeline(OBS, ACT)(rl_module=module, episodes=batch_of(4, 2, states=True))[Columns.STATE_IN]
    assert state_in["h"].shape == (3, 1, 2)
    assert state_in["h"][:, 0, 0].tolist() == [0, 3, 0]


@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("lengths", [(4, 2), (3,), (1, 1, 7), (0, 4), (2, 0, 3)])
def test_arrays_episodes_and_lists_of_steps_give_one_batch(module: Any, lengths: tuple[int, ...], states: bool) -> None:
    pipeline = learner_pipeline(OBS, ACT, custom=lambda obs, act: AddNextObservationsFromEpisodesToTrainBatch())
    whole = batch_of(*lengths, states=states)
    wanted = pipeline(rl_module=module, episodes=whole)
    same(pipeline(rl_module=module, episodes=list(whole)), wanted)
    same(pipeline(rl_module=module, episodes=as_lists(whole)), wanted)


def test_next_states_are_those_after_the_first_step_of_each_sequence(module: Any) -> None:
    pipeline = learner_pipeline(OBS, ACT, custom=lambda obs, act: AddNextObservationsFromEpisodesToTrainBatch())
    batch = pipeline(rl_module=module, episodes=batch_of(4, 2, states=True))
    assert batch[Columns.NEXT_STATE_IN]["h"][:, 0, 0].tolist() == [1, 4, 5]
    assert batch[Columns.NEXT_OBS].squeeze(-1).tolist() == [[2, 3, 4], [5, 0, 0], [7, 8, 0]]


@pytest.mark.parametrize("lookback", [1, 3])
def test_a_chunk_begins_with_the_state_in_its_lookback_buffer(module: Any, lookback: int) -> None:
    (episode,) = batch_of(5, states=True)
    chunk = episode.slice(slice(3, None), len_lookback_buffer=lookback)
    state_in = learner_pipeline(OBS, ACT)(rl_module=module, episodes=[chunk])[Columns.STATE_IN]
    assert state_in["h"][:, 0, 0].tolist() == [3]


def test_a_chunk_whose_state_is_not_known_is_refused_by_name(module: Any) -> None:
    (episode,) = batch_of(5, states=True)
    chunk = episode.slice(slice(3, None), len_lookback_buffer=0)
    for episodes in ([chunk], EpisodeBatch.from_episodes([chunk])):
        with pytest.raises(BadEpisode, match="timestep 3"):
            learner_pipeline(OBS, ACT)(rl_module=module, episodes=episodes)


def test_chunks_of_one_episode_stay_apart_and_keep_their_place(module: Any) -> None:
    first, other = batch_of(4, 2)
    chunks = [first.slice(slice(0, 2)), other, first.slice(slice(2, 4), len_lookback_buffer=0), first.slice(slice(0, 2))]
    assert chunks[0].id_ == chunks[2].id_
    batch = learner_pipeline(OBS, ACT)(rl_module=module, episodes=chunks)
    assert batch[Columns.REWARDS].tolist() == [[1, 2, 0], [5, 6, 0], [3, 4, 0], [1, 2, 0]]
    assert [chunk.id_ for chunk in chunks] == ["e0", "e1", "e0", "e0"]


def test_a_column_with_too_few_items_is_named(module: Any) -> None:
    class OnePerEpisode(ConnectorV2):
        def __call__(self, *, batch: Batch, episodes: Any, **_: Any) -> Batch:
            for episode in self.single_agent_episode_iterator(episodes):
                self.add_batch_item(batch, Columns.OBS, episode.get_observations(-1), episode)
            return batch

    pipeline = learner_pipeline(OBS, ACT, custom=lambda obs, act: OnePerEpisode())
    with pytest.raises(BadPiece, match="'obs'"):
        pipeline(rl_module=module, episodes=batch_of(4, 2))


def test_a_stateful_module_has_to_say_how_long_sequences_are(module: Any) -> None:
    without = build_recurrent_module(OBS, ACT, hidden=(4,), memory_size=2)
    without.model_config = {}
    with pytest.raises(BadConfig, match="max_seq_len"):
        learner_pipeline(OBS, ACT)(rl_module=without, episodes=batch_of(4))


def test_the_module_takes_the_batch_and_padding_changes_nothing_that_counts(module: Any) -> None:
    batch = learner_pipeline(OBS, ACT)(rl_module=module, episodes=batch_of(2))
    inputs = module.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
    alone = {Columns.OBS: batch[Columns.OBS][:, :2], Columns.STATE_IN: batch[Columns.STATE_IN]}
    assert inputs.shape == (1, T, 5)
    assert torch.equal(inputs[:, :2], module.forward_train(alone)[Columns.ACTION_DIST_INPUTS])
