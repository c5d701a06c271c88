"""`apply` from the command line: exit codes, stdout, stderr, files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from named_commands import command_named

Call = Callable[..., Any]


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A file with a filter and a stack of two frames."""
    path = tmp_path / "pipeline.toml"
    text = 'kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 2\n'
    path.write_text(text, encoding="utf-8")
    return path


def test_apply_writes_batches_and_tells_of_them(recording: Path, pipeline: Path, tmp_path: Path, call_json: Call) -> None:
    import pyarrow.parquet as pq

    out = tmp_path / "batches"
    code, told = call_json("apply", recording, "--pipeline", pipeline, "--out", out, "--steps-per-batch", "20")
    assert code == 0
    assert told.keys() >= {*command_named("apply").about.keys, "seconds", "episodes", "steps"}
    assert (told["out"], told["batches"], told["rows"], told["episodes"], told["steps"]) == (str(out), 3, 52, 8, 52)
    assert told["columns"] == ["obs", "actions", "rewards", "terminateds", "truncateds"]
    assert told["state"] == "connectors.msgpack"
    table = pq.read_table(out / "data")
    assert (table.num_rows, table.column_names) == (52, told["columns"])
    assert json.loads((out / "batches.json").read_text(encoding="utf-8"))["counts"]["batches"] == 3


def test_the_commit_records_the_command_without_its_secrets(
    recording: Path, pipeline: Path, tmp_path: Path, call: Call
) -> None:
    out = tmp_path / "batches"
    done = call("apply", recording, "--pipeline", pipeline, "--out", out, "--storage-option", "auto_mkdir=true")
    assert done.exit_code == 0
    commands = json.loads((out / "batches.json").read_text(encoding="utf-8"))["provenance"]["commands"]
    assert commands[-1].startswith("offline-cli apply ")
    assert "auto_mkdir=***" in commands[-1]


# ---- looking ----


# ---- failures ----
