"""What `train`, `train-bc` and `apply` say of their sources: that one is incomplete, that several agents share a module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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
