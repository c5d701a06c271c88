"""Files that happen to lie beside the user are not taken for modules, by no process; those that the user names are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
MODULE = ("-m", "offline_cli")
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
PROCESSES = {
    "runners": ("--vectorize", "sync", "--num-env-runners", "2"),
    "environments": ("--vectorize", "async"),
    "both": ("--vectorize", "async", "--num-env-runners", "2"),
}
KINDS = [pytest.param(name, marks=[] if name == "both" else pytest.mark.nightly) for name in PROCESSES]  # one alone: full lane


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    """Runs `offline-cli ARGS...` in the test's folder."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "offline-cli").write_text(SCRIPT_TEXT, encoding="utf-8")

    def run(*args: str, start: tuple[str, ...] = SCRIPT, **more: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY), **more}
        env.pop("PYTHONSAFEPATH", None)
        command = [sys.executable, *start, *args]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120)

    return run


def _lay(folder: Path, *names: str) -> None:
    for name in names:
        (folder / f"{name}.py").write_text(TRAP, encoding="utf-8")


def _ran(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.ran"))


def _infos(folder: Path) -> list[dict[str, Any]]:
    from offline_cli.datasets.dataset import open_dataset

    return [dict(info) for batch in open_dataset(str(folder / "D")).batches() for info in batch.infos or []]


@pytest.mark.integration
@pytest.mark.parametrize("processes", KINDS)
def test_files_of_the_current_folder_are_not_imported_by_worker_processes(
    processes: str, tmp_path: Path, beside: Beside
) -> None:
    _lay(tmp_path, *NAMES)
    words = ("record", "CartPole-v1", "--out", "D", "--policy", "random", "--episodes", "4", "--num-envs", "2")
    done = beside(*words, *PROCESSES[processes])
    assert (done.returncode, _ran(tmp_path)) == (0, []), done.stderr


@pytest.mark.integration
def test_python_m_offline_cli_does_not_import_files_of_the_current_folder(tmp_path: Path, beside: Beside) -> None:
    _lay(tmp_path, "numpy", "gymnasium", "torch", "typer", "click", "multiprocessing")
    words = ("record", "CartPole-v1", "--out", "D", "--policy", "random", "--episodes", "4", "--num-envs", "2")
    done = beside(*words, *PROCESSES["both"], start=MODULE)
    assert (done.returncode, _ran(tmp_path)) == (0, []), done.stderr


@pytest.mark.integration
@pytest.mark.parametrize("start", [SCRIPT, MODULE], ids=["script", "module"])
@pytest.mark.parametrize("processes", KINDS)
def test_modules_of_the_current_folder_that_the_user_names_work_in_worker_processes(
    processes: str, start: tuple[str, ...], tmp_path: Path, beside: Beside
) -> None:
    (tmp_path / "my_envs.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "my_code.py").write_text("from my_envs import brake\n", encoding="utf-8")
    _lay(tmp_path, "numpy")
    words = ("record", "my_envs:Robot-v0", "--out", "D", "--policy", "python:my_code:brake", "--episodes", "4")
    done = beside(*words, "--num-envs", "2", "--json", *PROCESSES[processes], start=start)
    assert (done.returncode, _ran(tmp_path)) == (0, []), done.stderr
    told = json.loads(done.stdout)
    assert (told["episodes"], told["return_mean"]) == (4, 5.0)


@pytest.mark.integration
def test_the_environment_variables_of_worker_processes_are_the_callers(tmp_path: Path, beside: Beside) -> None:
    (tmp_path / "my_envs.py").write_text(MINE, encoding="utf-8")
    words = ("record", "my_envs:Robot-v0", "--out", "D", "--policy", "random", "--episodes", "4", "--num-envs", "2")
    done = beside(*words, *PROCESSES["both"])
    assert done.returncode == 0, done.stderr
    infos = _infos(tmp_path)
    assert len({info["pid"] for info in infos}) > 1
    assert {info["safe"] for info in infos} == {"None"}


@pytest.mark.integration
def test_folders_of_pythonpath_are_found_by_worker_processes(tmp_path: Path, beside: Beside) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "my_envs.py").write_text(MINE, encoding="utf-8")
    words = ("record", "my_envs:Robot-v0", "--out", "D", "--policy", "random", "--episodes", "4", "--num-envs", "2")
    path = os.pathsep.join([str(REPOSITORY), str(elsewhere)])
    done = beside(*words, *PROCESSES["both"], PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
