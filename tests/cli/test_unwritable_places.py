"""Places that cannot be written to, found before anything that takes long: exit code 5, in every command that writes there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.errors import StorageError
from offline_cli.storage.locations import open_location

CallJson = Callable[..., tuple[int, dict[str, Any]]]

WRITING = {
    "record": ("record", "NoSuchEnvironment-v0", "--policy", "random", "--episodes", "1"),
    "convert": ("convert", "PIPELINE"),  # which is no data
    "apply": ("apply", "no-such-source", "--pipeline", "PIPELINE"),
    "train-bc": ("train-bc", "no-such-source"),
}
WAITING = {
    "convert": ("convert", "no-such-source", "--out", "OUT"),
    "apply": ("apply", "no-such-source", "--pipeline", "PIPELINE", "--out", "OUT"),
    "train-bc": ("train-bc", "no-such-source", "--out", "OUT"),
    "inspect": ("inspect", "no-such-source"),
    "validate": ("validate", "no-such-source"),
}


@pytest.fixture
def said(tmp_path: Path) -> Callable[[tuple[str, ...]], list[str]]:
    (tmp_path / "pipeline.toml").write_text('kind = "learner"\n')
    places = {"PIPELINE": str(tmp_path / "pipeline.toml"), "OUT": str(tmp_path / "out")}
    return lambda words: [places.get(word, word) for word in words]


@pytest.mark.parametrize("command", WRITING)
def test_an_out_below_a_file_is_named_before_the_data_or_the_environment_is_looked_for(
    command: str, call_json: CallJson, said: Callable[..., list[str]], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    out = str(tmp_path / "file" / "out")
    code, found = call_json(*said(WRITING[command]), "--out", out)
    assert (code, found["error"]["where"].startswith(out)) == (5, True), found
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("command", WAITING)
def test_a_temp_dir_that_no_file_can_be_made_in_is_named_before_the_data_is_looked_for(
    command: str, call_json: CallJson, said: Callable[..., list[str]], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    code, found = call_json(*said(WAITING[command]), "--temp-dir", str(tmp_path / "file"))
    assert (code, found["error"]["where"]) == (5, str(tmp_path / "file")), found
    assert "--temp-dir" in found["error"]["fix"]


def test_a_folder_that_this_user_may_not_write_to_is_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path))
    with pytest.raises(StorageError) as caught:
        open_location(tmp_path / "a" / "b").check_writable()
    assert str(tmp_path) in caught.value.where
