"""Type checkers see the keywords of the public functions."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
RIGHT = """
from offline_cli import convert, evaluate, record, train_bc

convert("recordings", "dataset", to="columns", limit=10, memory_limit="2GiB")
record("CartPole-v1", "dataset", policy="random", episodes=3).episodes
train_bc(["dataset"], "run", lr=0.1, device="cuda")
evaluate("run", episodes=3)
"""
WRONG = """
from offline_cli import convert, record

convert("recordings", "dataset", on_error="ignore")
convert("recordings", "dataset", limit="10")
record("CartPole-v1", "dataset", episodes=3)
record("CartPole-v1", "dataset", policy="random", epsiodes=3)
"""


CONFIG = """
[mypy]
strict = true
follow_imports = skip
ignore_missing_imports = true
[mypy-offline_cli,offline_cli.options.*,offline_cli.converting.convert,offline_cli.recording.record,offline_cli.playing.evaluate,offline_cli.training.train]
follow_imports = silent
"""  # what is behind the signatures takes mypy two minutes


@pytest.mark.integration
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_accepts_right_calls_and_names_each_wrong_one(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(CONFIG, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "right.py", "wrong.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [line.split(":")[:2] for line in lines] == [["wrong.py", str(number)] for number in (4, 5, 6, 7)], done.stdout
    for line, words in zip(
        lines, ("Literal['fail', 'skip', 'quarantine']", '"int | None"', '"policy"', '"epsiodes"'), strict=True
    ):
        assert words in line
