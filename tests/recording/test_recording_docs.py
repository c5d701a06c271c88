"""docs/recording.md: its commands and its Python run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from offline_cli.episodes.batch import EpisodeBatch

REPOSITORY = Path(__file__).resolve().parents[2]
Read = Callable[[Path], EpisodeBatch]
Same = Callable[[EpisodeBatch, EpisodeBatch], None]


def blocks(language: str) -> list[str]:
    page = (REPOSITORY / "docs" / "recording.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


def test_the_page_on_recording_runs_as_it_stands(tmp_path: Path, child_env: dict[str, str], read: Read, same: Same) -> None:
    code, pieces, learned, script = blocks("python")
    files = {"my_code.py": code, "my_pieces.py": pieces, "learned.py": learned, "script.py": script}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "offline-cli"  # the one under test, whichever is installed
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m offline_cli "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    env = {**child_env, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}
    commands = "\n".join(blocks("sh"))
    for words in (["sh", "-euc", commands], [sys.executable, "script.py"], [sys.executable, "learned.py"]):
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    same(read(tmp_path / "all").select([7]), read(tmp_path / "the-eighth"))
    assert "lean" in read(tmp_path / "cartpole").extra
    assert "state_out" in read(tmp_path / "remembered").extra
