"""`apply` from the command line: exit codes, stdout, stderr, files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from named_commands import command_named
from safetensors.torch import load_file

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


def test_safetensors_hold_a_tensor_per_column(recording: Path, pipeline: Path, tmp_path: Path, call_json: Call) -> None:
    out = tmp_path / "batches"
    code, told = call_json("apply", recording, "--pipeline", pipeline, "--out", out, "--format", "safetensors")
    assert (code, told["format"], told["batches"]) == (0, "safetensors", 1)
    tensors = load_file(out / "data" / "batch-000000.safetensors")
    assert set(tensors) == set(told["columns"])
    assert tuple(tensors["obs"].shape) == (52, 8)


def test_the_commit_records_the_command_without_its_secrets(
    recording: Path, pipeline: Path, tmp_path: Path, call: Call
) -> None:
    out = tmp_path / "batches"
    done = call("apply", recording, "--pipeline", pipeline, "--out", out, "--storage-option", "auto_mkdir=true")
    assert done.exit_code == 0
    commands = json.loads((out / "batches.json").read_text(encoding="utf-8"))["provenance"]["commands"]
    assert commands[-1].startswith("offline-cli apply ")
    assert "auto_mkdir=***" in commands[-1]


def test_a_dry_run_writes_nothing(recording: Path, pipeline: Path, tmp_path: Path, call_json: Call) -> None:
    code, told = call_json("apply", recording, "--pipeline", pipeline, "--out", tmp_path / "batches", "--dry-run")
    assert (code, told["dry_run"], told["rows"], (tmp_path / "batches").exists()) == (0, True, 52, False)


# ---- looking ----


def test_show_as_json_has_pieces(pipeline: Path, call_json: Call) -> None:
    code, told = call_json("apply", "--env", "CartPole-v1", "--pipeline", pipeline, "--show")
    assert code == 0
    assert [piece["name"] for piece in told["pieces"]][:2] == ["MeanStdFilter", "FrameStacking"]
    assert told["pieces"][1]["observation_space"]["shape"] == [8]
    assert [column["name"] for column in told["pieces"][-1]["columns"]][:2] == ["obs", "actions"]


def test_trace_as_json_has_every_column_after_every_piece(recording: Path, pipeline: Path, call_json: Call) -> None:
    code, told = call_json("apply", recording, "--pipeline", pipeline, "--trace", "1")
    assert (code, told["episodes"], told["steps"]) == (0, ["episode-0"], 5)
    assert [len(piece["columns"]) for piece in told["pieces"]] == [0, 1, 1, 5, 5, 5, 5, 5]
    assert told["pieces"][-1]["columns"][1].keys() == {"name", "held", "dtype", "shape", "rows", "first"}


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
        ((), 2, "nowhere to write to"),
        (("--show", "--out", "x"), 2, "--show writes nothing"),
        (("--trace", "1", "--out", "x"), 2, "--trace writes nothing"),
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


def test_spaces_that_do_not_fit_are_exit_4_with_piece_and_remedy(recording: Path, tmp_path: Path, call_json: Call) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('kind = "learner"\n[[pieces]]\nname = "atari_ram"\n', encoding="utf-8")
    code, told = call_json("apply", recording, "--pipeline", wrong, "--out", tmp_path / "x")
    assert (code, told["error"]["code"]) == (4, "space-mismatch")
    assert "AtariRam" in told["error"]["what"]
    assert not (tmp_path / "x").exists()


def test_an_existing_output_is_exit_2_unless_overwritten(
    recording: Path, pipeline: Path, tmp_path: Path, call: Call, call_json: Call
) -> None:
    words = ("apply", recording, "--pipeline", pipeline, "--out", tmp_path / "batches")
    assert call(*words).exit_code == 0
    code, told = call_json(*words)
    assert (code, told["error"]["code"]) == (2, "output-exists")
    assert call(*words, "--overwrite").exit_code == 0
