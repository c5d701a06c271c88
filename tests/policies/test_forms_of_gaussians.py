"""Policies whose mean is a tanh, or whose spread has other limits: they play as they were trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from offline_cli import load_policy as policy_in_use
from offline_cli import record
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]


@pytest.fixture
def trained(make_batch: Make, write_dataset: Write, tmp_path: Path) -> Callable[..., Path]:
    """Trains on Box actions of [-2, 2], as Aim-v0 has them, and gives the run folder."""

    def train(algorithm: str) -> Path:
        recorded = make_batch(continuous=True)
        box = spaces.Box(-2.0, 2.0, (2,), np.float32)
        recorded = replace(recorded, action_space=box, actions=recorded.actions.astype(np.float32))
        (tmp_path / "c.toml").write_text(f'hidden = [16]\nbatch_size = 64\nlr = 0.05\n[algorithm]\nname = "{algorithm}"\n')
        data = write_dataset(recorded, action_scale="env")
        train_bc(data, tmp_path / "run", config=tmp_path / "c.toml", updates=5, seed=3, device="cpu")
        return tmp_path / "run"

    return train


def means(run: Path, seen: Any) -> Any:
    """Twice the tanh of what the network puts out for the means of observations (B, 3)."""
    module: Any = load_policy(run).module
    with torch.no_grad():
        raw = module.network(module.encoder(torch.as_tensor(seen)))[:, :2]
    assert float(raw.abs().max()) > 0.1, "not to be told from a mean without limits"
    return 2 * torch.tanh(raw).numpy()


@pytest.mark.parametrize("algorithm", ["iql", "td3-bc"])
def test_evaluate_record_and_act_give_the_actions_of_the_module(
    trained: Callable[..., Path], algorithm: str, given: list[tuple[Any, Any]], tmp_path: Path
) -> None:
    run = trained(algorithm)
    for play in (
        lambda: evaluate(run, env="Aim-v0", episodes=3),
        lambda: record("Aim-v0", tmp_path / "out", policy=str(run), episodes=3, vectorize="sync", device="cpu"),
    ):
        given.clear()
        play()
        seen, played = (np.stack(part) for part in zip(*given, strict=True))
        np.testing.assert_allclose(played, means(run, seen), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(policy_in_use(run).act(seen), played, rtol=1e-5, atol=1e-6)
