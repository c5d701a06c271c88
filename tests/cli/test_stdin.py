"""`-` as a source: what is piped into a command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

Pipe = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def pipe(tmp_path: Path, child_env: dict[str, str]) -> Pipe:
    """Runs `offline-cli ARGS...` with these bytes on stdin, its temporary files in an empty folder."""
    (tmp_path / "tmp").mkdir()
    env = {**child_env, "TMPDIR": str(tmp_path / "tmp")}

    def run(data: bytes, *args: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "offline_cli", *args]
        return subprocess.run(command, cwd=tmp_path, env=env, input=data, capture_output=True, check=False, timeout=120)

    return run


@pytest.fixture
def lines() -> bytes:
    """SampleBatch lines, one of them for each file."""
    return b"\n".join(json.dumps(batch).encode() for batch in _batches()) + b"\n"


def _batches() -> list[dict[str, Any]]:
    steps = 4
    return [
        {
            "type": "SampleBatch",
            "eps_id": [episode] * steps,
            "t": list(range(steps)),
            "obs": [[0.1 * step, 0.0] for step in range(steps)],
            "new_obs": [[0.1 * (step + 1), 0.0] for step in range(steps)],
            "actions": [step % 2 for step in range(steps)],
            "rewards": [1.0] * steps,
            "terminateds": [False] * (steps - 1) + [True],
            "truncateds": [False] * steps,
        }
        for episode in (7, 8)
    ]


def test_lines_that_are_piped_in_become_a_dataset(pipe: Pipe, lines: bytes, tmp_path: Path) -> None:
    done = pipe(lines, "convert", "-", "--out", "D", "--json")
    assert (done.returncode, json.loads(done.stdout)["episodes"]) == (0, 2), done.stderr
    assert json.loads((tmp_path / "D" / "manifest.json").read_bytes())["provenance"]["sources"] == ["-"]


def test_an_error_in_a_pipe_is_placed_there(pipe: Pipe, lines: bytes) -> None:
    done = pipe(lines + b"{broken\n", "inspect", "-")
    assert done.returncode == 3
    assert b"  at:  - " in done.stderr


def test_a_pipe_is_read_once(pipe: Pipe, lines: bytes) -> None:
    done = pipe(lines, "diff", "-", "-", "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (2, "usage-error")


def test_an_empty_pipe_is_no_data(pipe: Pipe) -> None:
    done = pipe(b"", "inspect", "-", "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]["where"]) == (3, "stdin")
