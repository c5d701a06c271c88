"""The hostile corpus through every command that reads: named errors, counted problems, nothing run, little memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_corpus
import pytest

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
GROUPS = ("lines", "tables", "columns", "recordings", "datasets", "mappings", "pipelines", "configs", "runs")
EXPECTED = HERE / "outcomes.json"
MAX_BYTES = 1 << 30  # one process runs all commands: torch, DuckDB and what they keep take 700 MiB
MAX_LETTERS = 20_000  # of one command's output
BAD_DATA, BAD_CONFIG = 3, 4

Measured = Callable[..., tuple[str, int]]


@pytest.fixture(scope="session")
def expected() -> dict[str, dict[str, str]]:
    """By file and command: the exit code, and the code of the error."""
    found: dict[str, dict[str, str]] = json.loads(EXPECTED.read_text())
    return found


def check(rows: list[dict[str, Any]], peak: int, expected: dict[str, dict[str, str]]) -> None:
    """What holds for any file, whatever the answer; then, that the answers are those that are written down."""
    for row in rows:
        assert not row["deaths"], row  # nothing was run, connected to, or touched outside
        assert row["exit"] in (0, BAD_DATA, BAD_CONFIG), row
        assert not row["traceback"], row
        assert row["letters"] < MAX_LETTERS, row
        assert row["peak_mib"] < MAX_BYTES >> 20, row
        assert bool(row["code"]) == (row["exit"] != 0), row
    assert peak < MAX_BYTES
    assert not Path(make_corpus.CANARY).exists()
    answers = {(row["case"], row["command"]): f"{row['exit']} {row['code']}".strip() for row in rows}
    assert answers == {key: expected[key[0]][key[1]] for key in answers}


def replay(measured: Measured, work: Path, *options: str) -> tuple[list[dict[str, Any]], int]:
    out, peak = measured([sys.executable, str(HERE / "replay.py"), str(work), *options])
    assert list(work.iterdir()) == []  # replay removes what the commands wrote
    return [json.loads(line) for line in out.splitlines()], peak


@pytest.mark.integration
def test_every_hostile_file_is_answered_by_a_named_error_or_counted_problems(
    measured: Measured, tmp_path: Path, expected: dict[str, dict[str, str]]
) -> None:
    rows, peak = replay(measured, tmp_path, *GROUPS, "--quick")
    assert {row["case"] for row in rows} == {f"{group}/{path.name}" for group in GROUPS for path in (CORPUS / group).iterdir()}
    check(rows, peak, expected)


@pytest.mark.nightly
@pytest.mark.parametrize("group", GROUPS)
def test_every_command_answers_every_hostile_file(
    group: str, measured: Measured, tmp_path: Path, expected: dict[str, dict[str, str]]
) -> None:
    rows, peak = replay(measured, tmp_path, group)
    check(rows, peak, expected)
    for case in {row["case"] for row in rows}:
        mine = [row for row in rows if row["case"] == case]
        silent = all(row["exit"] == 0 and not row["told"] for row in mine)
        assert silent == (case in make_corpus.HARMLESS), mine


def test_a_canary_hears_what_a_reader_must_never_do(measured: Measured, tmp_path: Path) -> None:
    out, _ = measured([sys.executable, "-c", ACTS, str(HERE), str(tmp_path)])
    assert out.splitlines() == ["died"] * 6 + ["lived"] * 2


ACTS = """
import os, pickle, subprocess, sys
sys.path.insert(0, sys.argv[1])
from canary import Canary, CanaryDied
canary = Canary(writable=[sys.argv[2]])
canary.arm()
outside = sys.argv[2] + "/../outside"
acts = [
    lambda: os.system("true"),
    lambda: subprocess.run(["true"]),
    lambda: pickle.loads(pickle.dumps(os.getcwd)),
    lambda: open(outside, "w"),
    lambda: os.mkdir(outside),
    lambda: open("/etc/passwd"),
    lambda: open(sys.argv[2] + "/inside", "w").close(),
    lambda: os.remove(sys.argv[2] + "/inside"),
]
for act in acts:
    try:
        act()
    except CanaryDied:
        print("died")
    else:
        print("lived")
"""
