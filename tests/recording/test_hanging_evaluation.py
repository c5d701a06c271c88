"""Environments that hang in `evaluate`, and in the evaluation within `train-bc`: a stop ends there in time, too."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offline_cli.files.locations import open_location
from offline_cli.training.run_folder import RunFolder

ENV = "hanging_envs:Told-v0"
pytestmark = pytest.mark.nightly


def stopped(words: list[str], how: str, env: dict[str, str], mark: Path, number: int) -> tuple[int, str]:
    """Exit code and stderr of a command that gets a signal once its environment hangs; fails where it takes over 10 s."""
    process = subprocess.Popen(
        [sys.executable, "-m", "offline_cli", *words],
        env={**env, "HANGS": f"{how} {mark}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        until = time.monotonic() + 60
        while not mark.exists() and time.monotonic() < until and process.poll() is None:
            time.sleep(0.02)
        assert mark.exists()
        time.sleep(0.2)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=10)
    finally:
        process.kill()
        process.wait()
    return process.returncode, stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
@pytest.mark.parametrize("how", ["sleep", "swallow", "left", "held"])
def test_evaluate_ends_in_time(
    how: str, number: int, code: int, run_folder: Callable[..., Path], child_env: dict[str, str], tmp_path: Path
) -> None:
    if number != signal.SIGTERM and how != "sleep":
        pytest.skip("the signals differ in one place")
    words = ["evaluate", str(run_folder(ENV)), "--env", ENV, "--episodes", "4", "--device", "cpu"]
    found, stderr = stopped(words, how, child_env, tmp_path / "mark", number)
    assert found == (-signal.SIGKILL if how == "held" else code), stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize("how", ["sleep", "loop", "left", "held"])
def test_train_bc_ends_in_time_and_resume_goes_on(
    how: str, run_folder: Callable[..., Path], child_env: dict[str, str], tmp_path: Path
) -> None:
    run_folder(ENV)
    run = tmp_path / "evaluated"
    words = ["train-bc", str(tmp_path / "to-learn"), "--out", str(run), "--env", ENV, "--updates", "4", "--eval-every", "2"]
    words += ["--checkpoint-every", "1", "--batch-size", "16", "--device", "cpu"]
    found, stderr = stopped(words, how, child_env, tmp_path / "mark", signal.SIGTERM)
    assert found == (-signal.SIGKILL if how == "held" else 143), stderr
    if how in ("sleep", "loop"):
        assert "episode 0, step 2" in stderr
        assert "2 updates" in stderr
    assert RunFolder(open_location(run)).load_checkpoint() is not None
    done = subprocess.run([sys.executable, "-m", "offline_cli", *words, "--resume"], env=child_env, check=False)
    assert done.returncode == 0
