"""`convert` of tables from the command line: exit codes, places, remedies, and what comes out."""

from __future__ import annotations

import json
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


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., tuple[Path, str, Path]]:
    """Writes a log of two rides of four steps without some lines, and with a score; gives arguments of commands."""

    def write(*, without: tuple[int, ...] = (), score: str = "1") -> tuple[Path, str, Path]:
        rows = [
            f"{ride},{t},{t}.0,0.5,{t + 1}.0,{score if (ride, t) == ('b', 2) else 1},{t // 3}"
            for ride in "ab"
            for t in range(4)
        ]
        lines = [line for number, line in enumerate(["ride,t,x,turn,next_x,score,end", *rows], 1) if number not in without]
        (tmp_path / "log.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        parts = 'eps_id = "ride"\nt = "t"\nobs = ["x"]\nactions = ["turn"]\nnew_obs = ["next_x"]\nrewards = "score"\n'
        (tmp_path / "log.toml").write_text(f'action_scale = "env"\n[columns]\n{parts}truncateds = "end"\n', encoding="utf-8")
        return tmp_path / "log.csv", "--mapping", tmp_path / "log.toml"

    return write


def test_convert_notes_the_first_place_of_a_gap(log: Any, call_json: Call, tmp_path: Path) -> None:
    code, told = call_json("convert", *log(without=(3,)), "--out", tmp_path / "D")
    assert (code, told["assumptions"]["gap-in-t"]) == (0, 1)
    assert [note for note in told["notes"] if "gap-in-t 1" in note and "log.csv line 3" in note]


def test_convert_notes_how_many_rewards_are_not_finite_and_where(log: Any, call_json: Call, tmp_path: Path) -> None:
    code, told = call_json("convert", *log(score="nan"), "--out", tmp_path / "D")
    assert (code, len(told["notes"])) == (0, 1)
    assert "log.csv line 8" in told["notes"][0]


def test_a_nan_in_a_table_is_placed_by_line_and_column(log: Any, call_json: Call) -> None:
    code, told = call_json("validate", *log(score="nan"))
    (place,) = told["problems"][0]["details"]["places"]
    assert (code, place.partition(",")[0][-14:]) == (3, "log.csv line 8")
    assert place.endswith("score is nan")


def test_what_drop_problems_leaves_of_a_table_passes_strictly(log: Any, call_json: Call, tmp_path: Path) -> None:
    source = log(without=(3,))
    code, told = call_json("validate", *source)
    (tmp_path / "problems.json").write_text(json.dumps(told), encoding="utf-8")
    code, told = call_json("filter", *source, "--drop-problems", tmp_path / "problems.json", "--out", tmp_path / "D")
    assert (code, told["episodes"], told["notes"]) == (0, 1, [])
    assert call_json("validate", tmp_path / "D", "--strict")[0] == 0
