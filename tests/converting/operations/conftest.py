"""Fixtures of tests of operations: datasets of few episodes with known returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_datasets import format, make_batch, write_dataset, writer_for  # noqa: F401

from offline_cli.files.locations import open_location

Made = Callable[..., Path]


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
