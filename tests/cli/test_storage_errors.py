"""What goes wrong with a storage, on the command line: exit code 5, one tidy error with URL and remedy, no secret in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cloud_servers import KEYS, azure_at, found_by_environment, gcs_at, s3_at
from provider_answers import ANSWERS, MISSING, Answer

Call = Callable[..., Any]
CallJson = Callable[..., tuple[int, dict[str, Any]]]
TIDY = re.compile(r"error: (?P<what>[^\n]+)\n  at:  (?P<where>[^\n]+)\n  try: (?P<fix>[^\n]+)\n")
NOBODY = 9  # a port of loopback that nobody listens at
RECORD = ("record", "CartPole-v1", "--policy", "random", "--episodes", "2", "--num-env-runners", "0")
SAYS_MISSING = [answer for answer in MISSING if answer.scheme == "s3"]  # of others a look says only that nothing is there


@contextmanager
def answered_by(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Within it, the URL of a folder in a storage that answers every request so."""
    if answer.scheme == "az":
        pytest.importorskip("adlfs")
    with answer.given() as port:
        server = {"s3": s3_at, "gs": gcs_at, "az": azure_at}[answer.scheme](port)
        with found_by_environment(server, monkeypatch):
            yield f"{answer.scheme}://bucket/D"


@pytest.mark.parametrize("answer", [*ANSWERS, *SAYS_MISSING], ids=str)
def test_a_providers_answer_is_one_tidy_error(
    answer: Answer, call: Call, call_json: CallJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answered_by(answer, monkeypatch) as url:
        done, (code, told) = call("inspect", url), call_json("inspect", url)
    assert (done.exit_code, code, told["exit_code"]) == (5, 5, 5), done.output
    assert done.stdout == ""
    error = TIDY.fullmatch(done.stderr)
    assert error is not None, done.stderr
    assert answer.what in error["what"]
    assert answer.fix in error["fix"]
    assert error["where"] == url
    assert told["error"] == {"code": "storage-not-found" if answer in MISSING else "storage-error", **error.groupdict()}


@pytest.mark.parametrize("answer", [*ANSWERS, *SAYS_MISSING], ids=str)
def test_a_provider_that_refuses_is_told_of_before_anything_is_recorded(
    answer: Answer, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answered_by(answer, monkeypatch) as url:
        done = call(*RECORD, "--out", url)
    assert done.exit_code == 5, done.output
    error = TIDY.fullmatch(done.stderr)
    assert error is not None, done.stderr
    assert answer.what in error["what"]
    assert error["where"].startswith(url)


@pytest.mark.parametrize("command", ["convert", "apply", "train-bc", "evaluate", "inspect", "validate", "repair"])
def test_no_credentials_are_told_at_once_by_every_command(command: str, call: Call, tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text('kind = "learner"\n', encoding="utf-8")
    more: dict[str, tuple[Any, ...]] = {
        "convert": ("--out", tmp_path / "out"),
        "apply": ("--out", tmp_path / "out", "--pipeline", tmp_path / "pipeline.toml"),
        "train-bc": ("--out", tmp_path / "out"),
        "evaluate": ("--env", "CartPole-v1"),
    }
    done = call(command, "s3://bucket/D", *more.get(command, ()))
    assert done.exit_code == 5, done.output
    error = TIDY.fullmatch(done.stderr)
    assert error is not None, done.stderr
    assert "no credentials were found" in error["what"]
    assert "AWS_ACCESS_KEY_ID" in error["fix"]
    assert error["where"].startswith("s3://bucket/D")
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_storage_that_is_not_there_ends_the_command_within_the_time_limit(
    scheme: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    if scheme == "az":
        pytest.importorskip("adlfs")
    server = {"s3": s3_at, "gs": gcs_at, "az": azure_at}[scheme](NOBODY)
    with found_by_environment(server, monkeypatch):
        done = call("inspect", f"{scheme}://bucket/D", "--storage-option", "time_limit=2")
    assert done.exit_code == 5, done.output
    error = TIDY.fullmatch(done.stderr)
    assert error is not None, done.stderr
    assert re.search(r"cannot be reached|timed out after 2 s", error["what"])


@pytest.mark.integration
def test_a_process_shows_no_traceback_and_no_log_of_a_client(
    shell: Call, monkeypatch: pytest.MonkeyPatch, child_env: dict[str, str]
) -> None:
    answer = next(one for one in ANSWERS if one.code == "ExpiredToken")
    with answer.given() as port:
        for name, value in s3_at(port).environment.items():
            monkeypatch.setitem(child_env, name, value)
        done = shell("-m", "offline_cli", "inspect", "s3://bucket/D")
    assert done.returncode == 5
    assert TIDY.fullmatch(done.stderr), done.stderr


SECRET = "hush-hush-hush"


@pytest.mark.parametrize("flags", [(), ("--json",), ("--debug",)], ids=str)
def test_a_secret_that_a_provider_repeats_is_not_shown(
    flags: tuple[str, ...], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Answer("s3", 403, "AccessDenied", f"Access denied for {SECRET} at https://me:{SECRET}@host", "", "")
    with answered_by(answer, monkeypatch) as url:
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        keys = ("--storage-option", f"key={KEYS['AWS_ACCESS_KEY_ID']}", "--storage-option", f"secret={SECRET}")
        done = call("inspect", url, *keys, *flags)
    assert done.exit_code == 5, done.output
    assert "Access denied for ***" in done.output
    assert SECRET not in done.output


@pytest.mark.parametrize("pair", [SECRET, f"={SECRET}"])
def test_a_storage_option_that_is_none_is_not_repeated(pair: str, call: Call) -> None:
    done = call("inspect", "s3://bucket/D", "--storage-option", pair)
    assert done.exit_code == 2, done.output
    assert "is not KEY=VALUE" in done.stderr
    assert SECRET not in done.output
