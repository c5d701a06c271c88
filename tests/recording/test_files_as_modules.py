"""Code in a file, named by its path: whatever it is called, it hides no module, and no stray file hides one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from offline_cli.errors import BadConfig
from offline_cli.import_path import imported

REPOSITORY = Path(__file__).resolve().parents[2]
Command = Callable[..., dict[str, object]]
TRAP = """import pathlib
pathlib.Path(__file__).with_suffix(".ran").touch()
raise SystemExit(9)
"""
MINE = """
import random
import numpy as np
import gymnasium as gym
from helper import LENGTH

assert hasattr(random, "Random")


class Robot(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=LENGTH):
        self.length = length

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == self.length, False, {}


class Half(gym.ObservationWrapper):
    def observation(self, observation):
        return observation / 2


def brake(observation):
    return 1
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Runs `offline-cli ARGS... --json` from a folder with stray modules, as a user does; all have to succeed."""
    for name in ("numpy", "gymnasium", "torch", "random", "json", "multiprocessing", "pyarrow"):
        (tmp_path / f"{name}.py").write_text(TRAP, encoding="utf-8")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "helper.py").write_text("LENGTH = 5\n", encoding="utf-8")
    (tmp_path / "sub" / "secrets.py").write_text(MINE, encoding="utf-8")  # the name of a module of the standard library
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    env.pop("PYTHONSAFEPATH", None)

    def run(*args: str) -> dict[str, object]:
        words = [sys.executable, "-m", "offline_cli", *args, "--json"]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120)
        assert (done.returncode, list(tmp_path.glob("*.ran"))) == (0, []), done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found

    return run


@pytest.mark.integration
def test_no_command_takes_a_stray_file_for_a_module_and_all_take_files_by_path(command: Command) -> None:
    env, cpu = ("--env", "python:sub/secrets.py:Robot", "--wrapper", "sub/secrets.py:Half"), ("--device", "cpu")
    words = ("record", "sub/secrets.py:Robot", "--wrapper", "sub/secrets.py:Half", "--out", "D", "--episodes", "4", *cpu)
    told = command(*words, "--policy", "python:sub/secrets.py:brake", "--num-env-runners", "2", "--vectorize", "async")
    assert (told["steps"], told["return_mean"]) == (20, 5.0)
    assert command("convert", "D", "--out", "E", *env)["steps"] == 20
    assert command("train-bc", "E", "--out", "run", *env, "--epochs", "1", *cpu)["eval_return_mean"] == 5.0
    told = command("evaluate", "run", *env, "--env-kwargs", '{"length": 3}', "--episodes", "2", "--num-env-runners", "2", *cpu)
    assert told["return_mean"] == 3.0


def test_a_package_that_lacks_its_own_module_is_not_to_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "__init__.py").write_text("import lacking.absent")
    with pytest.raises(BadConfig) as caught:
        imported("lacking", where="--policy", form="python:MODULE:NAME")
    assert (caught.value.where, "pip" in caught.value.fix, "lacking.absent" in caught.value.what) == ("--policy", False, True)
