"""Whatever becomes no part of an episode is named with the reason, and the count is that of the names, for every reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli import convert, inspect, validate

SAMPLES = Path(__file__).parents[1] / "testdata" / "sample_batch"


def columns(path: Path, **more: Any) -> str:
    table = {"eps_id": ["a"] * 3, "obs": [[0.0], [1.0], [2.0]], "actions": [0, 1, 0], "rewards": [1.0] * 3, **more}
    flags = {"new_obs": [[1.0], [2.0], [3.0]], "terminateds": [False, False, True]}
    pq.write_table(pa.table(table | flags), path)
    return str(path)


def lines(path: Path, **more: Any) -> str:
    rows = [
        {"eps_id": "b", "t": t, "obs": [t], "actions": t % 2, "rewards": 1.0, "terminateds": t == 2, **more} for t in range(3)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


NOTE = {"note": "text, not numbers"}
RECURRENT = {
    "unroll_id": "which piece of sampling a row came from: the order of rows says the same",
    "seq_lens": "one row for each sequence, and not for each step",
    "state_in_0": "one row for each sequence, and not for each step",
}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (lambda folder: columns(folder / "a.parquet", note=["x"] * 3), NOTE),
        (lambda folder: columns(folder / "a.parquet", infos=[1, 2, 3]), {"infos": "int64, neither JSON nor dicts"}),
        (lambda folder: lines(folder / "a.jsonl", note="x"), NOTE),
        (lambda folder: str(SAMPLES / "recurrent.json"), RECURRENT),
    ],
    ids=["RLlib columns", "infos that are no dicts", "table", "SampleBatch"],
)
def test_what_is_dropped_is_named_with_the_reason(source: Any, names: dict[str, str], tmp_path: Path) -> None:
    place = source(tmp_path)
    told = convert(place, tmp_path / "out").as_dict()
    assert told["dropped_reasons"] == names
    assert sorted(told["dropped_columns"]) == sorted(names)
    assert told["assumptions"]["dropped-column"] == len(names)
    looked_at = inspect(place)
    assert (dict(looked_at.dropped_reasons), looked_at.assumptions["dropped-column"]) == (names, len(names))


def test_a_check_names_the_columns_that_reading_drops(tmp_path: Path) -> None:
    found = validate(columns(tmp_path / "a.parquet", note=["x"] * 3))
    (note,) = [problem for problem in found.problems if problem.code == "assumption"]
    assert "dropped-column 1 (note: text, not numbers)" in note.what
    assert note.details["dropped_columns"] == NOTE
