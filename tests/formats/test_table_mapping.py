"""Mappings: all mistakes at once, presets, and columns held against what the files have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.errors import BadMapping, StorageNotFound, UsageError
from offline_cli.formats.opening import open_sources
from offline_cli.formats.tables import TableOptions

Read = Callable[..., Any]
Write = Callable[..., Path]

ROW = {"ride": "a", "step": 0, "x": 0.5, "y": 1.5, "a": 1, "r": 1.0, "d": True}


@pytest.fixture
def problems(read_table: Read, write_lines: Write) -> Callable[[str], list[str]]:
    """A function that reads a table by a mapping: its mistakes."""

    def found(text: str) -> list[str]:
        with pytest.raises(BadMapping) as caught:
            read_table(write_lines("a.jsonl", ROW), text)
        assert caught.value.exit_code == 4
        return list(caught.value.details["problems"])

    return found


def test_a_mapping_with_three_mistakes_reports_all_three_at_once(problems: Callable[[str], list[str]]) -> None:
    text = 'unmaped = "extra"\nepisode_ends = "sometimes"\n[columns]\nobs = ["x"]\nactions = "a"\nrewrds = "r"\n'
    found = problems(text)
    assert [key in one for key, one in zip(("unmaped", "rewrds", "episode_ends"), found, strict=True)] == [True] * 3
    assert "'unmapped'" in found[0]
    assert "'rewards'" in found[1]


WHOLE = "[columns]\nobs = 'x'\nactions = 'a'\n"


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("[columns]\nactions = 'a'\n", "columns obs"),
        ("[columns]\nobs = 'x'\n", "columns actions"),
        ("[columns]\nobs = 3\nactions = 'a'\n", "columns.obs"),
        ("[columns]\nobs = []\nactions = 'a'\n", "columns.obs"),
        (WHOLE + "'obs.camera' = 'c'\n", "columns obs"),
        (WHOLE + "'new_obs.camera' = 'c'\n", "columns new_obs"),
        (WHOLE + "agent_id = 'p'\n", "columns agent_id eps_id"),
        ("episode_ends = 'flags'\n" + WHOLE, "episode_ends flags"),
        ("episode_ends = 't'\n" + WHOLE, "episode_ends"),
        ("episode_ends = 'chain'\n" + WHOLE, "episode_ends chain new_obs"),
        ("gap = '30 moons'\n" + WHOLE + "t = 't'\n", "gap"),
        ("period = -1\n" + WHOLE + "t = 't'\n", "period"),
        ("optional = ['reward']\n" + WHOLE + "rewards = 'r'\n", "optional reward rewards"),
        ("optional = ['obs']\n" + WHOLE, "optional obs"),
        ("rewards = 'r'\n" + WHOLE, "rewards [columns]"),
        (WHOLE + "[dtypes]\nobs = 'float'\n", "dtypes.obs"),
        (WHOLE + "[spaces.action]\ntype = 'Discreet'\n", "spaces.action Discreet"),
        (WHOLE + "[spaces.observation]\ntype = 'Box'\nshape = [2]\ndtype = 'float32'\nlow = [0, 0, 0]\nhigh = 1\n", "spaces"),
        (WHOLE + "[csv]\ndelimiter = ',,'\n", "csv.delimiter"),
        (WHOLE + "[csv]\nencoding = 'letters'\n", "csv.encoding letters"),
        (WHOLE + "[categories]\na = []\n", "categories.a"),
        (WHOLE + "[units]\nz = 'm'\n", "units z"),
        (WHOLE + "[fill]\nx = 'previos'\n", "fill.x previous"),
        (WHOLE + "[fill]\nx = inf\n", "fill.x"),
        (WHOLE + "[images]\na = 'blue'\n", "images.a"),
        ("[extra]\nlogp = 'l'\n", "columns"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, keys: str, problems: Callable[[str], list[str]]) -> None:
    assert any(all(key in one for key in keys.split()) for one in problems(text))


def test_a_mapping_that_is_not_toml_is_refused(read_table: Read, write_lines: Write) -> None:
    with pytest.raises(BadMapping):
        read_table(write_lines("a.jsonl", ROW), "[columns]\nobs = \n")


@pytest.mark.parametrize("said", ["'obs.camera' = 'x'\nobs.arm = ['x', 'y']\n", "obs = {camera = 'x', arm = ['x', 'y']}\n"])
def test_parts_of_a_dict_are_written_with_dots_or_as_a_table(said: str, read_table: Read, write_lines: Write) -> None:
    _, batch = read_table(write_lines("a.jsonl", ROW), f"[columns]\neps_id = 'ride'\nactions = 'a'\n{said}")
    assert {name: values[0].tolist() for name, values in batch.obs.items()} == {"camera": 0.5, "arm": [0.5, 1.5]}


def test_a_name_that_is_neither_file_nor_preset_is_refused_with_the_nearest(read_table: Read, write_lines: Write) -> None:
    with pytest.raises(StorageNotFound) as caught:
        read_table(write_lines("a.jsonl", ROW), "gym-legcy")
    assert caught.value.fix == "did you mean gym-legacy?"


# ---- against the files ----


def test_every_column_that_is_missing_is_named_at_once_with_near_ones(read_table: Read, write_lines: Write) -> None:
    mapping = '[columns]\neps_id = "Ride"\nobs = ["x", "z"]\nactions = "action"\nrewards = "r"\n'
    with pytest.raises(BadMapping) as caught:
        read_table(write_lines("a.jsonl", ROW), mapping)
    assert caught.value.details["problems"] == [
        "no column 'Ride' (for eps_id), did you mean 'ride'?",
        "no column 'z' (for obs)",
        "no column 'action' (for actions)",
    ]
    assert "ride, step, x, y, a, r, d" in caught.value.fix


def test_optional_columns_are_left_out_where_the_file_has_none(read_table: Read, write_lines: Write) -> None:
    columns = '[columns]\neps_id = "ride"\nobs = "x"\nactions = "a"\nrewards = "gain"\n'
    mapping = f'optional = ["rewards", "lp"]\n{columns}[extra]\nlp = "l"\n'
    stream, batch = read_table(write_lines("a.jsonl", ROW), mapping)
    assert stream.tally.assumptions["missing-rewards"] == 1
    assert "lp" not in batch.extra


def test_columns_that_are_not_mapped_become_extras_are_dropped_or_refused(read_table: Read, write_lines: Write) -> None:
    path = write_lines("a.jsonl", {**ROW, "note": "text"})
    mapping = '[columns]\neps_id = "ride"\nobs = ["x", "y"]\nactions = "a"\nrewards = "r"\nterminateds = "d"\n'
    stream, batch = read_table(path, mapping)
    assert list(batch.extra) == ["step"]
    assert stream.tally.assumptions["dropped-column"] == 1
    stream, batch = read_table(path, f'unmapped = "drop"\n{mapping}')
    assert not batch.extra
    assert stream.tally.assumptions["dropped-column"] == 2
    with pytest.raises(BadMapping) as caught:
        read_table(path, f'unmapped = "error"\n{mapping}')
    assert [problem.split("'")[1] for problem in caught.value.details["problems"]] == ["step", "note"]


# ---- without a mapping ----


# ---- where a mapping has no place ----


def test_a_mapping_makes_a_table_of_rllibs_own_columns(tmp_path: Path, read_table: Read) -> None:
    columns = {"eps_id": ["a"], "obs": [[0.0]], "actions": [0], "rewards": [1.0]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    stream, _ = read_table(tmp_path / "a.parquet", "rllib")
    assert stream.formats == ["table"]
    stream, _ = read_table(tmp_path / "a.parquet", from_="table")
    assert stream.formats == ["table"]
    assert read_table(tmp_path / "a.parquet")[0].formats == ["rllib-columns"]


def test_a_mapping_for_what_is_no_table_is_refused(write_lines: Write) -> None:
    line = {"type": "SampleBatch", "obs": [[0.0]], "actions": [0], "rewards": [1.0], "dones": [True], "eps_id": [1]}
    path = write_lines("a.json", line)
    with pytest.raises(UsageError):
        open_sources(str(path), tables=TableOptions(mapping="rllib"))
    with pytest.raises(UsageError):
        open_sources(str(path), tables=TableOptions(rows_as_episodes=True))


@pytest.mark.parametrize(
    "said",
    [{"episode_ends": "whenever"}, {"memory_limit": 1 << 20}, {"rows_as_episodes": True, "episode_ends": "t"}],
)
def test_options_that_make_no_sense_are_refused(said: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        TableOptions(**said)
