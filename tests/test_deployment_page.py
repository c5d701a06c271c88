"""docs/deployment.md: its examples run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from offline_cli.recording.record import record
from offline_cli.training.train import train_bc

PAGE = Path(__file__).resolve().parents[1] / "docs" / "deployment.md"


def test_the_examples_of_the_page_run_with_and_without_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    record("CartPole-v1", "dataset", policy="random", episodes=4, device="cpu")
    train_bc("dataset", "run", updates=2, hidden=(8,), device="cpu")
    names: dict[str, Any] = {}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 4
    for example in examples:
        exec(example, names)
    assert len(names["drawn"]) == 5
    assert len(capsys.readouterr().out.splitlines()) == 4

    (tmp_path / "p.toml").write_text('kind = "learner"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 2\n')
    train_bc("dataset", "run", updates=2, hidden=(8,), device="cpu", pipeline="p.toml", overwrite=True)
    for example in (*examples[:2], examples[3]):
        exec(example, names)
    assert names["policy"].has_memory
