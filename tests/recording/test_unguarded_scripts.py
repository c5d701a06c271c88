"""Scripts that start worker processes without the guard that multiprocessing asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = """import sys
sys.path.insert(0, {repository!r})
from offline_cli import record
record("CartPole-v1", "D", policy="random", episodes=4, num_env_runners=2)
"""


@pytest.mark.integration
def test_an_unguarded_script_is_shown_the_line_that_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT.format(repository=str(REPOSITORY)), encoding="utf-8")
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0
    assert 'from below `if __name__ == "__main__":`' in done.stderr, done.stderr
