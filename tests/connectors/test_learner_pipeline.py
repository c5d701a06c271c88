"""The base of connector pieces, pipelines, and the default learner pipeline on batches and on single episodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from default_pieces import LEARNER_DEFAULTS
from gymnasium import spaces

from offline_cli.columns import Columns
from offline_cli.connectors import ConnectorV2
from offline_cli.connectors.connector_v2 import Batch, Episodes
from offline_cli.connectors.learner.added_columns import learner_pipeline
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.modules import build_recurrent_module
from offline_cli.trees import leaves

OBS_SPACE = spaces.Dict({"p": spaces.Box(-1, 1, (2,)), "q": spaces.Discrete(3)})
ACT_SPACE = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (1,))])


@pytest.fixture
def episodes() -> EpisodeBatch:
    rng = np.random.default_rng(0)
    return EpisodeBatch(
        ids=("a", "b"),
        starts=np.array([0, 3, 5]),
        obs={"p": rng.normal(size=(7, 2)).astype(np.float32), "q": rng.integers(0, 3, 7)},
        actions=(rng.integers(0, 2, 5), rng.normal(size=(5, 1)).astype(np.float32)),
        rewards=np.arange(5.0),
        terminated=np.array([True, False]),
        truncated=np.array([False, True]),
        extra={"action_logp": rng.normal(size=5)},
        observation_space=OBS_SPACE,
        action_space=ACT_SPACE,
    )


def same(one: Batch, two: Batch) -> None:
    assert one.keys() == two.keys()
    for column in one:
        pairs = zip(_leaves(one[column]), _leaves(two[column]), strict=True)
        for left, right in pairs:
            assert left.dtype == right.dtype, column
            assert torch.equal(left, right), column


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in _leaves(tree[key])]
    return [leaf for part in tree for leaf in _leaves(part)] if isinstance(tree, tuple) else [tree]


def test_the_train_batch_holds_each_step_once_with_its_own_observation(episodes: EpisodeBatch) -> None:
    batch = learner_pipeline(OBS_SPACE, ACT_SPACE)(episodes=episodes)
    assert batch[Columns.OBS]["q"].tolist() == [*episodes.obs["q"][:3], *episodes.obs["q"][4:6]]
    assert batch[Columns.REWARDS].tolist() == [0, 1, 2, 3, 4]
    assert batch[Columns.TERMINATEDS].tolist() == [False, False, True, False, False]
    assert batch[Columns.TRUNCATEDS].tolist() == [False, False, False, False, True]
    assert batch["action_logp"].dtype == torch.float32


def test_single_episodes_give_the_same_train_batch_as_the_batch_they_are_in(episodes: EpisodeBatch) -> None:
    pipeline = learner_pipeline(OBS_SPACE, ACT_SPACE)
    same(pipeline(episodes=episodes), pipeline(episodes=list(episodes)))


def test_episodes_that_are_not_arrays_yet_give_the_same_train_batch() -> None:
    growing = SingleAgentEpisode(observation_space=spaces.Box(-9, 9, (2,)), action_space=spaces.Discrete(3))
    growing.add_env_reset(np.array([0.0, 1.0], np.float32))
    for t in range(3):
        growing.add_env_step(np.array([t, t], np.float32), t, 0.5, terminated=t == 2)
    batch = learner_pipeline(spaces.Box(-9, 9, (2,)), spaces.Discrete(3))(episodes=[growing])
    assert batch[Columns.OBS].tolist() == [[0, 1], [0, 0], [1, 1]]
    assert batch[Columns.ACTIONS].tolist() == [0, 1, 2]
    assert batch[Columns.TERMINATEDS].tolist() == [False, False, True]


def test_a_column_that_a_custom_piece_has_made_stays(episodes: EpisodeBatch) -> None:
    class Ones(ConnectorV2):
        whole_arrays = True

        def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
            batch[Columns.REWARDS] = np.ones(5)
            return batch

    pipeline = learner_pipeline(OBS_SPACE, ACT_SPACE, custom=lambda obs, act: Ones())
    assert pipeline(episodes=episodes)[Columns.REWARDS].tolist() == [1.0] * 5


class CountedSteps(ConnectorV2):
    """Somebody's own piece with a form for whole arrays: adds the timestep of each step."""

    whole_arrays = True

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        if isinstance(episodes, EpisodeBatch):
            return {**batch, "t": episodes.timesteps()}
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            self.add_n_batch_items(batch, "t", np.arange(len(episode)), len(episode), episode)
        return batch


class Looks(ConnectorV2):
    """Somebody's own piece for single episodes, which changes nothing."""

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        assert not isinstance(episodes, EpisodeBatch)
        return batch


class Halved(Looks):
    """The same, which changes a column and adds one, as pieces written for RLlib do."""

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        self.foreach_batch_item_change_in_place(batch, Columns.REWARDS, lambda rows, *_: rows / 2)
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            self.add_n_batch_items(batch, "whose", [ord(episode.id_)] * len(episode), len(episode), episode)
        return batch


def with_own_piece(given: EpisodeBatch, own: ConnectorV2 | None, after: str, *, stateful: bool) -> Batch:
    module = build_recurrent_module(OBS_SPACE, spaces.Discrete(2), memory_size=2, max_seq_len=2) if stateful else None
    pipeline = learner_pipeline(OBS_SPACE, ACT_SPACE, custom=[CountedSteps()])
    if own is not None:
        pipeline.insert_after(after, own)
    return pipeline(rl_module=module, episodes=given)


def assert_same_columns(found: Batch, expected: Batch) -> None:
    assert found.keys() == expected.keys()
    for column, tree in expected.items():
        for one, other in zip(leaves(found[column]), leaves(tree), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("after", ["CountedSteps", *LEARNER_DEFAULTS])
@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "LSTM"])
def test_a_piece_for_single_episodes_goes_anywhere_among_pieces_for_whole_arrays(
    episodes: EpisodeBatch, stateful: bool, after: str
) -> None:
    plain = with_own_piece(episodes, None, after, stateful=stateful)
    assert_same_columns(with_own_piece(episodes, Looks(), after, stateful=stateful), plain)


@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "LSTM"])
def test_a_piece_of_rllibs_kind_changes_and_adds_columns_after_whole_arrays_were_put_in(
    episodes: EpisodeBatch, stateful: bool
) -> None:
    after = "AddColumnsFromEpisodesToBatch"
    plain = with_own_piece(episodes, None, after, stateful=stateful)
    found = with_own_piece(episodes, Halved(), after, stateful=stateful)
    whose = found.pop("whose")
    assert_same_columns(found, {**plain, Columns.REWARDS: plain[Columns.REWARDS] / 2})
    rows = whose[plain[Columns.LOSS_MASK]] if stateful else whose
    assert rows.tolist() == [97, 97, 97, 98, 98]


def test_rows_keep_the_order_of_the_episodes_whatever_their_modules_are_called(episodes: EpisodeBatch) -> None:
    given = list(EpisodeBatch.concat([episodes, replace(episodes, ids=("c", "d"))]))
    given[1].module_id = given[2].module_id = "default_policy"
    found = learner_pipeline(OBS_SPACE, ACT_SPACE, custom=[Whose()])(episodes=given)
    assert found["whose"].tolist() == [97] * 3 + [98] * 2 + [99] * 3 + [100] * 2
    assert found[Columns.REWARDS].tolist() == [0, 1, 2, 3, 4] * 2


class Whose(Looks):
    """Adds the id of each step's episode, one episode after the other."""

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            self.add_n_batch_items(batch, "whose", [ord(episode.id_)] * len(episode), len(episode), episode)
        return batch
