"""What reads holds files, threads and processes no longer than its owner has it, and is harmless where nobody ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import half_read
import pytest


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind."""
    folder = tmp_path_factory.mktemp("data")
    half_read.make(folder)
    return folder


def test_readers_that_are_left_half_read_hang_nothing_when_another_thread_collects_them(data: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, half_read.__file__, str(data)], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["threads"] == ["MainThread"]
