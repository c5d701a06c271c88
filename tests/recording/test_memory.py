"""Memory does not grow with the length of a recording."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.big
SCRIPT = """
import resource, sys
from offline_cli.recording.record import record
if __name__ == "__main__":
    record(sys.argv[1], sys.argv[2], policy="random", steps=int(sys.argv[3]), num_envs=64, format=sys.argv[4], device="cpu",
           num_env_runners=int(sys.argv[5]))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.parametrize(
    ("env", "format", "runners", "steps"),
    [
        ("Pendulum-v1", "columns", 0, (200_000, 800_000)),
        ("CartPole-v1", "episodes", 0, (300_000, 3_000_000)),
        ("CartPole-v1", "columns", 2, (300_000, 3_000_000)),
    ],
    ids=lambda value: str(value),
)
def test_a_longer_recording_takes_no_more_memory(
    env: str, format: str, runners: int, steps: tuple[int, int], tmp_path: Path, child_env: dict[str, str]
) -> None:
    few, many = (peak(tmp_path, child_env, env, count, format, runners) for count in steps)
    assert many < few + 48  # MiB: an id per episode, of which CartPole has 120,000 more, takes 16


def peak(tmp_path: Path, child_env: dict[str, str], env: str, steps: int, format: str, runners: int) -> int:
    """The largest resident set, in MiB, of a process that records so many steps."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    words = [sys.executable, str(script), env, str(tmp_path / f"D-{steps}"), str(steps), format, str(runners)]
    done = subprocess.run(words, env=child_env, capture_output=True, text=True, check=True)
    return int(done.stdout)
