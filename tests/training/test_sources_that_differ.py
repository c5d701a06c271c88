"""train-bc of sources that differ in what behaviour cloning does not use; pieces take sources with the same outputs alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.storage.locations import open_location
from offline_cli.training.train import train_bc

Make = Callable[..., EpisodeBatch]
Mixed = tuple[list[Path], list[Path]]
ALIKE = ("one", "two")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a batch as a dataset of ours, in either format."""

    def written(batch: EpisodeBatch, name: str, to: Any = "episodes") -> Path:
        folder = tmp_path / name
        scale = "env" if isinstance(batch.action_space, spaces.Box) else "unknown"
        given = {"observation_space": batch.observation_space, "action_space": batch.action_space, "action_scale": scale}
        with DatasetWriter(open_location(str(folder)), format=to, **given) as writer:
            writer.write(batch)
            writer.commit()
        return folder

    return written


def told(batch: EpisodeBatch, **more: Any) -> EpisodeBatch:
    """`batch` with extra model outputs of two kinds, infos and custom data."""
    rng = np.random.default_rng(9)
    extra: dict[str, Any] = {
        "action_logp": rng.normal(size=batch.num_steps).astype(np.float32),
        "vf": {"mean": rng.normal(size=(batch.num_steps, 2))},
    }
    return replace(
        batch,
        extra=extra | more,
        infos=[{"t": t} for t in range(batch.num_steps + len(batch))],
        custom_data=tuple({"from": "here"} for _ in range(len(batch))),
    )


@pytest.fixture
def mixed(make_batch: Make, write: Callable[..., Path]) -> Mixed:
    """Three datasets of which no two have the same extra model outputs, and the same ones without any."""
    batches = [make_batch(episodes=5, seed=seed) for seed in range(3)]
    others = [told(batches[0]), batches[1], told(batches[2], action_logp=np.ones((batches[2].num_steps, 3)))]
    formats = ("episodes", "columns", "columns")
    return (
        [write(batch, f"mixed-{i}", formats[i]) for i, batch in enumerate(others)],
        [write(batch, f"plain-{i}", formats[i]) for i, batch in enumerate(batches)],
    )


def policy(run: Path) -> bytes:
    return (run / "policy.safetensors").read_bytes()


@pytest.mark.parametrize("streaming", [False, True])
def test_what_cloning_does_not_use_does_not_decide(mixed: Mixed, config: Path, tmp_path: Path, streaming: bool) -> None:
    options: dict[str, Any] = {"config": config, "val_fraction": 0.2, "streaming": streaming}
    runs = [tmp_path / name for name in ALIKE]
    results = [train_bc(sources, run, updates=20, **options) for sources, run in zip(mixed, runs, strict=True)]
    assert results[0].episodes == results[1].episodes == 15
    assert policy(runs[0]) == policy(runs[1])
