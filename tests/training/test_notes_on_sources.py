"""What `train`, `train-bc` and `apply` say of their sources: that one is incomplete, that several agents share a module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch

Told = Callable[..., dict[str, Any]]
Make = Callable[..., EpisodeBatch]
Write = Callable[..., Path]
SHORT = ("--updates", 1, "--batch-size", 8, "--hidden", "8")


@pytest.fixture
def incomplete(make_batch: Make, tmp_path: Path) -> Path:
    """As a recording that was interrupted leaves it."""
    batch = make_batch()
    spaces = {"observation_space": batch.observation_space, "action_space": batch.action_space}
    with DatasetWriter(tmp_path / "D", **spaces) as writer:
        writer.write(batch)
        writer.commit(complete=False)
    return tmp_path / "D"


@pytest.mark.parametrize("algorithm", ["bc", "iql"])
def test_training_on_an_incomplete_dataset_is_noted(algorithm: str, incomplete: Path, tmp_path: Path, told: Told) -> None:
    found = told("train", incomplete, "--algorithm", algorithm, "--out", tmp_path / "run", *SHORT)
    assert [note for note in found["notes"] if str(incomplete) in note and "incomplete" in note]


@pytest.fixture
def opponents(make_batch: Make, write_dataset: Write) -> Path:
    """Episodes of two agents under one module."""
    batch = make_batch()
    return write_dataset(replace(batch, agent_ids=("hunter", "prey") * (len(batch) // 2), module_ids=("shared",) * len(batch)))


def test_one_policy_of_several_agents_is_noted_with_the_agents(opponents: Path, tmp_path: Path, told: Told) -> None:
    found = told("train-bc", opponents, "--out", tmp_path / "run", *SHORT)
    (note,) = found["notes"]
    assert all(text in note for text in ("hunter", "prey"))


def test_observations_of_very_different_scale_are_noted_with_the_columns_and_their_remedy(
    make_batch: Make, write_dataset: Write, tmp_path: Path, told: Told
) -> None:
    batch = make_batch()
    obs = np.asarray(batch.obs)
    scales = np.array([30.0, 0.001, *[1.0] * (obs.shape[1] - 2)], obs.dtype)
    space = spaces.Box(-np.inf, np.inf, obs.shape[1:], obs.dtype.type)
    data = write_dataset(replace(batch, obs=obs * scales, observation_space=space))
    (note,) = told("train-bc", data, "--out", tmp_path / "run", *SHORT)["notes"]
    assert [f"obs[{number}]" in note for number in range(3)] == [True, True, False]
    assert "mean_std_filter" in note
    (tmp_path / "p.toml").write_text('kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n')
    scaled = told("train-bc", data, "--out", tmp_path / "scaled", "--pipeline", tmp_path / "p.toml", *SHORT)
    assert scaled["notes"] == []
