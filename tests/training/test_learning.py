"""Cloning the recorded expert of CartPole reaches its return, from the start of a process to a played policy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.nightly


def offline_cli(*arguments: object) -> dict[str, Any]:
    """What the command prints under `--json`; fails with its messages unless it exits with 0."""
    command = [sys.executable, "-m", "offline_cli", *map(str, arguments), "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("seed", [0, 1, 11])
def test_a_clone_of_rllibs_expert_is_confirmed_at_450_and_plays_so_again(seed: int, real_data: Path, tmp_path: Path) -> None:
    source, run = real_data / "rllib_episodes_cartpole_expert", tmp_path / "run"
    trained = offline_cli("train-bc", source, "--env", "CartPole-v1", "--until-return", 450, "--out", run, "--seed", seed)
    assert trained["stopped_by"] == "target"
    assert trained["eval_return_mean"] >= 450
    played = offline_cli("evaluate", run, "--env", "CartPole-v1", "--episodes", 100, "--min-return", 450)
    assert played["episodes"] == 100
    assert played["return_mean"] >= 450


def test_a_return_that_the_expert_never_had_is_not_confirmed_and_the_gate_says_so(tmp_path: Path) -> None:
    sample = Path(__file__).resolve().parents[2] / "sample_data" / "rllib_cartpole_expert"
    command = [sys.executable, "-m", "offline_cli", "train-bc", str(sample), "--env", "CartPole-v1", "--until-return", "501"]
    done = subprocess.run(
        [*command, "--epochs", "20", "--out", str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 7
    assert "no policy was confirmed at a return of 501" in done.stderr
    assert (tmp_path / "run" / "policy.safetensors").is_file()
