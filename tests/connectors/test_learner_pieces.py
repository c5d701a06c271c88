"""Rewards, returns, advantages, artificial steps, infos: pieces of learner pipelines on arrays and on single episodes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from offline_cli import Columns
from offline_cli.connectors import (
    AddInfosFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    ClipRewards,
    ComputeReturnsToGo,
    GeneralAdvantageEstimation,
    NStepReturns,
    learner_pipeline,
)
from offline_cli.connectors.connector_v2 import Batch
from offline_cli.connectors.learner.added_columns import AddNextActionsFromEpisodesToTrainBatch
from offline_cli.connectors.learner.returns import discounted, factors
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadPiece, EpisodeKeyError

OBS, ACT = spaces.Box(-99, 99, (1,), np.float32), spaces.Discrete(5)


def batch_of(*lengths: int, infos: bool = False, truncated: bool = False) -> EpisodeBatch:
    """Observations count from 0 over all episodes, rewards from 1."""
    starts = np.cumsum([0, *lengths])
    n, e = int(starts[-1]), len(lengths)
    return EpisodeBatch(
        ids=tuple(f"e{i}" for i in range(e)),
        starts=starts,
        obs=np.arange(n + e, dtype=np.float32)[:, None],
        actions=np.arange(n) % 5,
        rewards=np.arange(1.0, n + 1),
        terminated=np.full(e, not truncated),
        truncated=np.full(e, truncated),
        extra={"action_logp": -np.arange(n, dtype=np.float32)},
        infos=[{"at": i} for i in range(n + e)] if infos else None,
        observation_space=OBS,
        action_space=ACT,
    )


def through(episodes: EpisodeBatch, *pieces: Any, rl_module: Any = None, after: Any = ()) -> Batch:
    """The train batch, which is the same for a batch of episodes and for its episodes one by one."""
    pipeline = learner_pipeline(OBS, ACT, custom=list(pieces))
    for piece in after:
        pipeline.append(piece)
    whole = pipeline(rl_module=rl_module, episodes=episodes)
    single = pipeline(rl_module=rl_module, episodes=list(episodes))
    assert list(whole) == list(single)
    for column in whole:
        same = whole[column] == single[column] if column == Columns.INFOS else torch.allclose(whole[column], single[column])
        assert same, column
    return whole


def test_an_extra_output_that_an_episode_lacks_is_an_error_and_no_shorter_column() -> None:
    with_it, without = batch_of(2), batch_of(3)
    given = [*with_it, *EpisodeBatch(**{name: getattr(without, name) for name in _FIELDS})]
    given[1].id_ = "other"
    with pytest.raises(EpisodeKeyError, match="action_logp") as caught:
        learner_pipeline(OBS, ACT)(episodes=given)
    assert caught.value.where == "episode other"


_FIELDS = ("ids", "starts", "obs", "actions", "rewards", "terminated", "truncated")


def test_infos_stay_a_list_one_for_each_observation_that_was_acted_on() -> None:
    assert through(batch_of(2, 1, infos=True), AddInfosFromEpisodesToTrainBatch())[Columns.INFOS] == [
        {"at": 0},
        {"at": 1},
        {"at": 3},
    ]
    assert through(batch_of(2), AddInfosFromEpisodesToTrainBatch())[Columns.INFOS] == [{}, {}]


def test_rewards_are_limited_and_the_episodes_keep_their_own() -> None:
    episodes = batch_of(3)
    assert through(episodes, ClipRewards(bound=1.5))[Columns.REWARDS].tolist() == [1, 1.5, 1.5]
    assert episodes.rewards.tolist() == [1, 2, 3]
    with pytest.raises(BadPiece, match="bound"):
        ClipRewards(bound=0)


# ---- returns ----


def test_the_action_after_the_last_step_is_its_own_again() -> None:
    batch = AddNextActionsFromEpisodesToTrainBatch()(batch={}, episodes=batch_of(3, 1, 2))
    assert batch["next_actions"].tolist() == [1, 2, 2, 3, 0, 0]
    assert batch["is_followed"].tolist() == [True, True, False, False, True, False]


def test_returns_to_go_end_with_each_episode() -> None:
    found = through(batch_of(3, 0, 2), ComputeReturnsToGo(gamma=0.5))
    assert found[Columns.RETURNS_TO_GO].tolist() == [1 + 0.5 * 2 + 0.25 * 3, 2 + 0.5 * 3, 3, 4 + 0.5 * 5, 5]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.floats(0, 1))
def test_discounted_sums_are_those_of_a_loop(lengths: list[int], gamma: float) -> None:
    steps = np.array(lengths)
    values = np.random.default_rng(0).normal(size=int(steps.sum()))
    factor = factors(steps, gamma)
    wanted = np.zeros(len(values))
    running = 0.0
    for t in reversed(range(len(values))):
        running = values[t] + factor[t] * running
        wanted[t] = running
    np.testing.assert_allclose(discounted(values, factor), wanted, rtol=1e-9, atol=1e-12)


def test_n_step_returns_look_as_far_as_the_episode_goes() -> None:
    found = through(batch_of(4, 1), NStepReturns(n_step=3, gamma=0.5))
    assert found[Columns.REWARDS].tolist() == [1 + 1 + 0.75, 2 + 1.5 + 1, 3 + 2, 4, 5]
    assert found[Columns.NEXT_OBS].squeeze(-1).tolist() == [3, 4, 4, 4, 6]
    assert found[Columns.N_STEP].tolist() == [3, 3, 2, 1, 1]
    assert found[Columns.TERMINATEDS].tolist() == [False, True, True, True, True]


# ---- artificial steps and advantages ----


def test_an_artificial_step_repeats_the_last_one_and_is_masked() -> None:
    found = through(batch_of(2, 0, 1, infos=True), AddOneTsToEpisodesAndTruncate(), AddInfosFromEpisodesToTrainBatch())
    assert found[Columns.OBS].squeeze(-1).tolist() == [0, 1, 2, 4, 5]
    assert found[Columns.ACTIONS].tolist() == [0, 1, 1, 2, 2]
    assert found[Columns.REWARDS].tolist() == [1, 2, 0, 3, 0]
    assert found["action_logp"].tolist() == [0, -1, -1, -2, -2]
    assert found[Columns.LOSS_MASK].tolist() == [True, True, False, True, False]
    assert found[Columns.TERMINATEDS].tolist() == [False, True, False, True, False]
    assert not found[Columns.TRUNCATEDS].any()
    assert [info["at"] for info in found[Columns.INFOS]] == [0, 1, 2, 4, 5]


def test_an_episode_that_goes_on_is_truncated_where_its_data_end() -> None:
    going_on = batch_of(2)
    going_on.terminated[:] = False
    found = through(going_on, AddOneTsToEpisodesAndTruncate())
    assert found[Columns.TRUNCATEDS].tolist() == [False, True, False]


def test_a_second_call_does_not_lengthen_the_episodes_again() -> None:
    pipeline = learner_pipeline(OBS, ACT, custom=AddOneTsToEpisodesAndTruncate())
    episodes = list(batch_of(2, 1))
    assert [len(pipeline(episodes=episodes)[Columns.REWARDS]) for _ in range(3)] == [5, 5, 5]
    assert [len(episode) for episode in episodes] == [2, 1]


class Valued:
    """A module whose value of an observation is the observation."""

    model_config: ClassVar[dict[str, Any]] = {}

    def compute_values(self, batch: Batch, **_: Any) -> torch.Tensor:
        values: torch.Tensor = batch[Columns.OBS].squeeze(-1)
        return values

    def is_stateful(self) -> bool:
        return False


def advantages(episodes: EpisodeBatch, **options: Any) -> Batch:
    options = {"gamma": 0.5, "lambda_": 1.0, **options}
    piece = GeneralAdvantageEstimation(**options)
    return through(episodes, AddOneTsToEpisodesAndTruncate(), rl_module=Valued(), after=[piece])


def test_targets_are_discounted_rewards_and_the_value_where_the_clock_ended() -> None:
    assert advantages(batch_of(2, 1))[Columns.VALUE_TARGETS][[0, 1, 3]].tolist() == [1 + 0.5 * 2, 2, 3]
    ended = advantages(batch_of(2, 1, truncated=True))[Columns.VALUE_TARGETS]
    assert ended[[0, 1, 3]].tolist() == [1 + 0.5 * 2 + 0.25 * 2, 2 + 0.5 * 2, 3 + 0.5 * 4]


def test_advantages_can_be_standardised_by_the_rows_that_count() -> None:
    real = advantages(batch_of(4, 3), standardize="real")
    rows = real[Columns.ADVANTAGES][real[Columns.LOSS_MASK]]
    assert rows.mean().abs() < 1e-6
    assert abs(rows.std(correction=0) - 1) < 1e-5
    raw = advantages(batch_of(4, 3), standardize="none")
    values = raw[Columns.OBS].squeeze(-1)
    assert torch.allclose(raw[Columns.ADVANTAGES], raw[Columns.VALUE_TARGETS] - values)


def test_episodes_whose_last_value_would_have_to_be_guessed_are_refused() -> None:
    pipeline = learner_pipeline(OBS, ACT)
    pipeline.append(GeneralAdvantageEstimation(gamma=0.9, lambda_=0.9))
    pipeline(rl_module=Valued(), episodes=batch_of(3))  # after a terminated step nothing has value
    with pytest.raises(BadPiece):
        pipeline(rl_module=Valued(), episodes=batch_of(3, truncated=True))
