"""What a place is called that is not what was meant: a run of train-bc in place of recordings, a link without its target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


@pytest.fixture
def run_folder(call: Call, recording: Path, tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "first"
    done = call("train-bc", recording, "--out", run, "--updates", "2", "--quiet")
    assert done.exit_code == 0, done.stderr
    return run


def test_a_run_of_train_bc_is_called_that_by_every_command_that_reads_recordings(
    call_json: Call, run_folder: Path, tmp_path: Path
) -> None:
    pipeline = tmp_path / "p.toml"
    pipeline.write_text('kind = "learner"\ndefaults = true\n', encoding="utf-8")
    commands: list[tuple[Any, ...]] = [
        ("inspect", run_folder),
        ("train-bc", run_folder, "--out", tmp_path / "R", "--updates", "2"),
        ("convert", run_folder, "--out", tmp_path / "D"),
        ("apply", run_folder, "--pipeline", pipeline, "--out", tmp_path / "B"),
    ]
    for command in commands:
        code, told = call_json(*command)
        error = told["error"]
        assert (code, error["code"], error["what"]) == (3, "no-data", "this is a run of train-bc, not recordings"), command
        assert error["where"] == str(run_folder)
        assert "record ENV --policy" in error["fix"]
    code, told = call_json("validate", run_folder)
    assert (code, [problem["code"] for problem in told["problems"]]) == (3, ["unreadable-source"])
    assert "this is a run of train-bc" in told["problems"][0]["what"]
