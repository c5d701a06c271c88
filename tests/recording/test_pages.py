"""docs/recording.md and docs/agents.md: their commands and their Python run as they stand."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from warm_commands import Shell

from offline_cli.episodes.batch import EpisodeBatch

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parents[2]
Read = Callable[[Path], EpisodeBatch]
Same = Callable[[EpisodeBatch, EpisodeBatch], None]


def blocks(page: str, language: str) -> list[str]:
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_page_on_recording_runs_as_it_stands(tmp_path: Path, script_shell: Shell, read: Read, same: Same) -> None:
    code, pieces, loop, script = blocks("recording.md", "python")
    files = {"my_code.py": code, "my_pieces.py": pieces, "loop.py": loop, "script.py": script}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    scripts = "".join(f"\n{sys.executable} {name}" for name in ("script.py", "loop.py"))
    done = script_shell("\n".join(blocks("recording.md", "sh")) + scripts, tmp_path)
    assert done.returncode == 0, done.stderr
    same(read(tmp_path / "all").select([7]), read(tmp_path / "the-eighth"))
    assert len(read(tmp_path / "by-hand")) == 5
    assert "lean" in read(tmp_path / "cartpole").extra
    assert "state_out" in read(tmp_path / "remembered").extra


def test_the_page_on_several_agents_runs_as_it_stands(tmp_path: Path, script_shell: Shell) -> None:
    (tmp_path / "my_games.py").write_text(blocks("agents.md", "python")[0], encoding="utf-8")
    done = script_shell(blocks("agents.md", "sh")[0], tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout.splitlines()[-1])["return_by_agent"]) == {"red", "blue"}
