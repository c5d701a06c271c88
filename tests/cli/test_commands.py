"""Every command, from arguments to exit code, stdout, stderr and the files made."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from named_commands import command_named

Call = Callable[..., Any]


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
    assert told.keys() >= set(command_named("train-bc").about.keys)
    assert (told["updates"], (run / "policy.safetensors").is_file()) == (3, True)
    code, told = call_json("evaluate", run, "--env", "CartPole-v1", "--episodes", "3", "--device", "cpu")
    assert code == 0
    assert told.keys() >= set(command_named("evaluate").about.keys)
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
    assert told.keys() >= set(command_named("train-bc").about.keys)
    assert call_json(*args, "--env", "Pendulum-v1")[0] == 4
    assert not (tmp_path / "run").exists()


def test_progress_goes_to_stderr_and_not_at_all_with_quiet(recording: Path, call: Call) -> None:
    assert "kB, rows 8" in call("inspect", recording).stderr
    assert call("inspect", recording, "--quiet").stderr == ""


NEEDLESS = ("torch", "polars", "jsonschema", "matplotlib")


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
