"""`dataset.to_torch()`: steps for somebody else's loop, once each, whatever the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.utils.data import DataLoader

from offline_cli import EpisodeBatch, open_dataset, write_dataset
from offline_cli.datasets.dataset import Dataset
from offline_cli.errors import BadConfig


def numbered(lengths: tuple[int, ...] = (3, 40, 7, 25, 1, 30, 4)) -> EpisodeBatch:
    """Episodes whose observations and actions count the steps of all."""
    starts = np.cumsum([0, *lengths])
    count, episodes = int(starts[-1]), len(lengths)
    rows = np.arange(count + episodes, dtype=np.float32)
    return EpisodeBatch(
        ids=tuple(f"e{number}" for number in range(episodes)),
        starts=starts,
        obs=np.stack([rows, -rows], 1),
        actions=np.arange(count) % 5,
        rewards=np.arange(count, dtype=np.float64),
        terminated=np.ones(episodes, np.bool_),
        truncated=np.zeros(episodes, np.bool_),
        extra={"action_logp": np.arange(count, dtype=np.float32) / 2},
        observation_space=spaces.Box(-np.inf, np.inf, (2,), np.float32),
        action_space=spaces.Discrete(5),
    )


@pytest.fixture(params=[("episodes", None), ("columns", None), ("episodes", 2), ("columns", 45)], ids=str)
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Dataset:
    """110 steps in one shard, or several."""
    format, rows = request.param
    write_dataset(numbered(), tmp_path / "D", format=format, max_rows_per_file=rows)
    return open_dataset(tmp_path / "D")


def test_the_steps_in_memory_are_those_of_the_batch(dataset: Dataset) -> None:
    steps, batch = dataset.to_torch(), numbered()
    assert len(steps) == 110
    whole = steps[:]
    assert list(whole) == ["obs", "new_obs", "t", "actions", "rewards", "terminateds", "truncateds", "action_logp"]
    np.testing.assert_array_equal(whole["obs"], batch.acted_obs())
    np.testing.assert_array_equal(whole["new_obs"], batch.next_obs())
    np.testing.assert_array_equal(whole["t"], batch.timesteps())
    np.testing.assert_array_equal(whole["terminateds"], batch.step_flags()[0])
    for name in ("actions", "rewards"):
        np.testing.assert_array_equal(whole[name], getattr(batch, name))
    chosen = steps[torch.tensor([5, 109, -1])]
    assert chosen["rewards"].tolist() == [5.0, 109.0, 109.0]
    assert steps[np.array([1, 2])]["new_obs"][:, 0].tolist() == [2.0, 3.0]
    assert {name: leaf.shape for name, leaf in steps[-1].items()}["obs"] == (2,)
    for number in (110, -111):
        with pytest.raises(IndexError, match="of 110"):
            steps[number]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffled_loader_over_steps_in_memory_gives_each_once(dataset: Dataset, workers: int) -> None:
    loader = DataLoader(dataset.to_torch(["obs", "rewards"]), batch_size=32, shuffle=True, num_workers=workers)
    batches = list(loader)
    assert [set(batch) for batch in batches] == [{"obs", "rewards"}] * 4
    rewards = torch.cat([batch["rewards"] for batch in batches])
    assert sorted(rewards.tolist()) == list(range(110))
    assert rewards.tolist() != list(range(110))


def test_wrong_columns_are_named(dataset: Dataset) -> None:
    wrong: tuple[Any, ...] = (["reward"], "obs", [])
    for columns in wrong:
        with pytest.raises(BadConfig) as caught:
            dataset.to_torch(columns)
        assert repr(columns) in caught.value.what
