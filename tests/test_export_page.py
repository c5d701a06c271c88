"""docs/export.md: its commands and its example run, one after the other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from offline_cli.recording.record import record
from offline_cli.training.train import train_bc

pytestmark = pytest.mark.nightly  # an export to ONNX takes seconds

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "export.md").read_text(encoding="utf-8")


def test_the_commands_and_the_example_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    record("CartPole-v1", "dataset", policy="random", episodes=4, device="cpu")
    train_bc("dataset", "run", updates=2, hidden=(8,), device="cpu")
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    found = [told(*shlex.split(line)[1:]) for line in block.splitlines()]
    assert found[1]["return_mean"] == found[3]["return_mean"]  # both are the run's policy
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(example, {})
    assert float(capsys.readouterr().out.split()[-1]) >= 1
