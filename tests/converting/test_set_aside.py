"""Rows set aside wait in small numbers, whenever they are found, and all of them are written in their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from offline_cli import tally
from offline_cli.converting.convert import convert
from offline_cli.converting.reading import read_episodes
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.errors import BadData
from offline_cli.formats.tables import TableOptions, files
from offline_cli.formats.tables.claims import Losses
from offline_cli.tally import OnError, Reject, Rejects

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


@pytest.mark.parametrize("source", ["csv", "jsonl", "cells", "sample-batch"], indirect=True)
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


def test_what_is_held_is_handed_on_by_number_and_by_size() -> None:
    given: list[list[Reject]] = []
    rejects = Rejects(OnError.QUARANTINE, keep=given.append)
    for number in range(2 * tally.KEPT_ROWS + 1):
        rejects.add(BadData("no row", where=f"row {number}", fix="none"), raw=b"x")
    rejects.add(BadData("a large row", where="row", fix="none"), raw=bytes(tally.KEPT_BYTES))
    rejects.add(BadData("the last row", where="row", fix="none"))
    assert [len(rows) for rows in given] == [tally.KEPT_ROWS, tally.KEPT_ROWS, 2]
    rejects.hand_on()
    assert len(given[-1]) == 1
    assert rejects.kept == []


def test_a_dry_run_keeps_nothing_of_what_it_sets_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "KEPT_ROWS", 50)
    (tmp_path / "a.jsonl").write_text("\n".join(lines_of("jsonl")) + "\n")
    (tmp_path / "m.toml").write_text('[columns]\neps_id = "e"\nobs = ["x"]\nactions = "a"\ndones = "d"\n')
    said = {"mapping": str(tmp_path / "m.toml"), "on_error": "quarantine", "dry_run": True}
    result = convert(str(tmp_path / "a.jsonl"), str(tmp_path / "D"), **said)
    assert result.rows_quarantined >= BAD
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "m.toml"]


def test_the_work_of_finding_the_episodes_that_lost_rows_grows_with_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_ROWS", 20)
    looked_at = []
    upto = Losses.upto

    def counted(losses: Losses, position: int | None) -> Any:
        found = upto(losses, position)
        looked_at.append(len(found))
        return found

    monkeypatch.setattr(Losses, "upto", counted)
    x = [None if n % 20 == 7 else n / 2 for n in range(4000)]
    pq.write_table(files.pa.table({"x": x, "a": np.zeros(4000), "d": np.arange(4000) % 20 == 19}), tmp_path / "a.parquet")
    (tmp_path / "m.toml").write_text('[columns]\nobs = ["x"]\nactions = "a"\ndones = "d"\n')
    said = TableOptions(str(tmp_path / "m.toml"))
    with pytest.raises(BadData, match="no episode"):
        list(read_episodes(str(tmp_path / "a.parquet"), from_="table", on_error="skip", tables=said))
    assert len(looked_at) >= 190
    assert sum(looked_at) <= 3 * 200  # 20,100 if each looked at all losses so far
