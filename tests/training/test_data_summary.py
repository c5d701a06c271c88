"""The digest of a run's data: the same for the same data, in whatever parts it comes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.training.training_data import DataSummary


@pytest.fixture
def batch() -> EpisodeBatch:
    """Two episodes, of two and of three steps."""
    return EpisodeBatch(
        ids=("a", "b"),
        starts=np.array([0, 2, 5]),
        obs=np.arange(14, dtype=np.float32).reshape(7, 2),
        actions=np.arange(5),
        rewards=np.ones(5),
        terminated=np.array([True, False]),
        truncated=np.array([False, True]),
        observation_space=spaces.Box(-9, 9, (2,), np.float32),
        action_space=spaces.Discrete(5),
    )


def digest(*parts: EpisodeBatch, every_leaf: bool = False) -> str:
    summary = DataSummary(every_leaf)
    for part in parts:
        summary.see(part)
    return summary.digest("form")


def test_the_digest_does_not_depend_on_the_parts_that_episodes_come_in(batch: EpisodeBatch) -> None:
    assert digest(batch.select([0]), batch.select([1])) == digest(batch)


def test_rewards_count_only_where_something_may_learn_from_them(batch: EpisodeBatch) -> None:
    other = replace(batch, rewards=np.zeros(5))
    assert digest(other) == digest(batch)
    assert digest(other, every_leaf=True) != digest(batch, every_leaf=True)


def test_episodes_in_another_order_are_other_data(batch: EpisodeBatch) -> None:
    assert digest(batch.select([1, 0])) != digest(batch)
