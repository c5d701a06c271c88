"""Every command, from arguments to exit code, stdout, stderr and the files made."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.cli.app import command_named

Call = Callable[..., Any]


def test_inspect_tells_what_a_recording_holds(recording: Path, call_json: Call) -> None:
    code, told = call_json("inspect", recording)
    assert code == 0
    assert told.keys() >= set(command_named("inspect").keys)
    assert (told["episodes"], told["steps"]) == (8, 52)


def test_inspect_shows_a_table_to_people(recording: Path, call: Call) -> None:
    done = call("inspect", recording)
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert (rows["episodes"], rows["steps"]) == ("8", "52")
    assert "Box(4, float32)" in done.stdout


def test_an_expectation_that_holds_changes_nothing(recording: Path, call_json: Call) -> None:
    assert call_json("inspect", recording, "--expect", "episodes=8", "--expect", "steps=52")[0] == 0


def test_convert_makes_a_dataset_that_inspect_knows(recording: Path, tmp_path: Path, call_json: Call) -> None:
    code, told = call_json("convert", recording, "--out", tmp_path / "D")
    assert code == 0
    assert told.keys() >= set(command_named("convert").keys)
    assert (told["episodes"], told["steps"]) == (8, 52)
    assert (tmp_path / "D" / "manifest.json").is_file()
    assert call_json("inspect", tmp_path / "D", "--expect", "episodes=8")[1]["format"] == "episodes"


def test_convert_to_columns_makes_a_row_per_step(recording: Path, tmp_path: Path, call_json: Call) -> None:
    import pyarrow.parquet as pq

    assert call_json("convert", recording, "--out", tmp_path / "D", "--to", "columns")[0] == 0
    assert pq.read_table(tmp_path / "D" / "data").num_rows == 52


def test_a_dry_run_counts_and_writes_nothing(recording: Path, tmp_path: Path, call_json: Call) -> None:
    code, told = call_json("convert", recording, "--out", tmp_path / "D", "--dry-run")
    assert (code, told["episodes"], (tmp_path / "D").exists()) == (0, 8, False)


def test_the_manifest_records_the_command_without_its_secrets(recording: Path, tmp_path: Path, call: Call) -> None:
    assert call("convert", recording, "--out", tmp_path / "D", "--storage-option", "auto_mkdir=true").exit_code == 0
    manifest = (tmp_path / "D" / "manifest.json").read_text(encoding="utf-8")
    assert "offline-cli" in manifest
    assert "auto_mkdir=***" in manifest
    assert "auto_mkdir=true" not in manifest


def test_train_bc_makes_a_run_that_evaluate_plays(recording: Path, tmp_path: Path, call_json: Call) -> None:
    run = tmp_path / "run"
    code, told = call_json("train-bc", recording, "--out", run, "--updates", "3", "--device", "cpu")
    assert code == 0
    assert told.keys() >= set(command_named("train-bc").keys)
    assert (told["updates"], (run / "policy.safetensors").is_file()) == (3, True)
    code, told = call_json("evaluate", run, "--env", "CartPole-v1", "--episodes", "3", "--device", "cpu")
    assert code == 0
    assert told.keys() >= set(command_named("evaluate").keys)
    assert told["episodes"] == 3


def test_options_that_are_not_given_leave_the_config_file_its_say(recording: Path, tmp_path: Path, call: Call) -> None:
    config = tmp_path / "config.toml"
    config.write_text('seed = 7\neval_episodes = 3\ndevice = "cpu"\nprecision = "fp32"\nlr = 0.5\n', encoding="utf-8")
    done = call("train-bc", recording, "--out", tmp_path / "run", "--config", config, "--updates", "1", "--lr", "0.25")
    assert done.exit_code == 0, done.stderr
    resolved = tomllib.loads((tmp_path / "run" / "config.toml").read_text(encoding="utf-8"))
    asked = {name: resolved[name] for name in ("seed", "eval_episodes", "device", "precision", "lr")}
    assert asked == {"seed": 7, "eval_episodes": 3, "device": "cpu", "precision": "fp32", "lr": 0.25}


def test_a_dry_run_of_training_checks_everything_and_writes_nothing(recording: Path, tmp_path: Path, call_json: Call) -> None:
    args = ("train-bc", recording, "--out", tmp_path / "run", "--dry-run", "--device", "cpu")
    code, told = call_json(*args, "--env", "CartPole-v1", "--until-return", "450")
    assert (code, told["stopped_by"], told["episodes"], told["updates"]) == (0, "dry-run", 8, 0)
    assert told.keys() >= set(command_named("train-bc").keys)
    assert call_json(*args, "--env", "Pendulum-v1")[0] == 4
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_given_more_updates_with_resume(recording: Path, tmp_path: Path, call_json: Call) -> None:
    args = ("train-bc", recording, "--out", tmp_path / "run", "--device", "cpu")
    assert call_json(*args, "--updates", "2")[1]["updates"] == 2
    assert call_json(*args, "--updates", "5", "--resume")[1]["updates"] == 5
    assert call_json(*args, "--updates", "5", "--resume", "--overwrite")[0] == 2


@pytest.mark.integration
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_training_that_is_stopped_says_what_was_saved_and_how_to_resume(
    number: int, exit_code: int, recording: Path, tmp_path: Path, child_env: dict[str, str]
) -> None:
    run = tmp_path / "run"
    args = ["train-bc", str(recording), "--out", str(run), "--device", "cpu", "--seed", "1"]
    command = [sys.executable, "-m", "offline_cli", *args, "--updates", "1000000", "--json", "--quiet"]
    process = subprocess.Popen(
        command,
        env=child_env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    until = time.monotonic() + 60
    while not (run / "metrics.jsonl").is_file() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    told = json.loads(stdout)
    assert (process.returncode, told["exit_code"], told["error"]["code"]) == (exit_code, exit_code, "interrupted")
    assert "--resume" in told["error"]["fix"]
    assert "Traceback" not in stderr
    assert told["error"]["updates"] > 0


def test_a_gate_that_is_not_met_is_exit_7_with_the_figures(recording: Path, tmp_path: Path, call: Call) -> None:
    run = tmp_path / "run"
    assert call("train-bc", recording, "--out", run, "--updates", "1", "--device", "cpu").exit_code == 0
    done = call("evaluate", run, "--env", "CartPole-v1", "--episodes", "2", "--min-return", "501", "--json")
    assert done.exit_code == 7
    assert json.loads(done.stdout)["error"]["code"] == "target-not-met"


def test_progress_goes_to_stderr_and_not_at_all_with_quiet(recording: Path, call: Call) -> None:
    assert "kB, rows 8" in call("inspect", recording).stderr
    assert call("inspect", recording, "--quiet").stderr == ""


def test_json_does_not_load_rich(recording: Path, shell: Call) -> None:
    script = (
        "import sys\nfrom offline_cli.cli.app import app\n"
        f"app(['inspect', {str(recording)!r}, '--json', '--quiet'], standalone_mode=False)\n"
        "print('rich' in sys.modules)"
    )
    assert shell("-c", script).stdout.splitlines()[-1] == "False"


NEEDLESS = ("torch", "polars", "jsonschema", "pydantic", "pandas", "matplotlib")


def test_commands_that_neither_play_nor_learn_import_no_torch(recording: Path, shell: Call) -> None:
    lines = [
        ["convert", str(recording), "--out", "D", "--workers", "2", "--on-error", "quarantine"],
        ["convert", "D", "--out", "E", "--to", "columns"],
        *(["inspect", "D"], ["inspect", str(recording)], ["validate", "D", "E", "--deep"], ["validate", str(recording)]),
        ["repair", "D", "--dry-run"],
    ]
    script = (
        "import json, sys\nfrom offline_cli.cli.app import app\n"
        f"codes = [app([*line, '--json', '--quiet'], standalone_mode=False) for line in {lines}]\n"
        f"print(json.dumps([codes, [name for name in {NEEDLESS} if name in sys.modules]]))"
    )
    done = shell("-c", script)
    assert json.loads(done.stdout.splitlines()[-1]) == [[0] * len(lines), []], done.stderr


@pytest.mark.integration
def test_a_reader_that_takes_one_byte_of_a_result_gets_it_in_silence(recording: Path, child_env: dict[str, str]) -> None:
    command = f"{sys.executable} -m offline_cli inspect {recording} --json --quiet | head -c1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], env=child_env, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{", b"")
