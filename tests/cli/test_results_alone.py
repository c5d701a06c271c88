"""`--json`: stdout is one JSON object, whatever C code of an environment prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOUD = """
import os, gymnasium as gym, numpy as np
class Loud(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        os.write(1, b"engine started\\n")  # as printf of a physics engine does
        print("hello from Python")
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, False, {}
"""


@pytest.mark.integration
@pytest.mark.parametrize(("episodes", "code"), [(2, 0), (0, 2)])
def test_stdout_is_one_object_of_a_success_and_of_a_failure(
    episodes: int, code: int, tmp_path: Path, child_env: dict[str, str]
) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    words = ["record", "loud:Loud", "--policy", "random", "--episodes", str(episodes), "--out", "D", "--quiet", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "offline_cli", *words], cwd=tmp_path, env=child_env, capture_output=True, text=True, check=False
    )
    told = json.loads(done.stdout)
    assert (done.returncode, "error" in told) == (code, bool(code))
    assert ("engine started" in done.stderr) == (not code)
