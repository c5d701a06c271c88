"""Policies whose mean is a tanh, or whose spread has other limits: they play as they were trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edited_json import told_in
from gymnasium import spaces

from offline_cli import load_policy as policy_in_use
from offline_cli import record
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
FORMS = {
    "iql": {"mean": "tanh", "log_std": [-5.0, 2.0]},
    "td3-bc": {"mean": "tanh", "log_std": [pytest.approx(np.log(0.1))] * 2},
}
POLICY = "policy.json"


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


def outputs(run: Path, seen: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What the network puts out for observations (B, 3), and the inputs of the distribution."""
    module: Any = load_policy(run).module
    with torch.no_grad():
        raw = module.network(module.encoder(torch.as_tensor(seen)))
        return raw, module.forward_inference({"obs": torch.as_tensor(seen)})["action_dist_inputs"]


@pytest.mark.parametrize("algorithm", FORMS)
def test_a_policy_read_back_has_the_form_that_it_was_trained_with(trained: Callable[..., Path], algorithm: str) -> None:
    run = trained(algorithm)
    described = told_in(run / POLICY)
    assert described["gaussian"] == FORMS[algorithm]
    seen = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32) * 4
    raw, inputs = outputs(run, seen)
    low, high = described["gaussian"]["log_std"]
    torch.testing.assert_close(inputs, torch.cat([torch.tanh(raw[:, :2]), raw[:, 2:].clamp(low, high)], 1))
    assert float((raw[:, :2].abs()).max()) > 1, "not to be told from a mean without limits"


@pytest.mark.parametrize("algorithm", FORMS)
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
        np.testing.assert_allclose(played, 2 * outputs(run, seen)[1][:, :2].numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(policy_in_use(run).act(seen), played, rtol=1e-5, atol=1e-6)
