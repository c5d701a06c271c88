"""Files that happen to lie beside the user are not taken for modules, by no process; those that the user names are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = ("bin/offline-cli",)  # as pip makes one: the first folder of the path is its own
SCRIPT_TEXT = """from offline_cli.cli.app import main

if __name__ == "__main__":
    main()
"""
Beside = Callable[..., subprocess.CompletedProcess[str]]
NAMES = ("numpy", "gymnasium", "torch", "multiprocessing", "selectors", "socket", "signal", "json", "secrets")
TRAP = """import os, pathlib, sys
(pathlib.Path(__file__).parent / f"{__name__}.{os.getpid()}.ran").touch()
raise SystemExit(9)
"""
MINE = """
import os
import gymnasium as gym
import numpy as np


class Robot(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(2, np.float32), self._told()

    def step(self, action):
        self.t += 1
        return np.full(2, self.t / 5, np.float32), float(action), self.t == 5, False, self._told()

    def _told(self):
        return {"pid": os.getpid(), "safe": str(os.environ.get("PYTHONSAFEPATH"))}


def brake(observation):
    return 1


if "Robot-v0" not in gym.registry:
    gym.register("Robot-v0", Robot)
"""


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    """Runs `offline-cli ARGS...` in the test's folder."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "offline-cli").write_text(SCRIPT_TEXT, encoding="utf-8")

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        env.pop("PYTHONSAFEPATH", None)
        command = [sys.executable, *SCRIPT, *args]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120)

    return run


def _lay(folder: Path, *names: str) -> None:
    for name in names:
        (folder / f"{name}.py").write_text(TRAP, encoding="utf-8")


def _ran(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.ran"))


@pytest.mark.integration
def test_worker_processes_take_no_stray_file_for_a_module_and_find_those_that_the_user_names(
    tmp_path: Path, beside: Beside
) -> None:
    """`python -m offline_cli`, and files by their path: test_files_as_modules.py."""
    (tmp_path / "my_envs.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "my_code.py").write_text("from my_envs import brake\n", encoding="utf-8")
    _lay(tmp_path, *NAMES)
    words = ("record", "my_envs:Robot-v0", "--out", "D", "--policy", "python:my_code:brake", "--episodes", "4")
    done = beside(*words, "--num-envs", "2", "--json", "--vectorize", "async", "--num-env-runners", "2")
    assert (done.returncode, _ran(tmp_path)) == (0, []), done.stderr
    told = json.loads(done.stdout)
    assert (told["episodes"], told["return_mean"]) == (4, 5.0)
