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


def test_a_trace_that_breaks_off_shows_how_far_it_came(
    recording: Path, tmp_path: Path, call: Call, call_json: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "from offline_cli import ConnectorV2\nclass Fails(ConnectorV2):\n"
    code = head + "    def __call__(self, **kwargs):\n        raise ValueError('dark')\n"
    (tmp_path / "pieces_that_fail.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(
        'kind = "learner"\n[[pieces]]\nname = "frame_stacking"\n[[pieces]]\nuse = "pieces_that_fail:Fails"\n', encoding="utf-8"
    )
    done = call("apply", recording, "--pipeline", wrong, "--trace", "1")
    assert done.exit_code == 4
    assert "FrameStacking" in done.stdout
    assert "dark" in done.stderr
    code, told = call_json("apply", recording, "--pipeline", wrong, "--trace", "1")
    assert (code, told["error"]["code"], len(told["pieces"])) == (4, "bad-piece", 1)


# ---- failures ----


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        ((), 2, "--out"),
        (("--show", "--out", "x"), 2, "--out"),
        (("--trace", "1", "--out", "x"), 2, "--out"),
        (("--out", "x", "--steps-per-batch", "0"), 2, "--steps-per-batch"),
        (("--out", "x", "--format", "csv"), 2, "'columns', 'safetensors'"),
        (("--out", "x", "--env", "Pendulum-v1"), 4, "Box(3, float32)"),
    ],
)
def test_what_cannot_be_done_has_its_exit_code(
    options: tuple[str, ...],
    code: int,
    told: str,
    recording: Path,
    pipeline: Path,
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("apply", recording, "--pipeline", pipeline, *options)
    assert done.exit_code == code
    assert told in done.stderr
    assert not (tmp_path / "x").exists()
