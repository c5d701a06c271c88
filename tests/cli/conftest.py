"""What several tests of the command line use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

if TYPE_CHECKING:
    from offline_cli.episodes.batch import EpisodeBatch

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def child_env() -> dict[str, str]:
    """The environment of a child process that finds the package under test, wherever it is started."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture
def shell(tmp_path: Path, child_env: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `python ARGS...` in an empty folder, as a shell would, and gives what came of it."""

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *args]
        return subprocess.run(command, cwd=tmp_path, env=child_env, capture_output=True, text=True, check=False, timeout=120)

    return run


@pytest.fixture
def call() -> Callable[..., Any]:
    """Runs `offline-cli ARGS...` in this process and gives exit code, stdout and stderr."""
    from offline_cli.cli.app import app

    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def call_json(call: Callable[..., Any]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs `offline-cli ARGS... --json` and gives the exit code and the one object on stdout."""

    def run(*args: Any) -> tuple[int, dict[str, Any]]:
        done = call(*args, "--json")
        assert done.stdout.count("\n") == 1, done.output
        return done.exit_code, json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def recorded(random_batch: Callable[..., EpisodeBatch]) -> EpisodeBatch:
    """Eight short episodes in CartPole's spaces, every action the sign of the pole's angle."""
    import gymnasium as gym
    import numpy as np

    observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    batch = random_batch(observation_space, gym.spaces.Discrete(2), lengths=(5, 9, 1, 7, 12, 6, 8, 4))
    batch.actions[:] = batch.acted_obs()[:, 2] > 0
    return batch


@pytest.fixture
def recording(tmp_path: Path, recorded: EpisodeBatch) -> Path:
    """A folder as RLlib writes it: a Parquet file with one packed episode per row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from offline_cli.episodes.codec import encode_batch
    from offline_cli.tally import Tally

    folder = tmp_path / "recording"
    folder.mkdir()
    items = encode_batch(recorded, where="test", tally=Tally())
    pq.write_table(pa.table({"item": pa.array(items, pa.binary())}), folder / "part-0.parquet")
    return folder
