"""Run folders as the version before algorithms wrote them, in the middle of training: played, and resumed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
OLD = Path(__file__).resolve().parents[1] / "testdata" / "run_v1"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Interrupted after 36 of 60 updates, with a best policy of update 30; the data is `write_dataset()`."""
    shutil.copytree(OLD / "interrupted", tmp_path / "run")
    return tmp_path / "run"


def test_an_interrupted_one_plays_the_policy_of_its_checkpoint(run: Path) -> None:
    kept = load_file(run / "policy.safetensors")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in load_policy(run).module.state_dict().items())
    assert evaluate(run, env="Sign-v0", episodes=2).checkpoint == 36


def test_an_interrupted_one_resumes_to_the_policy_that_it_would_have_had(run: Path, write_dataset: Write) -> None:
    result = train_bc(write_dataset(), run, resume=True)
    assert (result.updates, result.losses.keys()) == (60, {"nll"})
    after, expected = load_file(run / "policy.safetensors"), load_file(OLD / "finished.safetensors")
    for name, tensor in expected.items():
        torch.testing.assert_close(after[name], tensor, rtol=1e-4, atol=1e-6)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["update"] for row in rows] == [7, 14, 15, 21, 28, 30, 35, 42, 45, 49, 56, 60]
    assert all("nll_loss" not in row for row in rows)
