"""`offline-cli repair`: exit codes, JSON, the table and stderr."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from named_commands import command_named

from offline_cli.datasets.lock import WritingNote

Call = Callable[..., Any]


@pytest.fixture
def dataset(recording: Path, tmp_path: Path, call: Call) -> Path:
    """Eight episodes in four shards."""
    assert call("convert", recording, "--out", tmp_path / "D", "--max-rows-per-file", "2").exit_code == 0
    return tmp_path / "D"


@pytest.fixture
def left(dataset: Path, recording: Path) -> Path:
    """The same as a killed writer leaves it: a note, no manifest, a shard too few, and half of it."""
    provenance = json.loads((dataset / "manifest.json").read_text())
    shards = sorted((dataset / "data").iterdir())
    options = {name: provenance[name] for name in ("format", "observation_space", "action_space", "action_scale")}
    note = WritingNote.of_this_process(shards[0].name[6:14], options, 0, "offline-cli convert recording --out D")
    (dataset / "_writing.json").write_bytes(replace(note, host="elsewhere", pid=1, left=True).to_bytes())
    (dataset / "manifest.json").unlink()
    shards[-1].rename(dataset / "_part-0badcafe-shard-01234567-000009.parquet")
    return dataset


def test_json_has_the_promised_keys_and_what_was_done(left: Path, call_json: Call) -> None:
    code, told = call_json("repair", left)
    assert code == 0
    assert told.keys() >= set(command_named("repair").about.keys)
    assert (told["out"], told["episodes"], told["shards"], told["adopted"], told["dropped"]) == (str(left), 6, 3, 3, 1)
    code, found = call_json("inspect", left)
    assert (code, found["episodes"], found["complete"]) == (0, 6, False)
    assert call_json("validate", left, "--deep")[0] == 0


def test_a_dry_run_changes_nothing(left: Path, call_json: Call) -> None:
    before = {path: path.read_bytes() for path in left.rglob("*") if path.is_file()}
    code, told = call_json("repair", left, "--dry-run")
    assert (code, told["dry_run"], told["adopted"]) == (0, True, 3)
    assert {path: path.read_bytes() for path in left.rglob("*") if path.is_file()} == before


def test_a_live_writer_is_exit_5_and_named(left: Path, call_json: Call) -> None:
    note = json.loads((left / "_writing.json").read_text())
    (left / "_writing.json").write_text(json.dumps({**note, "left": False, "host": "elsewhere", "pid": 1}))
    code, told = call_json("repair", left)
    assert (code, told["error"]["code"]) == (5, "locked")
    assert (told["error"]["holder"]["host"], told["error"]["holder"]["pid"]) == ("elsewhere", 1)


def test_a_manifest_that_cannot_be_read_is_told_of_with_the_command_that_mends_it(dataset: Path, call_json: Call) -> None:
    (dataset / "manifest.json").write_text("{")
    code, told = call_json("inspect", dataset)
    assert (code, told["error"]["fix"].endswith("offline-cli convert D/data --out NEW --env ENV --action-scale SCALE")) == (
        3,
        True,
    )


def test_what_is_not_there_is_exit_5_and_what_is_no_dataset_exit_3(recording: Path, tmp_path: Path, call_json: Call) -> None:
    assert call_json("repair", tmp_path / "nowhere")[0] == 5
    assert call_json("repair", recording)[0] == 3
