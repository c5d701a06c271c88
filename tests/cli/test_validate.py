"""`offline-cli validate`: exit codes, JSON, the table and stderr."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from offline_cli.datasets.lock import WritingNote

if TYPE_CHECKING:
    from offline_cli.episodes.batch import EpisodeBatch

Call = Callable[..., Any]


@pytest.fixture
def repacked(tmp_path: Path, recorded: EpisodeBatch) -> Callable[..., Path]:
    """A function that writes the eight episodes with other fields, as RLlib does."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from offline_cli.episodes.codec import encode_batch
    from offline_cli.tally import Tally

    def write(**fields: Any) -> Path:
        folder = tmp_path / "faulty"
        folder.mkdir()
        items = encode_batch(replace(recorded, **fields), where="test", tally=Tally())
        pq.write_table(pa.table({"item": pa.array(items, pa.binary())}), folder / "part-0.parquet")
        return folder

    return write


@pytest.fixture
def warned(repacked: Callable[..., Path]) -> Path:
    """One of the episodes ends twice."""
    return repacked(truncated=np.arange(8) == 3)


@pytest.fixture
def wrong(repacked: Callable[..., Path], recorded: EpisodeBatch) -> Path:
    """Two episodes have one id, and one ends twice."""
    return repacked(truncated=np.arange(8) == 3, ids=(recorded.ids[1], *recorded.ids[1:]))


def test_a_warning_is_exit_0_and_exit_3_with_strict(warned: Path, call_json: Call) -> None:
    code, told = call_json("validate", warned)
    assert (code, [problem["code"] for problem in told["problems"]]) == (0, ["both-flags"])
    code, told = call_json("validate", warned, "--strict")
    assert (code, told["exit_code"], told["passed"]) == (3, 3, False)


def test_an_error_is_exit_3_and_one_object_with_problems_and_error(wrong: Path, call_json: Call) -> None:
    code, told = call_json("validate", wrong)
    assert (code, told["exit_code"]) == (3, 3)
    assert [(p["code"], p["severity"], p["count"]) for p in told["problems"]] == [
        ("conflicting-episode", "error", 1),
        ("both-flags", "warning", 1),
    ]
    assert told["error"].keys() >= {"code", "what", "where", "fix"}
    assert (told["error"]["code"], told["errors"], told["warnings"]) == ("invalid-data", 1, 1)


def note(folder: Path, **changes: Any) -> None:
    """Make `folder` one that a writer on another machine has begun."""
    said = WritingNote.of_this_process("0badcafe", {}, 0, "offline-cli convert SRC --out D")
    folder.mkdir()
    (folder / "_writing.json").write_bytes(replace(said, **{"host": "elsewhere", "pid": 1, **changes}).to_bytes())


@pytest.mark.parametrize("command", ["validate", "inspect", "train-bc"])
def test_beside_a_live_writer_the_advice_is_to_wait(command: str, tmp_path: Path, call_json: Call) -> None:
    note(tmp_path / "D")
    code, told = call_json(command, tmp_path / "D", *(("--out", tmp_path / "run") if command == "train-bc" else ()))
    error = told["problems"][0] if command == "validate" else told["error"]
    assert (code, "wait until it ends" in error["fix"], "repair" in error["fix"]) == (3, True, False)
    assert "process 1 on elsewhere" in error["what"]


def test_after_a_dead_writer_the_advice_is_to_go_on_and_nothing_is_said_twice(tmp_path: Path, call_json: Call) -> None:
    note(tmp_path / "D", left=True)
    code, told = call_json("validate", tmp_path / "D")
    (problem,) = told["problems"]
    assert (code, "--resume" in problem["fix"], "repair" in problem["fix"]) == (3, True, True)
    assert problem["what"].count("offline-cli convert SRC --out D") == 1


def test_what_is_not_there_is_no_problem_of_the_data(tmp_path: Path, call_json: Call) -> None:
    code, told = call_json("validate", tmp_path / "nowhere")
    assert (code, told["error"]["code"], "problems" in told) == (5, "storage-not-found", False)
