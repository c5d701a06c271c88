"""Filling from the row before, and splitting at gaps, against the plain rule row by row."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Read = Callable[..., Any]
MAPPING = """split_at_gaps = true
[columns]
eps_id = "e"
t = "t"
obs = ["x", "y"]
actions = "a"
[fill]
x = "previous"
y = "previous"
"""


def by_the_rule(rows: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """Observations by episode: a missing action ends one, and one begins with a row that needs no value before it."""
    found: dict[str, list[list[float]]] = {}
    for name in dict.fromkeys(row["e"] for row in rows):
        part: list[list[float]] = []
        parts = [part]
        for row in sorted((row for row in rows if row["e"] == name), key=lambda row: row["t"]):
            if row["a"] is None or (not part and None in (row["x"], row["y"])):
                part = []
                parts.append(part)
                continue
            part.append([part[-1][i] if row[key] is None else row[key] for i, key in enumerate("xy")])
        for number, kept in enumerate(filter(None, parts)):
            found[f"{name}-gap{number}" if number else name] = kept
    return found


@pytest.mark.parametrize("seed", range(6))
def test_gaps_and_values_before_follow_the_plain_rule(seed: int, tmp_path: Path, read_table: Read) -> None:
    chance = random.Random(seed)
    missing = chance.choice([0.1, 0.4, 0.7])

    def cell(value: Any) -> Any:
        return None if chance.random() < missing else value

    rows = [
        {"e": name, "t": t, "x": cell(100.0 * i + t), "y": cell(t / 2), "a": cell(1) if chance.random() < 0.5 else 1}
        for i, name in enumerate("ABCDE")
        for t in range(chance.randint(1, 12))
    ]
    chance.shuffle(rows)
    kinds = {"e": pa.string(), "t": pa.int64(), "x": pa.float64(), "y": pa.float64(), "a": pa.int64()}
    table = pa.Table.from_pylist([*rows, {"e": "Z", "t": 0, "x": 0.0, "y": 0.0, "a": 1}], pa.schema(kinds.items()))
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=7)
    stream, batch = read_table(tmp_path / "log.parquet", MAPPING)
    found = {
        name[9:]: batch.obs[batch.obs_starts[i] : batch.obs_starts[i + 1] - 1].tolist() for i, name in enumerate(batch.ids)
    }
    want = by_the_rule([*rows, {"e": "Z", "t": 0, "x": 0.0, "y": 0.0, "a": 1}])
    assert found == want
    assert stream.tally.assumptions["split-at-gap"] == table.num_rows - sum(map(len, want.values()))
