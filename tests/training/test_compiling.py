"""`--compile`: losses are computed by what torch.compile makes of them. Compiling takes seconds, and a C++ compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.training.train import train

pytestmark = pytest.mark.nightly
Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
SMALL: dict[str, Any] = {"hidden": (16,), "batch_size": 32, "updates": 40, "device": "cpu"}


def losses(run: Path) -> list[list[float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [[row[name] for name in row if name.endswith("loss") and row[name] is not None] for row in rows]


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "bc", "dropout": 0.2, "val_fraction": 0.25, "eval_every": 10},
        {"algorithm": "marwil"},
        {"algorithm": "iql"},
        {"algorithm": "td3-bc"},
    ],
    ids=lambda options: options["algorithm"],
)
def test_compiled_losses_are_those_without(
    options: dict[str, Any], write_dataset: Write, make_batch: Make, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text("log_every = 5\n")
    batch = make_batch(continuous=options["algorithm"] == "td3-bc")
    rewards = np.random.default_rng(0).normal(size=len(batch.rewards))
    data = write_dataset(replace(batch, rewards=rewards), action_scale="env")
    for name in ("plain", "compiled"):
        train(data, tmp_path / name, config=tmp_path / "c.toml", compile=name == "compiled", **SMALL, **options)
    plain, compiled = losses(tmp_path / "plain"), losses(tmp_path / "compiled")
    assert len(plain) == 8
    for one, other in zip(plain, compiled, strict=True):
        assert other == pytest.approx(one, abs=1e-4)


def test_a_machine_without_a_compiler_is_told_what_to_install(write_dataset: Write, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "offline_cli", "train", str(write_dataset()), "--out", str(tmp_path / "run")]
    environment = {**os.environ, "CXX": str(tmp_path / "no-g++"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    options = ["--compile", "--updates", "3", "--device", "cpu", "--json"]
    done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, timeout=300, check=False)
    told = json.loads(done.stdout)
    assert (done.returncode, told["error"]["where"]) == (6, "--compile")
