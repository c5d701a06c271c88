"""Memory does not grow with the length of a recording."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly
SCRIPT = """
import sys
from offline_cli.recording.record import record
if __name__ == "__main__":
    record(sys.argv[1], sys.argv[2], policy="random", steps=int(sys.argv[3]), num_envs=64, format=sys.argv[4], device="cpu",
           num_env_runners=int(sys.argv[5]))
"""


@pytest.mark.parametrize(
    ("env", "format", "runners", "steps"),
    [
        pytest.param("Pendulum-v1", "columns", 0, (200_000, 800_000), marks=pytest.mark.nightly),
        ("CartPole-v1", "episodes", 0, (300_000, 3_000_000)),
        ("CartPole-v1", "columns", 2, (300_000, 3_000_000)),
    ],
    ids=lambda value: str(value),
)
def test_a_longer_recording_takes_no_more_memory(
    env: str,
    format: str,
    runners: int,
    steps: tuple[int, int],
    tmp_path: Path,
    child_env: dict[str, str],
    measured: Callable[..., tuple[str, int]],
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    few, many = (
        measured([sys.executable, str(script), env, str(tmp_path / f"D-{count}"), str(count), format, str(runners)], child_env)[
            1
        ]
        for count in steps
    )
    assert many < few + (48 << 20)  # an id per episode, of which CartPole has 120,000 more, takes 16 MiB
