"""Arguments of environments are stored, secret ones blanked out; going on with a recording still tells them apart."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from offline_cli.errors import BadConfig, BadData
from offline_cli.recording.record import record

ENV = "recording_envs:Guarded-v0"
SECRET, PLAIN = "hunter2-hunter2", "a-plain-value"
KWARGS = {"api_key": SECRET, "label": PLAIN}
OPTIONS: dict[str, Any] = {"policy": "random", "vectorize": "sync", "device": "cpu", "num_envs": 2}


def stored(folder: Path) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.json"))


def command(out: Path, *more: str) -> Any:
    from offline_cli.cli.app import app

    words = ["record", ENV, "--out", str(out), "--policy", "random", "--vectorize", "sync", "--device", "cpu", "--json"]
    return CliRunner().invoke(app, [*words, *more])


def test_the_stored_command_has_all_but_secret_ones(tmp_path: Path) -> None:
    done = command(tmp_path / "D", "--episodes", "3", "--env-kwargs", json.dumps(KWARGS))
    assert done.exit_code == 0, done.output
    text = stored(tmp_path / "D")
    assert SECRET not in text + done.output
    manifest, known = json.loads(text), {"api_key": "***", "label": PLAIN}
    words = shlex.split(manifest["provenance"]["commands"][0])
    assert manifest["environment"]["kwargs"] == json.loads(words[words.index("--env-kwargs") + 1]) == known


def test_an_unfinished_recording_stores_them_once_and_goes_on_with_the_same_only(tmp_path: Path) -> None:
    options = {**OPTIONS, "episodes": 40, "env_kwargs": {**KWARGS, "fail_after": 200}}
    with pytest.raises(BadData, match="enough"):
        record(ENV, tmp_path / "D", **options)
    text = stored(tmp_path / "D")
    assert (SECRET in text, text.count(PLAIN)) == (False, 1)
    with pytest.raises(BadConfig, match="--env-kwargs") as caught:
        record(ENV, tmp_path / "D", **{**options, "env_kwargs": {**options["env_kwargs"], "api_key": "another"}}, resume=True)
    assert "another" not in str(caught.value)
    record(ENV, tmp_path / "D", **{**options, "episodes": 12}, resume=True)


def test_what_was_blanked_out_is_not_passed_on(tmp_path: Path) -> None:
    done = command(tmp_path / "D", "--episodes", "3", "--env-kwargs", '{"api_key": "***", "label": "x"}')
    assert done.exit_code == 4
    error = json.loads(done.stdout)["error"]
    assert "api_key" in error["what"]
    assert "--env-kwargs" in error["fix"]
    assert not (tmp_path / "D").exists()


def test_an_error_of_the_environment_does_not_repeat_a_secret(tmp_path: Path) -> None:
    done = command(tmp_path / "D", "--episodes", "3", "--env-kwargs", json.dumps({"api_key": SECRET, "unknown": 1}))
    assert done.exit_code == 4
    assert SECRET not in done.output + done.stderr
