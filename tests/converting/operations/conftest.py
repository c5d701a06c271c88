"""Fixtures of tests of operations: datasets of few episodes with known returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_datasets import format, make_batch, write_dataset, writer_for  # noqa: F401

from offline_cli.datasets.manifest import EnvironmentRecord
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.storage.locations import open_location

Made = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Made:
    """A function that writes a batch as a dataset called `name`."""

    def write(name: str, batch: EpisodeBatch, row_format: str = "episodes", **options: Any) -> Path:
        known: dict[str, Any] = {
            "observation_space": batch.observation_space,
            "action_space": batch.action_space,
            "action_scale": "env",
            "environment": EnvironmentRecord("CartPole-v1"),
        }
        place = tmp_path / name
        with DatasetWriter(open_location(place), format=row_format, **{**known, **options}) as writer:  # type: ignore[arg-type]
            writer.write(batch)
            writer.commit(episodes_lost=0)
        return place

    return write


@pytest.fixture
def made(tmp_path: Path, make_batch: Any, write_dataset: Any) -> Made:  # noqa: F811
    """A function that writes a dataset: an episode for each of `returns`, the lengths as given."""

    def make(
        returns: Sequence[float],
        *,
        lengths: Sequence[int] | None = None,
        name: str = "D",
        format: str = "episodes",  # noqa: F811
        first_id: int = 0,
        writing: dict[str, Any] | None = None,
        **fields: Any,
    ) -> Path:
        batch = make_batch(lengths or [3] * len(returns), first_id=first_id, **fields)
        rewards = np.zeros(batch.num_steps)
        rewards[batch.starts[:-1]] = returns
        write_dataset(open_location(tmp_path / name), replace(batch, rewards=rewards), format=format, **(writing or {}))
        return tmp_path / name

    return make
