"""Rewards that are no finite numbers: behaviour cloning, which uses none, counts and names them, and trains on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.storage.locations import open_location
from offline_cli.training.train import train_bc

SPACES = gym.spaces.Box(-9.0, 9.0, (3,), np.float32), gym.spaces.Discrete(2)
OPTIONS: dict[str, Any] = {"updates": 2, "batch_size": 4, "device": "cpu"}
Batches = Callable[..., EpisodeBatch]


def write(folder: Path, batch: EpisodeBatch) -> str:
    place = open_location(folder)
    with DatasetWriter(place, format="episodes", observation_space=SPACES[0], action_space=SPACES[1], action_scale="env") as to:
        to.write(batch)
        to.commit()
    return str(folder)


@pytest.fixture
def spoiled(tmp_path: Path, random_batch: Batches) -> str:
    """Episodes of 3, 1 and 5 steps, with two NaN and an infinity among their rewards."""
    batch = random_batch(*SPACES)
    rewards = batch.rewards.copy()
    rewards[[3, 5, 8]] = np.nan, -np.inf, np.nan
    return write(tmp_path / "D", replace(batch, rewards=rewards))


MANNERS = [{}, {"streaming": True, "val_fraction": 0.4}]


@pytest.mark.parametrize("manner", MANNERS, ids=str)
def test_they_are_counted_and_named_and_training_goes_on(
    manner: dict[str, Any], spoiled: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        result = train_bc(spoiled, tmp_path / "run", **OPTIONS, **manner)
    assert result.updates == 2
    assert result.rewards_not_finite == {"nan-in-rewards": 2, "infinite-in-rewards": 1}
    (note,) = [one for one in result.notes if "rewards" in one]
    assert "episode episode-1, step 0" in note
    assert note in caplog.text
    assert train_bc(spoiled, tmp_path / "run", **OPTIONS, **manner, resume=True).as_dict() == result.as_dict()
