"""Rows that are no steps: refused by file, row, column and value, or set aside with the episode that they were of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from pyarrow import csv

from offline_cli import convert
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode, BadMapping, OfflineCliError
from offline_cli.tally import Reject

Read = Callable[..., Any]
Write = Callable[..., Path]

MAPPING = '[columns]\neps_id = "ep"\nt = "t"\nobs = ["x", "y"]\nactions = "a"\nrewards = "r"\nterminateds = "d"\n'
HEADER = "ep,t,x,y,a,r,d"


def rows(episodes: int = 3, steps: int = 3) -> list[str]:
    return [f"e{e},{t},{e}.5,{t},{t % 2},1,{int(t == steps - 1)}" for e in range(episodes) for t in range(steps)]


def theirs(batch: EpisodeBatch) -> set[str]:
    return {data["source_id"] for data in batch.custom_data or ()}


def refused(read: Read, source: Path | str, mapping: str | None, kind: type[OfflineCliError] = BadEpisode) -> OfflineCliError:
    with pytest.raises(kind) as caught:
        read(source, mapping)
    return caught.value


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("e1,1,n/a,1,0,1,0", "column x holds 'n/a', not a number"),
        ("e1,1,,1,0,1,0", "column x has no value"),
        ("e1,1,1.5,1,0,much,0", "column r holds 'much', not a number"),
        ("e1,1,1.5,1,left,1,0", "column a holds 'left', not a number"),
        ("e1,soon,1.5,1,0,1,0", "column t holds 'soon', not a number"),
        ("e1,1,1.5,1,0,1,maybe", "column d holds 'maybe', not a flag: 0 or 1, true or false, yes or no"),
        (",1,1.5,1,0,1,0", "column ep has no value"),
        ("e1,1,1.5,1,0,1", "the row has 6 cells, but there are 7 columns"),
        ('"e1,1",1,1.5,1,0,1,0,0', "the row has 8 cells, but there are 7 columns"),
    ],
)
def test_a_bad_cell_is_refused_by_file_row_column_and_text(row: str, what: str, read_table: Read, write_lines: Write) -> None:
    lines = rows()
    lines[4] = row
    path = write_lines("robot.csv", HEADER, *lines)
    error = refused(read_table, path, MAPPING, BadData)
    assert error.exit_code == 3
    assert error.what == what
    assert error.where == f"{path} line 6"
    assert "--on-error skip" in error.fix


def test_a_lost_row_of_a_table_without_ids_takes_its_episode_with_it(read_table: Read, write_lines: Write) -> None:
    mapping = MAPPING.replace('eps_id = "ep"\nt = "t"\n', "")
    lines = ["x,y,a,r,d", *(line.split(",", 2)[2] for line in rows(episodes=4))]
    lines[5] = "broken,1,0,1,0"
    stream, batch = read_table(write_lines("a.csv", *lines), mapping, on_error="skip")
    assert batch.lengths.tolist() == [3, 3, 3]
    assert [name[9:] for name in batch.ids] == ["0", "2", "3"]
    assert stream.rejects.count == 3


def test_a_file_that_breaks_off_is_refused_by_name_or_skipped_with_what_it_may_have_held(
    read_table: Read, write_lines: Write, tmp_path: Path
) -> None:
    columns = {
        "ep": ["a", "a"],
        "t": [0, 1],
        "x": [0.0, 1.0],
        "y": [0.0, 1.0],
        "a": [0, 1],
        "r": [1.0, 1.0],
        "d": [False, True],
    }
    for number, name in enumerate("abc"):
        pq.write_table(pa.table({**columns, "ep": [name, name]}), tmp_path / f"{number}.parquet")
    broken = tmp_path / "1.parquet"
    data = broken.read_bytes()
    broken.write_bytes(data[: len(data) // 2])
    with pytest.raises(BadData) as caught:
        read_table(tmp_path, MAPPING)
    assert caught.value.where == str(broken)
    _, batch = read_table(str(tmp_path / "*.parquet"), MAPPING, on_error="skip")
    assert theirs(batch) == {"a"}  # what the file held may have been of the episode after it; the one before had ended


@pytest.mark.parametrize(
    ("cell", "what"),
    [
        ("[0.1]", "holds [0.1], not numbers of shape [2] as in other rows"),
        ('"[0.1, ""a""]"', "not numbers of shape [2]"),
        ('"[0.1, null]"', "not numbers of shape [2]"),
        ("0.5", "holds '0.5', not numbers of shape [2]"),
        ("", "has no value"),
    ],
)
def test_a_vector_of_another_length_is_refused(cell: str, what: str, read_table: Read, write_lines: Write) -> None:
    good = '"[0.1, 0.2]"'
    cells = [good, good, cell, good]
    path = write_lines("a.csv", "eps_id,obs,actions,rewards", *(f"e,{text},1,1" for text in cells))
    error = refused(read_table, path, None)
    assert what in error.what
    assert error.where == f"{path} line 4"


def test_text_without_categories_is_refused_with_the_categories_to_write(read_table: Read, write_lines: Write) -> None:
    lines = [{"ep": "a", "x": 0.5, "event": event} for event in ("view", "buy", "view")]
    mapping = '[columns]\neps_id = "ep"\nobs = "x"\nactions = "event"\n'
    error = refused(read_table, write_lines("a.jsonl", *lines), mapping, BadMapping)
    assert '[categories] event = ["buy", "view"]' in error.what
    _, batch = read_table(write_lines("a.jsonl", *lines), mapping + '[categories]\nevent = ["buy", "view"]\n')
    assert batch.actions.tolist() == [1, 0, 1]
    stream, _ = read_table(write_lines("a.jsonl", *lines), mapping + '[categories]\nevent = ["buy", "view", "never"]\n')
    assert stream.action_space == spaces.Discrete(3)
    error = refused(read_table, write_lines("a.jsonl", *lines), mapping + '[categories]\nevent = ["buy"]\n')
    assert error.what == "column event holds 'view', which is not one of its [categories]"


def test_numbers_missing_among_extras_are_nan_and_counted(read_table: Read, write_lines: Write) -> None:
    lines = ["ep,t,x,y,a,r,d,volt", *(f"{row},{'' if n == 1 else n}" for n, row in enumerate(rows(1)))]
    stream, batch = read_table(write_lines("a.csv", *lines), MAPPING)
    assert str(batch.extra["volt"].tolist()) == "[0.0, nan, 2.0]"
    assert stream.tally.assumptions["null-as-nan"] == 1


def test_infos_that_are_no_objects_are_refused_by_row_and_their_episode_is_set_aside(
    read_table: Read, write_lines: Write
) -> None:
    mapping = MAPPING + 'infos = "i"\n'
    lines = [f"{HEADER},i", *(f"{row}," for row in rows())]
    lines[5] += "{'lives': 1}"
    error = refused(read_table, write_lines("a.csv", *lines), mapping)
    assert error.what.startswith("column i is not a JSON object")
    assert error.where.endswith("line 6")
    _, batch = read_table(write_lines("a.csv", *lines), mapping, on_error="skip")
    assert theirs(batch) == {"e0", "e2"}


@pytest.mark.parametrize("flags", [[0, 2], [0.0, 0.5], [0, -1]])
def test_a_flag_that_is_neither_0_nor_1_is_a_bad_row(flags: list[float], read_table: Read, tmp_path: Path) -> None:
    pq.write_table(pa.table({"e": [1, 1], "x": [0.1, 0.2], "a": [0, 1], "d": flags}), tmp_path / "a.parquet")
    error = refused(read_table, tmp_path / "a.parquet", '[columns]\neps_id = "e"\nobs = "x"\nactions = "a"\ndones = "d"\n')
    assert error.where == f"{tmp_path / 'a.parquet'} row 1"


def test_bad_rows_are_kept_although_reading_ends_before_the_last_row(read_table: Read, write_lines: Write) -> None:
    kept: list[Reject] = []
    lines = rows()
    lines[1] = "e0,1,bad,1,0,1,0"
    read_table(write_lines("a.csv", HEADER, *lines), MAPPING, on_error="quarantine", limit=1, keep=kept.extend)
    assert any(reject.where.endswith("line 3") for reject in kept)


# ---- t ----


def test_an_order_beyond_signed_integers_is_a_bad_row_and_not_a_negative_number(read_table: Read, tmp_path: Path) -> None:
    order = pa.array([2**64 - 1, 0], pa.uint64())
    pq.write_table(pa.table({"e": [1, 1], "t": order, "x": [0.1, 0.2], "a": [0, 1]}), tmp_path / "a.parquet")
    refused(read_table, tmp_path / "a.parquet", '[columns]\neps_id = "e"\nt = "t"\nobs = "x"\nactions = "a"\n')


def test_equal_rows_of_one_step_are_one_row_and_counted(read_table: Read, write_lines: Write) -> None:
    lines = rows()
    stream, batch = read_table(write_lines("a.csv", HEADER, *lines, lines[4], lines[4], lines[0]), MAPPING)
    assert batch.lengths.tolist() == [3, 3, 3]
    assert stream.tally.assumptions["duplicate-row"] == 3


def test_different_rows_of_one_step_are_refused_with_both_places(read_table: Read, write_lines: Write) -> None:
    lines = [*rows(), "e1,1,9,9,0,1,0"]
    path = write_lines("a.csv", HEADER, *lines)
    error = refused(read_table, path, MAPPING)
    assert error.what == "two different rows of one episode have t = 1"
    assert error.where == f"{path} line 6 and {path} line 11"
    stream, batch = read_table(path, MAPPING, on_error="skip")
    assert theirs(batch) == {"e0", "e2"}
    assert stream.rejects.count == 4


def test_files_that_number_their_episodes_anew_are_told_apart_where_the_mapping_says_so(
    read_table: Read, write_lines: Write
) -> None:
    write_lines("a.csv", HEADER, *rows())
    other = write_lines("b.csv", HEADER, *(row.replace(".5", ".25") for row in rows()))
    error = refused(read_table, str(other.parent / "*.csv"), MAPPING)
    assert "ids_per_file = true" in error.fix
    _, batch = read_table(str(other.parent / "*.csv"), f"ids_per_file = true\n{MAPPING}")
    assert [name[9:] for name in batch.ids] == ["0-e0", "0-e1", "0-e2", "1-e0", "1-e1", "1-e2"]


HOURS = ("2024-01-02T00:00", "2024-01-02T01:00", "2024-01-02T02:00")


@pytest.mark.parametrize(
    ("times", "gaps"),
    [
        ((0, 1, 2, 5), 1),
        ((7, 8, 9, 10), 0),
        ((10, 20, 30, 45), 0),  # a clock, nearly regular
        ((0.0, 0.5, 1.0, 9.0), 1),
        ((*HOURS, "2024-01-02T10:00"), 0),  # eight hours are not ten times one
        ((*HOURS, "2024-01-02T14:00", "2024-01-02T15:00", "2024-01-03T15:00"), 2),
    ],
)
def test_gaps_are_steps_that_a_counter_skips_and_long_ones_of_a_regular_clock(
    times: tuple[Any, ...], gaps: int, read_table: Read, write_lines: Write
) -> None:
    lines = [f"e,{t},0.5,1,0,1,{int(n == len(times) - 1)}" for n, t in enumerate(times)]
    stream, batch = read_table(write_lines("a.csv", HEADER, *lines), MAPPING)
    assert batch.lengths.tolist() == [len(times)]
    assert batch.t_started is None
    assert stream.tally.assumptions["gap-in-t"] == gaps


def test_an_end_flag_before_the_end_is_refused_with_the_remedy(read_table: Read, write_lines: Write) -> None:
    lines = rows(episodes=2, steps=4)
    lines[1] = lines[1][:-1] + "1"
    path = write_lines("a.csv", HEADER, *lines)
    error = refused(read_table, path, MAPPING)
    assert error.what == "episode e0 has an end flag at t = 1 and continues at t = 2"
    assert error.where == f"{path} line 3"
    assert "--on-error" not in error.fix
    assert 'episode_ends = "flags"' in error.fix
    _, batch = read_table(path, f'episode_ends = "flags"\n{MAPPING}')
    assert [name[9:] for name in batch.ids] == ["e0-0", "e0-1", "e1-0"]
    assert batch.lengths.tolist() == [2, 2, 4]


ITEMS = '[columns]\neps_id = "run"\nt = "step"\nobs = "x"\nactions = "item_id"\n'


def items(first: int) -> pa.Table:
    """Forty steps of which the actions are twelve ids."""
    return pa.table({"run": ["A"] * 40, "step": range(40), "x": [0.5] * 40, "item_id": [first + n % 12 for n in range(40)]})


@pytest.mark.parametrize("actions", ['"item_id"', '["item_id"]'])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_ids_as_actions_are_counted_unless_categories_number_them(
    kind: str, actions: str, read_table: Read, tmp_path: Path
) -> None:
    path = tmp_path / f"a.{kind}"
    (csv.write_csv if kind == "csv" else pq.write_table)(items(1000), path)
    mapping = ITEMS.replace('"item_id"', actions)
    stream, _ = read_table(path, mapping)
    assert stream.tally.assumptions["unused-actions"] == 1000
    names = ", ".join(f'"{name}"' for name in range(1000, 1012))
    stream, batch = read_table(path, f"{mapping}[categories]\nitem_id = [{names}]\n")
    assert stream.tally.assumptions["unused-actions"] == 0
    assert batch.actions.ravel().tolist() == [n % 12 for n in range(40)]
    error = refused(read_table, path, f'{mapping}[categories]\nitem_id = ["1000"]\n')
    assert "1001" in error.what
    assert "which is not one of its [categories]" in error.what


@pytest.mark.parametrize("ends", ["flags", "chain"])
def test_next_observations_of_another_shape_than_observations_are_refused(ends: str, tmp_path: Path) -> None:
    rows = [f'"[{n}.0, 1.0, 2.0]","[{n}.0, 1.0]",0,1.0,{n == 3}' for n in range(4)]
    (tmp_path / "steps.csv").write_text("\n".join(["o,p,a,r,d", *rows]) + "\n", encoding="utf-8")
    columns = {"obs": "o", "new_obs": "p", "actions": "a", "rewards": "r", "dones": "d"}
    with pytest.raises(BadEpisode) as caught:
        convert(tmp_path / "steps.csv", tmp_path / "D", mapping={"episode_ends": ends, "columns": columns})
    assert caught.value.where.endswith("steps.csv")
