"""docs/operations.md: its examples run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from operated import read

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.integration
def test_the_examples_run(
    tmp_path: Path, script_shell: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = script_shell("\n".join(blocks("sh")), tmp_path)
    assert done.returncode == 0, done.stderr
    assert (len(ids_of(tmp_path / "best")), len(ids_of(tmp_path / "parts" / "val"))) == (5, 5)
    monkeypatch.chdir(tmp_path)
    for block in blocks("python"):
        exec(block, {})
    assert capsys.readouterr().out.splitlines()[-1] == "25"


def ids_of(folder: Path) -> tuple[str, ...]:
    return read(folder).ids
