"""`train --top-fraction`: what is learned from is what `filter --top-fraction` writes, in memory and in streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli.converting.operations.selecting import filter as filtered
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import NoData
from offline_cli.training.chosen_episodes import HeldOut
from offline_cli.training.run_folder import RunFolder
from offline_cli.training.train import train

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
OPTIONS: dict[str, Any] = {"updates": 30, "batch_size": 32, "hidden": (8,), "device": "cpu"}
MANNERS = pytest.mark.parametrize("manner", [{}, {"streaming": True, "val_fraction": 0.3}], ids=str)


@pytest.fixture
def rewarded(make_batch: Make) -> Callable[..., EpisodeBatch]:
    """Episodes whose returns differ."""

    def made(seed: int = 0, **shape: Any) -> EpisodeBatch:
        batch = make_batch(seed=seed, **shape)
        return replace(batch, rewards=np.random.default_rng(seed).normal(size=batch.num_steps))

    return made


def told(run: Path) -> list[Any]:
    """What a run learned: its rows without times, and its policy."""
    rows = [[row.get(name) for name in ("update", "loss", "val_loss")] for row in RunFolder(run).metrics()]
    return [rows, (run / "policy.safetensors").read_bytes()]


@MANNERS
def test_it_learns_what_a_dataset_that_filter_wrote_teaches(
    write_dataset: Write, rewarded: Callable[..., EpisodeBatch], tmp_path: Path, manner: dict[str, Any]
) -> None:
    sources = [write_dataset(rewarded(seed), name=f"data-{seed}") for seed in (1, 2)]
    best = filtered(sources, tmp_path / "best", top_fraction=0.25)
    result = train(sources, tmp_path / "run", top_fraction=0.25, **OPTIONS, **manner)
    other = train(tmp_path / "best", tmp_path / "other", **OPTIONS, **manner)
    assert told(tmp_path / "run") == told(tmp_path / "other")
    assert (result.episodes, result.steps) == (best.episodes, best.steps) == (other.episodes, other.steps)


def test_the_result_says_how_many_were_chosen_and_their_least_return(
    write_dataset: Write, rewarded: Callable[..., EpisodeBatch], tmp_path: Path
) -> None:
    batch = rewarded(1)
    result = train(
        write_dataset(batch), tmp_path / "run", algorithm="marwil", set={"refresh_every": 0}, top_fraction=0.25, **OPTIONS
    )
    assert result.as_dict()["chosen"] == {"episodes": 3, "of": 12, "least_return": pytest.approx(np.sort(batch.returns)[-3])}


def test_equal_returns_take_the_first_episodes_and_say_so(write_dataset: Write, make_batch: Make, tmp_path: Path) -> None:
    batch = make_batch(length=1)
    result = train(write_dataset(batch), tmp_path / "run", top_fraction=0.25, **OPTIONS)
    assert result.chosen == {"episodes": 3, "of": 12, "least_return": 1.0}
    assert "--top-fraction" in result.notes[0]


def test_episodes_whose_return_is_not_a_number_are_not_chosen_and_named(
    write_dataset: Write, rewarded: Callable[..., EpisodeBatch], tmp_path: Path
) -> None:
    batch = rewarded(1)
    batch.rewards[batch.starts[2]] = np.nan
    result = train(write_dataset(batch), tmp_path / "run", top_fraction=0.99, **OPTIONS)
    assert (result.chosen["episodes"], result.rewards_not_finite) == (11, {})
    assert result.notes[0] == "--top-fraction leaves out 1 episodes with NaN rewards"
    batch.rewards[:] = np.nan
    with pytest.raises(NoData):
        train(write_dataset(batch, name="none"), tmp_path / "none-run", top_fraction=0.5, **OPTIONS)


@pytest.mark.parametrize(("fraction", "count"), [(0.01, 1), (0.26, 3), (0.38, 4), (0.99, 9)], ids=str)
def test_the_share_held_out_is_rounded_and_leaves_one_on_either_side(fraction: float, count: int, make_batch: Make) -> None:
    batch = make_batch(episodes=10)
    assert HeldOut([batch], fraction, 0, "here").among(batch).sum() == count
