"""The page docs/apply.md runs as it stands, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from warm_commands import Shell

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "apply.md").read_text(encoding="utf-8")


@pytest.mark.integration
def test_all_commands_and_all_code_run_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script_shell: Shell
) -> None:
    (tmp_path / "sample_data").symlink_to(REPOSITORY / "sample_data")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "guide"}
    for number, (kind, text) in enumerate(re.findall(r"```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL)):
        if kind == "python":
            exec(compile(text, f"docs/apply.md, block {number}", "exec"), names)
        else:
            done = script_shell(text, tmp_path)
            assert done.returncode == 0, done.stderr
