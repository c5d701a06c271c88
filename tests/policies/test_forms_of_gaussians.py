"""Policies whose mean is a tanh, or whose spread has other limits (policy.json version 4): they play as they were trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
CONFIG = 'hidden = [16]\nbatch_size = 64\n[algorithm]\nname = "{}"\n'


@pytest.fixture(params=["iql", "td3-bc"])
def run(request: pytest.FixtureRequest, make_batch: Make, write_dataset: Write, tmp_path: Path) -> Path:
    """A finished run on Box actions of [-2, 2], as Aim-v0 has them."""
    recorded = make_batch(continuous=True)
    recorded.action_space = spaces.Box(-2.0, 2.0, (2,), np.float32)
    (tmp_path / "c.toml").write_text(CONFIG.format(request.param))
    train_bc(write_dataset(recorded, action_scale="env"), tmp_path / "run", config=tmp_path / "c.toml", updates=5, seed=3)
    return tmp_path / "run"
