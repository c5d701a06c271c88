"""train-bc of sources that differ in what behaviour cloning does not use; pieces take sources with the same outputs alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli import EpisodeBatch, train_bc, write_dataset

Make = Callable[..., EpisodeBatch]
Mixed = tuple[list[Path], list[Path]]
ALIKE = ("one", "two")


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
def mixed(make_batch: Make, tmp_path: Path) -> Mixed:
    """Three datasets of which no two have the same extra model outputs, and the same ones without any."""
    batches = [make_batch(episodes=5, seed=seed) for seed in range(3)]
    others = [told(batches[0]), batches[1], told(batches[2], action_logp=np.ones((batches[2].num_steps, 3)))]
    formats = ("episodes", "columns", "columns")

    def write(batch: EpisodeBatch, name: str, format: Any) -> Path:
        return Path(write_dataset(batch, tmp_path / name, format=format).out)

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
