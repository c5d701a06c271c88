"""Clones of recorded experts play as the experts do, in the same episodes: seeds do not depend on the policy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.nightly

EXPERTS = Path(__file__).resolve().parents[2] / "sample_data" / "experts"
EPISODES = 200


def offline_cli(*arguments: object) -> dict[str, Any]:
    """What the command prints under `--json`; fails with its messages unless it exits with 0."""
    command = [sys.executable, "-m", "offline_cli", *map(str, arguments), "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(("env", "name"), [("Pendulum-v1", "pendulum"), ("Acrobot-v1", "acrobot")])
def test_a_clone_comes_within_15_percent_of_its_expert(env: str, name: str, tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")

    def recorded(policy: object, out: str, *, seed: int) -> float:
        options = ("--episodes", EPISODES, "--num-envs", 64, "--vectorize", "sync", "--seed", seed)
        told = offline_cli("record", env, "--policy", policy, "--out", tmp_path / out, *options)
        assert told["episodes"] == EPISODES
        return float(told["return_mean"])

    expert = f"sb3:{EXPERTS / name}.zip"
    recorded(expert, "to-learn", seed=0)
    offline_cli("train-bc", tmp_path / "to-learn", "--out", tmp_path / "run", "--epochs", 40)
    wanted = recorded(expert, "expert", seed=1)
    assert recorded(tmp_path / "run", "clone", seed=1) >= wanted - 0.15 * abs(wanted)
    played = offline_cli("evaluate", tmp_path / "run", "--env", env, "--episodes", EPISODES)
    assert played["return_mean"] >= wanted - 0.3 * abs(wanted)  # other episodes: their difficulty differs as well
