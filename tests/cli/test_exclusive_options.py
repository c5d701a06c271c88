"""Options that exclude each other, in every command that has both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WORDS = {
    "record": ("record", "CartPole-v1", "--policy", "random", "--episodes", "1"),
    "convert": ("convert", "SOURCE"),
}


@pytest.mark.parametrize("command", WORDS)
def test_resume_and_overwrite_exclude_each_other_and_nothing_is_touched(
    command: str, call_json: Callable[..., tuple[int, dict[str, Any]]], recording: Path, tmp_path: Path
) -> None:
    assert call_json(*WORDS["record"], "--out", str(tmp_path / "out"))[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    words = [str(recording) if word == "SOURCE" else word for word in WORDS[command]]
    code, found = call_json(*words, "--out", str(tmp_path / "out"), "--resume", "--overwrite")
    assert code == 2
    assert "mutually exclusive" in found["error"]["what"]
    assert before == {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--updates", "5", "--epochs", "3"), "--updates and --epochs: give one of the two"),
        (("--until-return", "450"), "--until-return: needs --env"),
        (("--patience", "3"), "--patience: needs --val-fraction"),
    ],
)
def test_training_options_that_cannot_be_meant_together_are_usage_and_no_data_is_looked_at(
    options: tuple[str, ...], what: str, call_json: Callable[..., tuple[int, dict[str, Any]]], tmp_path: Path
) -> None:
    code, found = call_json("train-bc", str(tmp_path / "nothing"), "--out", str(tmp_path / "run"), *options)
    assert (code, what in found["error"]["what"]) == (2, True), found


def test_a_policy_that_nobody_knows_is_named_beside_those_that_there_are(
    call_json: Callable[..., tuple[int, dict[str, Any]]], tmp_path: Path
) -> None:
    code, found = call_json("record", "CartPole-v1", "--policy", "rnadom", "--episodes", "1", "--out", str(tmp_path / "out"))
    assert code == 5
    assert found["error"]["where"] == "--policy"
    assert "random, a run folder" in found["error"]["fix"]
