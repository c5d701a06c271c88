"""Places on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.cli.failures import report
from offline_cli.cli.invocation import Invocation
from offline_cli.errors import BadConfig

CallJson = Callable[..., tuple[int, dict[str, Any]]]


@pytest.mark.parametrize("flags", [(), ("--json",), ("--debug",)], ids=str)
def test_a_password_in_a_url_is_shown_nowhere(flags: tuple[str, ...], call: Callable[..., Any]) -> None:
    done = call("inspect", "s3://AKIDX:hunter2@nu5/x", *flags)
    assert done.exit_code == 2
    assert "hunter2" not in done.stdout + done.stderr
    assert "AWS_ACCESS_KEY_ID" in done.stderr


def test_a_url_with_one_slash_makes_no_folder_here(
    call_json: CallJson, tmp_path: Path, recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, told = call_json("convert", recording.absolute(), "--out", "s3:/bucket/x")
    assert (code, told["error"]["code"]) == (2, "usage-error")
    assert not (tmp_path / "s3:").exists()


def test_an_out_that_exists_is_refused_before_the_policy_is_looked_for(call_json: CallJson, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    code, told = call_json("record", "CartPole-v1", "--policy", tmp_path / "no-run", "--episodes", 1, "--out", tmp_path)
    assert (code, told["error"]["code"]) == (2, "output-exists")


def test_details_of_an_error_repeat_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    error = BadConfig.of(["the key is HUSH", "another"], where="--config", fix="correct it")
    report(error, Invocation(("inspect", "--json", "--storage-option", "secret=HUSH")))
    shown = capsys.readouterr()
    assert "HUSH" not in shown.out + shown.err
