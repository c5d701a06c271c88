"""Data without rewards: refused by name where an algorithm learns from rewards, and cloned as before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli.errors import BadData
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
Make = Callable[..., Any]
OPTIONS: dict[str, Any] = {"updates": 2, "device": "cpu"}
MAPPED: dict[str, Any] = {"columns": {"eps_id": "run", "obs": ["x", "y", "z"], "actions": "turn"}}


@pytest.fixture
def marwil(tmp_path: Path) -> Path:
    """The configuration of an algorithm that learns from rewards, in columns made of them."""
    file = tmp_path / "marwil.toml"
    file.write_text('batch_size = 16\n[algorithm]\nname = "marwil"\nrefresh_every = 0\n')
    return file


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Steps without a column of rewards."""
    rng = np.random.default_rng(1)
    rows = [[f"run-{e}", *rng.normal(size=3).round(3), rng.integers(2)] for e in range(6) for _ in range(5)]
    path = tmp_path / "arm.csv"
    path.write_text("\n".join(["run,x,y,z,turn", *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


@pytest.mark.parametrize("manner", [{}, {"streaming": True}], ids=str)
def test_a_table_without_them_is_refused_and_cloned(table: Path, marwil: Path, tmp_path: Path, manner: dict[str, Any]) -> None:
    with pytest.raises(BadData, match="30") as caught:
        train_bc(table, tmp_path / "run", config=marwil, mapping=MAPPED, **OPTIONS, **manner)
    assert caught.value.exit_code == 3
    assert "arm.csv" in caught.value.where
    assert "map the reward column" in caught.value.fix
    assert "train-bc" in caught.value.fix
    assert not (tmp_path / "run").exists()
    assert train_bc(table, tmp_path / "bc", mapping=MAPPED, **OPTIONS, **manner).updates == 2


def test_rewards_that_are_no_numbers_are_refused_with_count_episode_and_step(
    make_batch: Make, write_dataset: Write, marwil: Path, tmp_path: Path
) -> None:
    batch = make_batch()
    batch.rewards[3] = np.nan
    batch.rewards[7] = np.inf
    with pytest.raises(BadData, match=f" 2 of {len(batch.rewards)} .* episode-0-0, step 3") as caught:
        train_bc(write_dataset(batch), tmp_path / "run", config=marwil, **OPTIONS)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("manner", [{}, {"streaming": True}], ids=str)
def test_rewards_that_are_all_0_are_noted_where_they_are_learned_from(
    make_batch: Make, write_dataset: Write, marwil: Path, tmp_path: Path, manner: dict[str, Any]
) -> None:
    batch = make_batch()
    data = write_dataset(replace(batch, rewards=np.zeros(len(batch.rewards))))
    found = train_bc(data, tmp_path / "run", config=marwil, **OPTIONS, **manner)
    assert found.notes == ["all rewards are 0, so no action is better than another"]
    assert train_bc(data, tmp_path / "bc", **OPTIONS, **manner).notes == []
    batch.rewards[-1] = 0.5
    assert train_bc(write_dataset(batch, name="one"), tmp_path / "other", config=marwil, **OPTIONS, **manner).notes == []
