"""Mappings: all mistakes at once, presets, and columns held against what the files have."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.errors import BadMapping, StorageNotFound, UsageError
from offline_cli.formats.opening import open_sources
from offline_cli.formats.tables import TableOptions
from offline_cli.formats.tables.mapping import mapping_of, preset_names, preset_text, schema
from offline_cli.json_documents import load_schema

Read = Callable[..., Any]
Write = Callable[..., Path]

ROW = {"ride": "a", "step": 0, "x": 0.5, "y": 1.5, "a": 1, "r": 1.0, "d": True}


def problems(text: str) -> list[str]:
    with pytest.raises(BadMapping) as caught:
        mapping_of(text, "m.toml")
    assert caught.value.exit_code == 4
    return list(caught.value.details["problems"])


def test_a_mapping_with_three_mistakes_reports_all_three_at_once() -> None:
    text = 'unmaped = "extra"\nepisode_ends = "sometimes"\n[columns]\nobs = ["x"]\nactions = "a"\nrewrds = "r"\n'
    found = problems(text)
    assert len(found) == 3
    assert found[0] == "unknown key 'unmaped', did you mean 'unmapped'?"
    assert found[1] == "columns: unknown key 'rewrds', did you mean 'rewards'?"
    assert found[2].startswith("episode_ends: ")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[columns]\nactions = 'a'\n", "columns: 'obs' is missing"),
        ("[columns]\nobs = 'x'\n", "columns: 'actions' is missing"),
        ("[columns]\nobs = 3\nactions = 'a'\n", "columns.obs: "),
        ("[columns]\nobs = []\nactions = 'a'\n", "columns.obs: "),
        ("[columns]\nobs = 'x'\n'obs.camera' = 'c'\nactions = 'a'\n", "columns: 'obs' is given whole and in parts"),
        ("[columns]\nobs = 'x'\n'new_obs.camera' = 'c'\nactions = 'a'\n", "columns: 'new_obs' has other parts than 'obs'"),
        ("[columns]\nobs = 'x'\nactions = 'a'\nagent_id = 'p'\n", "columns: 'agent_id' needs 'eps_id'"),
        ("episode_ends = 'flags'\n[columns]\nobs = 'x'\nactions = 'a'\n", 'episode_ends: "flags" needs a column'),
        ("episode_ends = 't'\n[columns]\nobs = 'x'\nactions = 'a'\n", 'episode_ends: "t" needs a column'),
        ("episode_ends = 'chain'\n[columns]\nobs = 'x'\nactions = 'a'\n", 'episode_ends: "chain" needs columns'),
        ("optional = ['reward']\n[columns]\nobs = 'x'\nactions = 'a'\nrewards = 'r'\n", "did you mean 'rewards'?"),
        ("optional = ['obs']\n[columns]\nobs = 'x'\nactions = 'a'\n", "optional: there is no episode without 'obs'"),
        ("rewards = 'r'\n[columns]\nobs = 'x'\nactions = 'a'\n", "unknown key 'rewards': it belongs under [columns]"),
        ("[columns]\nobs = 'x'\nactions = 'a'\n[dtypes]\nobs = 'float'\n", "dtypes.obs: "),
        (
            "[columns]\nobs = 'x'\nactions = 'a'\n[spaces.action]\ntype = 'Discreet'\n",
            "spaces.action.type: 'Discreet' is not one of",
        ),
        (
            "[columns]\nobs = 'x'\nactions = 'a'\n[spaces.observation]\ntype = 'Box'\nshape = [2]\ndtype = 'float32'\n"
            "low = [0, 0, 0]\nhigh = 1\n",
            "spaces.observation: not a space",
        ),
        ("[columns]\nobs = 'x'\nactions = 'a'\n[csv]\ndelimiter = ',,'\n", "csv.delimiter: "),
        ("[columns]\nobs = 'x'\nactions = 'a'\n[categories]\na = []\n", "categories.a: "),
        ("[extra]\nlogp = 'l'\n", "'columns' is missing"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, what: str) -> None:
    assert any(what in problem for problem in problems(text)), problems(text)


def test_the_schema_in_the_repository_is_that_of_the_model() -> None:
    assert load_schema("mapping.v1.json") == schema()


def test_a_mapping_that_is_not_toml_is_refused_with_the_line() -> None:
    with pytest.raises(BadMapping):
        mapping_of("[columns]\nobs = \n", "m.toml")


@pytest.mark.parametrize(
    "text",
    [
        "[columns]\n'obs.camera' = 'c'\nobs.arm = ['x', 'y']\nactions = 'a'\n",
        "[columns]\nobs = {camera = 'c', arm = ['x', 'y']}\nactions = 'a'\n",
    ],
)
def test_parts_of_a_dict_are_written_with_dots_or_as_a_table(text: str) -> None:
    parts = {part.name: part.columns for part in mapping_of(text, "m.toml").parts}
    assert parts == {"obs.camera": ("c",), "obs.arm": ("x", "y"), "actions": ("a",)}


def test_presets_are_mappings_without_mistakes() -> None:
    assert preset_names() == ("d4rl-table", "gym-legacy", "rllib")
    for name in preset_names():
        assert mapping_of(preset_text(name), name).parts


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


def test_without_a_mapping_rllibs_names_are_read(read_table: Read, write_lines: Write) -> None:
    rows = [
        {"eps_id": "a", "t": t, "obs": [float(t)], "actions": t % 2, "rewards": 1.0, "terminateds": t == 2} for t in range(3)
    ]
    _, batch = read_table(write_lines("a.jsonl", *rows))
    assert batch.num_steps == 3


def test_without_a_mapping_other_names_are_refused_with_one_to_start_from(write_lines: Write) -> None:
    with pytest.raises(BadMapping) as caught:
        open_sources(str(write_lines("a.jsonl", ROW)))
    assert caught.value.exit_code == 4
    guessed = tomllib.loads(caught.value.details["starting_mapping"])["columns"]
    assert guessed == {
        "eps_id": "ride",
        "t": "step",
        "obs": ["x", "y"],
        "actions": "a",
        "rewards": "r",
        "dones": "d",
    }
    assert caught.value.details["starting_mapping"] in caught.value.fix


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
