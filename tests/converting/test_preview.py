"""What a dry run shows of the dataset that it does not write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from offline_cli.converting.convert import convert
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.storage.locations import open_location

RandomBatch = Callable[..., EpisodeBatch]

SPACES = gym.spaces.Box(-1.0, 1.0, (3,), np.float32), gym.spaces.Discrete(4)


@pytest.fixture
def data(tmp_path: Path, random_batch: RandomBatch) -> tuple[Path, EpisodeBatch]:
    """A dataset, and what is in it."""
    batch = random_batch(*SPACES, lengths=(5, 100, 200))
    with DatasetWriter(
        open_location(tmp_path / "data"),
        format="episodes",
        observation_space=SPACES[0],
        action_space=SPACES[1],
        action_scale="env",
    ) as writer:
        writer.write(batch)
        writer.commit()
    return tmp_path / "data", batch


def test_a_dry_run_shows_the_first_episode(data: tuple[Path, EpisodeBatch], tmp_path: Path) -> None:
    folder, batch = data
    shown = convert(folder, str(tmp_path / "D"), dry_run=True).preview
    assert shown is not None
    first = shown["first_episode"]
    assert (first["eps_id"], first["length"], first["return"]) == (batch.ids[0], 5, pytest.approx(batch.rewards[:5].sum()))
    assert first["first_steps"][0]["obs"] == pytest.approx(batch.acted_obs()[0])
    assert [step["actions"] for step in first["first_steps"]] == batch.actions[:3].tolist()


def test_a_dry_run_with_a_limit_shows_as_many_episodes(data: tuple[Path, EpisodeBatch], tmp_path: Path) -> None:
    result = convert(data[0], str(tmp_path / "D"), dry_run=True, limit=2)
    assert (result.episodes, result.steps, result.shards) == (2, 105, 0)
