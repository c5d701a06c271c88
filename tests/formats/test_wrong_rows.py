"""One row is wrong: it is the one that is named, and the only one that is counted, whatever the format."""

from __future__ import annotations

import copy
import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from offline_cli import convert, validate
from offline_cli.datasets.dataset import Dataset
from offline_cli.errors import BadData, BadEpisode, SpaceMismatch

Row = dict[str, Any]
WRONG = 6  # the third step of the second of three episodes of four steps
NAMES = {"eps_id": "eps_id", "t": "t", "obs": "obs", "actions": "actions", "rewards": "rewards"}
MAPPING = {"columns": {**NAMES, "new_obs": "new_obs", "terminateds": "terminateds"}}


def rows() -> list[Row]:
    return [
        {
            "eps_id": f"e{e}",
            "t": t,
            "obs": [e + t / 8],
            "actions": t % 2,
            "rewards": 1.0,
            "new_obs": [e + (t + 1) / 8],
            "terminateds": t == 3,
        }
        for e in range(3)
        for t in range(4)
    ]


def csv_file(folder: Path, steps: Sequence[Row]) -> dict[str, Any]:
    flat = [{name: value[0] if isinstance(value, list) else value for name, value in step.items()} for step in steps]
    csv.write_csv(pa.Table.from_pylist(flat), folder / "steps.csv")
    return {"sources": folder / "steps.csv", "mapping": MAPPING}


def json_lines(folder: Path, steps: Sequence[Row]) -> dict[str, Any]:
    (folder / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps), encoding="utf-8")
    return {"sources": folder / "steps.jsonl", "mapping": MAPPING}


def parquet_table(folder: Path, steps: Sequence[Row]) -> dict[str, Any]:
    pq.write_table(pa.Table.from_pylist(list(steps)), folder / "steps.parquet")
    return {"sources": folder / "steps.parquet", "mapping": MAPPING}


def rllib_columns(folder: Path, steps: Sequence[Row]) -> dict[str, Any]:
    return {"sources": parquet_table(folder, steps)["sources"]}


def sample_batches(folder: Path, steps: Sequence[Row]) -> dict[str, Any]:
    lines = [{name: [value] for name, value in step.items()} for step in steps]
    text = "".join(json.dumps({"type": "SampleBatch", **line}) + "\n" for line in lines)
    (folder / "steps.json").write_text(text, encoding="utf-8")
    return {"sources": folder / "steps.json"}


Write = Callable[[Path, Sequence[Row]], dict[str, Any]]
WRITERS: Mapping[str, Write] = {
    "csv": csv_file,
    "json-lines": json_lines,
    "parquet": parquet_table,
    "rllib-columns": rllib_columns,
    "sample-batch": sample_batches,
}


@pytest.fixture(params=WRITERS)
def write(request: pytest.FixtureRequest) -> Write:
    return WRITERS[request.param]


def row(given: Mapping[str, Any], number: int) -> str:
    """The place of a row of all rows."""
    first = {".json": 1, ".jsonl": 1, ".csv": 2}.get(given["sources"].suffix)
    return f"{given['sources']} row {number}" if first is None else f"{given['sources']} line {number + first}"


def places(given: Mapping[str, Any], code: str) -> list[str]:
    (problem,) = [one for one in validate(**given).problems if one.code == code]
    found = problem.details["places"]
    assert problem.count == len(found)
    return list(found)


def test_a_broken_chain_is_at_the_row_that_does_not_follow(write: Write, tmp_path: Path) -> None:
    steps = rows()
    steps[WRONG]["obs"] = [9.5]
    given = write(tmp_path, steps)
    (place,) = places(given, "broken-chain")
    assert place.startswith(row(given, WRONG))


