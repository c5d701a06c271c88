"""Recordings of environments whose episodes are known, read back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from offline_cli.datasets.dataset import open_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.recording.record import record
from offline_cli.trees import flatten

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = str(Path(__file__).resolve().parent)  # of the environments and policies, which are named by module as a user's are
ENV = "recording_envs:Count-v0"
Record = Callable[..., Path]
Episodes = Callable[[Path], EpisodeBatch]


@pytest.fixture
def recorded(tmp_path: Path) -> Record:
    """Records in a new folder and gives it: 12 episodes of Count-v0, actions by observation, unless told otherwise."""
    count = 0

    def make(env: str = ENV, **options: Any) -> Path:
        nonlocal count
        count += 1
        out = tmp_path / f"recording-{count}"
        wanted = {} if "steps" in options else {"episodes": 12}
        defaults = {"policy": "python:recording_envs:batched", "vectorize": "sync", "device": "cpu", **wanted}
        record(env, out, **{**defaults, **options})
        return out

    return make


@pytest.fixture
def read() -> Episodes:
    """All episodes of a dataset as one batch."""
    return lambda out: EpisodeBatch.concat(list(open_dataset(str(out)).batches()))


def assert_same(left: EpisodeBatch, right: EpisodeBatch) -> None:
    """Equal to the last bit: ids, steps, flags, extra model outputs and infos."""
    assert left.ids == right.ids
    for name in ("starts", "rewards", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    trees = [
        ("obs", left.obs, right.obs),
        ("actions", left.actions, right.actions),
        ("extra", dict(left.extra), dict(right.extra)),
    ]
    for name, here, there in trees:
        for (path, one), (other_path, other) in zip(flatten(here, name), flatten(there, name), strict=True):
            assert (path, one.dtype) == (other_path, other.dtype)
            np.testing.assert_array_equal(one, other)
    infos = [[dict(info) for info in batch.infos or [{}] * (batch.num_steps + len(batch))] for batch in (left, right)]
    assert infos[0] == infos[1]


@pytest.fixture
def same() -> Callable[[EpisodeBatch, EpisodeBatch], None]:
    """Asserts that two batches hold the same episodes."""
    return assert_same


@pytest.fixture
def child_env() -> dict[str, str]:
    """The environment of a child process that finds the package and the environments under test."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), HERE, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture
def run_folder(tmp_path: Path) -> Callable[..., Path]:
    """Trains two updates on a random recording and gives the run folder."""

    def train(env: str, action_scale: str = "env") -> Path:
        from offline_cli.training.train import train_bc

        data, run = tmp_path / "to-learn", tmp_path / "run"
        if not data.exists():
            record(env, data, policy="random", episodes=6, vectorize="sync", device="cpu")
        manifest = data / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"action_scale": "env"', f'"action_scale": "{action_scale}"'))
        train_bc(str(data), run, updates=2, batch_size=16, device="cpu")
        return run

    return train


STACK = {"name": "frame_stacking", "num_frames": 4}
FILTER = {"name": "mean_std_filter"}
PipelineText = Callable[..., str]


@pytest.fixture
def pipeline_file(tmp_path: Path) -> PipelineText:
    """Writes a pipeline file of these pieces and gives its path."""
    count = 0

    def make(*pieces: dict[str, Any], kind: str = "learner", **more: Any) -> str:
        nonlocal count
        count += 1
        path = tmp_path / f"pipeline-{count}.toml"
        path.write_bytes(tomli_w.dumps({"kind": kind, **more, "pieces": list(pieces)}).encode())
        return str(path)

    return make


@pytest.fixture
def run_through_pieces(tmp_path: Path, pipeline_file: PipelineText) -> Callable[..., str]:
    """Trains two updates through pieces on a random recording of an environment, and gives the run folder."""

    def train(*pieces: dict[str, Any], env: str = ENV) -> str:
        from offline_cli.training.train import train_bc

        data, run = tmp_path / "to-learn-through-pieces", tmp_path / "run-through-pieces"
        record(env, data, policy="random", episodes=6, vectorize="sync", device="cpu", seed=7)
        train_bc(str(data), run, pipeline=pipeline_file(*pieces), updates=2, batch_size=16, device="cpu")
        return str(run)

    return train
