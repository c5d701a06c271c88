"""A test that hangs ends the run, and shows where."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import time_limits

HANGS = """
import threading


def test_passes():
    pass


def test_hangs():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    threading.Event().wait()
"""


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.kill)])
def test_a_test_that_hangs_fails_the_run_and_shows_all_stacks(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_it.py").write_text(HANGS)
    path = os.pathsep.join([str(Path(time_limits.__file__).parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, time_limits.VARIABLE: "3"}
    words = ["-p", "time_limits", "-p", "no:cacheprovider", "-n", str(workers), "-c", os.devnull, "--rootdir", "."]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "test_it.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    shown = done.stdout + done.stderr
    assert "Timeout (0:00:03)!" in shown
    assert "in wait" in shown  # the other thread
    assert 'test_it.py", line 11 in test_hangs' in shown
    assert ("worker" in shown and "crashed" in shown) == bool(workers)


@pytest.mark.parametrize("marker", ["big", "kill", "strict"])
def test_tests_that_take_minutes_have_more_time(monkeypatch: pytest.MonkeyPatch, marker: str) -> None:
    monkeypatch.delenv(time_limits.VARIABLE, raising=False)

    class Item:
        def get_closest_marker(self, name: str) -> bool:
            return name == marker

    seconds = time_limits.SECONDS if marker == "strict" else time_limits.LONG
    assert time_limits.limit_of(Item()) == seconds  # type: ignore[arg-type]
