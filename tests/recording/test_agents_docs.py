"""docs/agents.md: its commands run as they stand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from warm_commands import Shell

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.integration
def test_the_page_on_several_agents_runs_as_it_stands(tmp_path: Path, script_shell: Shell) -> None:
    page = (REPOSITORY / "docs" / "agents.md").read_text(encoding="utf-8")
    code, script = (re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)[0] for language in ("python", "sh"))
    (tmp_path / "my_games.py").write_text(code, encoding="utf-8")
    done = script_shell(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert set(told["return_by_agent"]) == {"red", "blue"}
    assert (tmp_path / "red" / "result.json").is_file()
