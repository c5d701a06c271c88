"""`convert` of tables from the command line: exit codes, places, remedies, and what comes out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.datasets.dataset import Dataset

TABLES = Path(__file__).resolve().parents[1] / "testdata" / "tables"
Call = Callable[..., Any]


def test_a_table_is_inspected_by_its_mapping_as_it_would_be_converted(call_json: Call) -> None:
    code, told = call_json(
        "inspect", TABLES / "robot_log.csv", "--mapping", TABLES / "robot_log.toml", "--expect", "episodes=3"
    )
    assert (code, told["format"], told["steps"], told["complete"]) == (0, "table", 12, True)


@pytest.mark.parametrize("to", ["episodes", "columns"])
def test_the_ids_of_the_table_are_kept_in_both_formats(to: str, call_json: Call, tmp_path: Path) -> None:
    out = tmp_path / "D"
    mapping = TABLES / "minari_export.toml"
    code, told = call_json("convert", TABLES / "minari_export.parquet", "--out", out, "--mapping", mapping, "--to", to)
    assert (code, told["assumptions"]) == (0, {})
    batches = list(Dataset.open(str(out)).batches())
    theirs = {name: data["source_id"] for batch in batches for name, data in zip(batch.ids, batch.custom_data, strict=True)}
    assert sorted(theirs.values()) == ["0", "1", "2"]
    assert all(name[9:] == source_id for name, source_id in theirs.items())
    again = tmp_path / "E"
    assert call_json("convert", out, "--out", again, "--to", to)[0] == 0
    assert [batch.custom_data for batch in Dataset.open(str(again)).batches()] == [batch.custom_data for batch in batches]


def test_a_table_without_a_mapping_is_exit_4_with_one_to_start_from(call: Call, tmp_path: Path) -> None:
    done = call("convert", TABLES / "robot_log.csv", "--out", tmp_path / "D")
    assert done.exit_code == 4
    start = done.stderr[done.stderr.index("[columns]") :]
    assert 'eps_id = "run"' in start
    assert 't = "stamp"' in start
    assert 'obs = ["joint_a", "joint_b", "gripper"' in start