@pytest.mark.parametrize(("name", "at"), [("csv", 0), ("json-lines", 6), ("parquet", 11), ("rllib-columns", 6)])
def test_a_value_that_does_not_fit_the_space_is_at_its_row(name: str, at: int, tmp_path: Path) -> None:
    steps = rows()
    for step in steps:
        step["obs"], step["new_obs"] = step["obs"] * 4, step["new_obs"] * 4
    steps[at]["actions"] = 7
    given = WRITERS[name](tmp_path, steps)
    if name == "csv":  # which has one number a column
        given = {**given, "mapping": {"columns": {**MAPPING["columns"], "obs": ["obs"] * 4, "new_obs": ["new_obs"] * 4}}}
    with pytest.raises(SpaceMismatch) as caught:
        convert(**given, out=tmp_path / "out", env="CartPole-v1")
    assert caught.value.where.startswith(f"{row(given, at)}, episode ")
    assert caught.value.where.endswith(f"e{at // 4}, step {at % 4}")


def test_skipping_tells_and_counts_the_wrong_row_alone(write: Write, tmp_path: Path) -> None:
    steps = rows()
    steps[WRONG]["obs"] = None
    given = write(tmp_path, steps)
    result = convert(**given, out=tmp_path / "out", on_error="skip", action_scale="env")
    wrong = [one for one in result.rejected if one["where"].startswith(row(given, WRONG))]
    assert wrong == list(result.rejected[:1])
    assert (result.episodes, Dataset.open(tmp_path / "out").manifest.assumptions["unreadable-row"]) == (2, 1)


@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_a_date_that_cannot_be_counted_is_refused_by_its_row(name: str, tmp_path: Path) -> None:
    steps = rows()
    for number, step in enumerate(steps):
        step["t"] = datetime.datetime(3024 if number == WRONG else 2024, 1, 1 + number)
    given = WRITERS[name](tmp_path, steps)
    with pytest.raises(BadEpisode) as caught:
        convert(**given, out=tmp_path / "out")
    assert caught.value.where == row(given, WRONG)
    assert convert(**given, out=tmp_path / "out", on_error="skip").episodes == 2


TRAJECTORIES = [{"obs": [[e, t] for t in range(4)], "acts": [0, 1, 0], "terminal": True, "rews": [1.0] * 3} for e in range(4)]


@pytest.mark.parametrize(
    "change", [{"rews": [1.0]}, {"terminal": None}, {"obs": None}, {"obs": [[0, 0]]}, {"rews": [1.0, None, 1.0]}], ids=str
)
def test_a_trajectory_that_is_wrong_is_named_whichever_it_is(change: Row, tmp_path: Path) -> None:
    trajectories = copy.deepcopy(TRAJECTORIES)
    trajectories[2] |= change
    table = pa.Table.from_pylist(trajectories)
    source = tmp_path / "imitation"
    source.mkdir()
    with pa.OSFile(str(source / "data-00000-of-00001.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    (source / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    with pytest.raises(BadData) as caught:
        convert(source, tmp_path / "out", from_="imitation")
    assert caught.value.where.endswith("data-00000-of-00001.arrow row 2")


@pytest.mark.parametrize("column", ["frame_index", "episode_index", "next.reward"])
def test_a_frame_of_lerobot_without_a_value_costs_its_episode_alone(column: str, tmp_path: Path) -> None:
    convert(**csv_file(tmp_path, rows()), out=tmp_path / "lerobot", to="lerobot", action_scale="env")
    (file,) = (tmp_path / "lerobot" / "data").rglob("*.parquet")
    table = pq.read_table(file)
    frames = table.to_pylist()
    frames[WRONG][column] = None
    pq.write_table(pa.Table.from_pylist(frames, schema=table.schema), file)
    with pytest.raises(BadData) as caught:
        convert(tmp_path / "lerobot", tmp_path / "out")
    assert caught.value.where == f"{file} row {WRONG}"
    result = convert(tmp_path / "lerobot", tmp_path / "out", on_error="skip")
    assert (result.episodes, result.episodes_lost) == (2, 1)
