"""Missing cells of a table: filled, or gaps at which episodes are split, as the mapping says, from the command line."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from offline_cli.datasets.dataset import Dataset

Call = Callable[..., Any]
Rows = list[dict[str, Any]]

COLUMNS = '[columns]\neps_id = "e"\nt = "t"\nobs = ["x", "y"]\nactions = "a"\nrewards = "r"\n'
MIXED = "split_at_gaps = true\n" + COLUMNS + '[fill]\nx = "previous"\ny = "mean"\nr = 0.5\n'
KINDS = ("csv", "json", "parquet", "arrow")


def rows_of(episodes: int = 4, steps: int = 6) -> Rows:
    """Rows with every kind of gap: x lacks its first cell in odd episodes, and a is missing in the middle of each third one."""
    return [
        {
            "e": f"E{e}",
            "t": t,
            "x": None if (t == 0 and e % 2) or t == 2 else 10.0 * e + t,
            "y": None if t == 1 else t + 0.5,
            "a": None if t == 3 and e % 3 == 0 else t % 2,
            "r": None if t == 4 else 1.0,
        }
        for e in range(episodes)
        for t in range(steps)
    ]


def table(rows: Rows) -> pa.Table:
    kinds = {"e": pa.string(), "t": pa.int64(), "x": pa.float64(), "y": pa.float64(), "a": pa.int64(), "r": pa.float64()}
    return pa.Table.from_pylist(rows, pa.schema(kinds.items()))


def write(folder: Path, rows: Rows, kind: str = "csv", name: str = "log") -> Path:
    path = folder / f"{name}.{kind}"
    if kind == "csv":
        pc.write_csv(table(rows), path)
    elif kind == "json":
        path.write_text("".join(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n" for row in rows), "utf-8")
    elif kind == "parquet":
        pq.write_table(table(rows), path, row_group_size=5)
    else:
        feather.write_feather(table(rows), path, chunksize=5)
    return path


def mapped(folder: Path, text: str) -> Path:
    (folder / "m.toml").write_text(text, encoding="utf-8")
    return folder / "m.toml"


def converted(call_json: Call, folder: Path, source: Path, text: str, *more: Any, code: int = 0) -> tuple[dict[str, Any], Any]:
    """The result, and every episode by its id without the hash: observations, actions, rewards."""
    out = folder / "D"
    found, told = call_json("convert", source, "--out", out, "--mapping", mapped(folder, text), "--overwrite", *more)
    assert found == code, told
    episodes = {}
    for batch in Dataset.open(str(out)).batches() if code == 0 else ():
        for i, name in enumerate(batch.ids):
            steps = slice(batch.starts[i], batch.starts[i + 1])
            obs = batch.obs[batch.obs_starts[i] : batch.obs_starts[i + 1]].tolist()
            episodes[name[9:]] = (obs, batch.actions[steps].tolist(), batch.rewards[steps].tolist())
    return told, episodes


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_fills_and_splits_alike_in_any_order_of_rows(kind: str, call_json: Call, tmp_path: Path) -> None:
    rows = rows_of()
    told, episodes = converted(call_json, tmp_path, write(tmp_path, rows, kind), MIXED)
    random.Random(3).shuffle(rows)
    again, shuffled = converted(call_json, tmp_path, write(tmp_path, rows, kind, "shuffled"), MIXED)
    assert shuffled == episodes
    assert again["assumptions"] == told["assumptions"]
    mean = float(np.mean([0.5, 2.5, 3.5, 4.5, 5.5]))
    assert list(episodes) == ["E0", "E0-gap1", "E1", "E2", "E3", "E3-gap1"]
    assert episodes["E0"] == ([[0, 0.5], [1, mean], [1, 2.5], [1, 2.5]], [0, 1, 0], [1, 1, 1])
    assert episodes["E0-gap1"] == ([[4, 4.5], [5, 5.5], [5, 5.5]], [0, 1], [0.5, 1])
    assert episodes["E1"][0][:2] == [[11, mean], [11, 2.5]]  # its first row has no x
    assert episodes["E3"] == ([[31, mean], [31, 2.5], [31, 2.5]], [1, 0], [1, 1])
    assert {kind: count for kind, count in told["assumptions"].items() if "filled" in kind or "gap" in kind} == {
        "filled-previous:x": 4,
        "filled-mean:y": 4,
        "filled-number:r": 4,
        "split-at-gap": 4,
    }


def test_a_first_cell_without_a_predecessor_is_a_bad_row_that_costs_its_episode(call_json: Call, tmp_path: Path) -> None:
    rows = [{**row, "a": 1, "y": 0.0, "r": 1.0} for row in rows_of(3)]
    fill = COLUMNS + '[fill]\nx = "previous"\n'
    source = write(tmp_path, rows)
    told, _ = converted(call_json, tmp_path, source, fill, code=3)
    assert told["error"]["what"] == "column x has no value, and no row before it in the episode has one"
    assert told["error"]["where"] == f"{source} row 6"
    for how in ("skip", "quarantine"):
        told, episodes = converted(call_json, tmp_path, source, fill, "--on-error", how)
        assert list(episodes) == ["E0", "E2"]
        assert (told["episodes_lost"], told["assumptions"]["lost-episode-bad-row"]) == (1, 1)
    (kept,) = (row for row in pq.read_table(tmp_path / "D" / "quarantine").to_pylist() if "no row before it" in row["reason"])
    assert json.loads(kept["raw"])["x"] is None


def test_previous_never_takes_a_value_from_another_episode_or_over_a_gap(call_json: Call, tmp_path: Path) -> None:
    rows = [
        {"e": "A", "t": 0, "x": 1.0, "y": 0.0, "a": 1, "r": 1.0},
        {"e": "A", "t": 1, "x": 2.0, "y": 0.0, "a": None, "r": 1.0},
        {"e": "A", "t": 2, "x": None, "y": 0.0, "a": 1, "r": 1.0},
        {"e": "A", "t": 3, "x": 4.0, "y": None, "a": 1, "r": 1.0},
        {"e": "A", "t": 4, "x": 5.0, "y": 1.0, "a": 1, "r": 1.0},
        {"e": "B", "t": 0, "x": None, "y": 0.0, "a": 1, "r": 1.0},
    ]
    text = "split_at_gaps = true\n" + COLUMNS + '[fill]\nx = "previous"\ny = "previous"\n'
    told, episodes = converted(call_json, tmp_path, write(tmp_path, rows), text)
    assert {name: obs[:-1] for name, (obs, _, _) in episodes.items()} == {"A": [[1, 0]], "A-gap1": [[5, 1]]}
    assert (told["assumptions"]["split-at-gap"], told["assumptions"]["zero-length-episode"]) == (4, 1)
    assert "filled-previous:x" not in told["assumptions"]


def test_rows_in_file_order_without_ids_are_split_too(call_json: Call, tmp_path: Path) -> None:
    lines = ["x,a,done", "1,0,0", "2,,0", "3,1,0", "4,0,1", ",1,0", "6,0,1"]
    source = tmp_path / "log.csv"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    columns = '[columns]\nobs = ["x"]\nactions = "a"\nterminateds = "done"\n'
    _, episodes = converted(call_json, tmp_path, source, "split_at_gaps = true\n" + columns)
    assert {name: obs[:-1] for name, (obs, _, _) in episodes.items()} == {"0": [[1]], "0-gap1": [[3], [4]], "1": [[6]]}


def test_fills_that_a_mapping_cannot_have_are_exit_4_and_named_all_at_once(call_json: Call, tmp_path: Path) -> None:
    text = COLUMNS.replace('"r"\n', '"r"\nterminateds = "d"\n') + (
        '[fill]\ne = "zero"\nt = 0\nd = 0\nz = 1\nx = "meen"\n"y" = inf\n'
    )
    told, _ = converted(call_json, tmp_path, write(tmp_path, rows_of()), text, code=4)
    problems = [problem.split(" is ")[0] for problem in told["error"]["problems"]]
    assert problems[:4] == ["fill: column 'e'", "fill: column 't'", "fill: column 'd'", "fill: column 'z'"]
    assert problems[4:] == ["fill.x: 'meen'", "fill.y: inf"]


def test_an_episode_that_lost_a_row_is_set_aside_with_all_its_parts(call_json: Call, tmp_path: Path) -> None:
    source = tmp_path / "log.csv"
    rows = [
        "A,0,1,1,0,1",
        "A,1,1,1,,1",
        "A,2,1,1,0,1",
        "A,3,bad,1,0,1",
        "A,4,1,1,0,1",
        "B,0,1,1,0,1",
        "B,1,,1,0,1",
        "B,2,1,1,0,1",
    ]
    source.write_text("e,t,x,y,a,r\n" + "\n".join(rows) + "\n", encoding="utf-8")
    for how in ("skip", "quarantine"):
        told, episodes = converted(call_json, tmp_path, source, "split_at_gaps = true\n" + COLUMNS, "--on-error", how)
        assert list(episodes) == ["B", "B-gap1"]
        assert (told["episodes_lost"], told["assumptions"]["split-at-gap"]) == (2, 2)


def test_agents_that_share_an_episode_are_filled_and_split_each_by_itself(call_json: Call, tmp_path: Path) -> None:
    lines = ["e,p,t,x,a", "A,one,0,1,0", "A,two,0,,0", "A,one,1,,0", "A,two,1,7,0", "A,one,2,3,", "A,two,2,,1", "A,one,3,4,1"]
    source = tmp_path / "log.csv"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = 'split_at_gaps = true\n[columns]\neps_id = "e"\nagent_id = "p"\nt = "t"\nobs = "x"\nactions = "a"\n'
    _, episodes = converted(call_json, tmp_path, source, text + '[fill]\nx = "previous"\n')
    assert sorted(obs[:-1] for obs, _, _ in episodes.values()) == [[1, 1], [4], [7, 7]]
