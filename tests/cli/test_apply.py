"""`apply` from the command line: exit codes, stdout, stderr, files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from offline_cli.cli.app import command_named

Call = Callable[..., Any]
TABLE = "ride,t,x,turn,end\n" + "".join(
    f"{ride},{t},{0.1 * t:.1f},{t % 2},{int(t == 4)}\n" for ride in range(3) for t in range(5)
)
MAPPING = '[columns]\neps_id = "ride"\nt = "t"\nobs = ["x"]\nactions = "turn"\ntruncateds = "end"\n'


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
    assert told.keys() >= {*command_named("apply").keys, "seconds", "episodes", "steps"}
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


def test_the_result_is_a_table_for_people(recording: Path, pipeline: Path, tmp_path: Path, call: Call) -> None:
    done = call("apply", recording, "--pipeline", pipeline, "--out", tmp_path / "batches")
    assert done.exit_code == 0
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert (rows["rows"], rows["columns"]) == ("52", "obs, actions, rewards, terminateds, truncateds")
    assert "reading: " in done.stderr


def test_quiet_says_nothing_on_stderr(recording: Path, pipeline: Path, tmp_path: Path, call: Call) -> None:
    done = call("apply", recording, "--pipeline", pipeline, "--out", tmp_path / "batches", "--quiet")
    assert (done.exit_code, done.stderr) == (0, "")


def test_the_commit_records_the_command_without_its_secrets(
    recording: Path, pipeline: Path, tmp_path: Path, call: Call
) -> None:
    out = tmp_path / "batches"
    done = call("apply", recording, "--pipeline", pipeline, "--out", out, "--storage-option", "auto_mkdir=true")
    assert done.exit_code == 0
    commands = json.loads((out / "batches.json").read_text(encoding="utf-8"))["provenance"]["commands"]
    assert commands[-1].startswith("offline-cli apply ")
    assert "auto_mkdir=***" in commands[-1]


def test_several_sources_and_globs_are_read_in_order(
    recording: Path, pipeline: Path, tmp_path: Path, call: Call, call_json: Call
) -> None:
    assert call("convert", recording, "--out", tmp_path / "D", "--limit", "3").exit_code == 0
    code, told = call_json("apply", tmp_path / "D*", "--pipeline", pipeline, "--out", tmp_path / "batches")
    assert (code, told["episodes"]) == (0, 3)


def test_a_table_is_read_by_its_mapping(pipeline: Path, tmp_path: Path, call_json: Call) -> None:
    (tmp_path / "steps.csv").write_text(TABLE, encoding="utf-8")
    (tmp_path / "m.toml").write_text(MAPPING, encoding="utf-8")
    options = ("--pipeline", pipeline, "--out", tmp_path / "batches", "--mapping", tmp_path / "m.toml")
    code, told = call_json("apply", tmp_path / "steps.csv", *options)
    assert (code, told["episodes"], told["rows"], told["spaces_inferred"]) == (0, 3, 15, True)


@pytest.mark.integration
def test_what_is_piped_in_is_a_source(pipeline: Path, tmp_path: Path, child_env: dict[str, str]) -> None:
    (tmp_path / "m.toml").write_text(MAPPING, encoding="utf-8")
    words = ["apply", "-", "--pipeline", str(pipeline), "--out", "batches", "--mapping", "m.toml", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "offline_cli", *words],
        cwd=tmp_path,
        env=child_env,
        input=TABLE,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 15


def test_a_dry_run_writes_nothing(recording: Path, pipeline: Path, tmp_path: Path, call_json: Call) -> None:
    code, told = call_json("apply", recording, "--pipeline", pipeline, "--out", tmp_path / "batches", "--dry-run")
    assert (code, told["dry_run"], told["rows"], (tmp_path / "batches").exists()) == (0, True, 52, False)


# ---- looking ----


def test_show_prints_a_table_of_pieces_without_any_data(recording: Path, pipeline: Path, tmp_path: Path, call: Call) -> None:
    assert call("convert", recording, "--out", tmp_path / "D").exit_code == 0
    shutil.rmtree(tmp_path / "D" / "data")
    done = call("apply", tmp_path / "D", "--pipeline", pipeline, "--show")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[1].split("  ")[0] == "piece"
    (stack,) = [line for line in lines if line.startswith("FrameStacking")]
    assert stack.split(maxsplit=1)[1].split("  ")[:1] == ["Box(4, float32)"]
    assert "Box(8, float32)" in stack
    assert "adds obs: array of float32 (8)" in stack
    assert "train batch" in done.stdout


def test_show_as_json_has_pieces(pipeline: Path, call_json: Call) -> None:
    code, told = call_json("apply", "--env", "CartPole-v1", "--pipeline", pipeline, "--show")
    assert code == 0
    assert [piece["name"] for piece in told["pieces"]][:2] == ["MeanStdFilter", "FrameStacking"]
    assert told["pieces"][1]["observation_space"]["shape"] == [8]
    assert [column["name"] for column in told["pieces"][-1]["columns"]][:2] == ["obs", "actions"]


def test_trace_prints_what_the_batch_holds_after_each_piece(recording: Path, pipeline: Path, call: Call) -> None:
    done = call("apply", recording, "--pipeline", pipeline, "--trace", "2")
    assert done.exit_code == 0
    head, titles, *lines = done.stdout.splitlines()
    assert "over 14 steps of 2 episodes: episode-0, episode-1" in head
    assert titles.split("  ")[0] == "after piece"
    assert any(line.startswith("FrameStacking") and "array of float32" in line and "(8)" in line for line in lines)
    assert any(line.startswith("AddStatesFromEpisodesToBatch") and "as before" in line for line in lines)


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


def test_a_pipeline_has_to_be_named(recording: Path, call: Call) -> None:
    done = call("apply", recording, "--out", "x")
    assert done.exit_code == 2
    assert "--pipeline" in done.stderr


def test_a_missing_pipeline_file_is_exit_5(recording: Path, call_json: Call) -> None:
    code, told = call_json("apply", recording, "--pipeline", "missing.toml", "--show")
    assert (code, told["error"]["code"]) == (5, "storage-not-found")


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


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing_and_says_so(
    number: signal.Signals, code: int, recording: Path, tmp_path: Path, child_env: dict[str, str]
) -> None:
    (tmp_path / "slow_pieces.py").write_text(
        "import pathlib, time\nfrom offline_cli import ConnectorV2\n"
        "class Slow(ConnectorV2):\n"
        "    calls = 0\n"
        "    def __call__(self, *, batch, **kwargs):\n"
        "        type(self).calls += 1\n"
        "        if type(self).calls == 4:\n"
        "            pathlib.Path('slow').touch()\n"
        "            time.sleep(60)\n"
        "        return batch\n",
        encoding="utf-8",
    )
    (tmp_path / "slow.toml").write_text('kind = "learner"\n[[pieces]]\nuse = "slow_pieces:Slow"\n', encoding="utf-8")
    words = ["apply", str(recording), "--pipeline", "slow.toml", "--out", "batches", "--steps-per-batch", "10", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "offline_cli", *words],
        cwd=tmp_path,
        env=child_env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's background jobs ignore it
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "slow").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    assert (tmp_path / "batches" / "data" / "batch-000001.parquet").exists()
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert json.loads(out)["exit_code"] == code
    assert "no train batch was kept" in err
    assert not (tmp_path / "batches").exists()
