"""Rows set aside wait in small numbers, whenever they are found, and all of them are written in their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from offline_cli import tally
from offline_cli.converting.convert import convert
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.tally import Reject

BAD = 450
GOOD = [{"e": n // 3, "x": n / 2, "a": n % 2, "d": n % 3 == 2} for n in range(30)]
BATCH = {"type": "SampleBatch", "t": [0], "obs": [[0.5]], "new_obs": [[0.5]], "actions": [1], "rewards": [1.0]}


def lines_of(kind: str) -> list[str]:
    """Episodes, then 450 rows that cannot be read, each of another number."""
    if kind == "sample-batch":
        batches = [{**BATCH, "eps_id": [n], "terminateds": [True], "truncateds": [False]} for n in range(10)]
        return [*map(json.dumps, batches), *(f'{{"type": "SampleBatch", "n": {n}}}' for n in range(BAD))]
    if kind == "jsonl":
        return [*map(json.dumps, GOOD), *(f"no JSON {n}" for n in range(BAD))]
    rows = [",".join(map(str, row.values())) for row in GOOD]
    if kind == "cells":
        return ["e,x,a,d", *rows, *(f"late,not a number {n},0,0" for n in range(BAD)), *(f"e{n},1,0,0" for n in range(BAD))]
    return ["e,x,a,d", *rows, *(f"short {n}" for n in range(BAD))]


@pytest.fixture
def source(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What `convert` takes to read such a file."""
    path = tmp_path / "recording.txt"
    path.write_text("\n".join(lines_of(request.param)) + "\n")
    if request.param == "sample-batch":
        return {"sources": str(path)}
    (tmp_path / "m.toml").write_text('[columns]\neps_id = "e"\nobs = ["x"]\nactions = "a"\ndones = "d"\n')
    return {"sources": str(path), "mapping": str(tmp_path / "m.toml"), "from_": "table"}


@pytest.mark.parametrize("source", ["csv", "sample-batch"], indirect=True)
def test_many_rows_set_aside_are_written_a_few_at_a_time(
    source: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found while the spaces are inferred, before there is a dataset to write them into."""
    monkeypatch.setattr(tally, "KEPT_ROWS", 50)
    written: list[int] = []
    quarantine = DatasetWriter.quarantine

    def counted(writer: DatasetWriter, rejects: list[Reject]) -> None:
        written.append(len(rejects))
        quarantine(writer, rejects)

    monkeypatch.setattr(DatasetWriter, "quarantine", counted)
    result = convert(**source, out=str(tmp_path / "D"), on_error="quarantine")
    assert result.episodes >= 9
    assert max(written) <= 50
    assert len(written) >= BAD // 50
    rows = pq.read_table(tmp_path / "D" / "quarantine").to_pylist()
    raws = [row["raw"].decode() for row in rows]
    found = [
        number
        for number in range(BAD)
        if any(f"{word} {number}" in raws[number] for word in ("short", "JSON", '"n":', "number"))
    ]
    assert found == list(range(BAD))  # each of them, in their order
    assert len({row["where"] for row in rows[:BAD]}) == BAD
