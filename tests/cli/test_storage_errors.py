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


@contextmanager
def answered_by(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Within it, the URL of a folder in a storage that answers every request so."""
    if answer.scheme == "az":
        pytest.importorskip("adlfs")
    with answer.given() as port:
        server = {"s3": s3_at, "gs": gcs_at, "az": azure_at}[answer.scheme](port)
        with found_by_environment(server, monkeypatch):
            yield f"{answer.scheme}://bucket/D"


@pytest.mark.integration
@pytest.mark.parametrize("answer", [*ANSWERS, *(one for one in MISSING if one.scheme == "s3")], ids=str)
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


def test_no_credentials_are_told_at_once(call: Call, tmp_path: Path) -> None:
    done = call("convert", "s3://bucket/D", "--out", tmp_path / "out")
    assert done.exit_code == 5, done.output
    error = TIDY.fullmatch(done.stderr)
    assert error is not None, done.stderr
    assert "no credentials were found" in error["what"]
    assert "AWS_ACCESS_KEY_ID" in error["fix"]
    assert error["where"].startswith("s3://bucket/D")
    assert not (tmp_path / "out").exists()


SECRET = "hush-hush-hush"


@pytest.mark.parametrize("flags", [("--json",), ("--debug",)], ids=str)
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
