"""Rows of another length in a CSV file of many blocks are each reported, by their numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from offline_cli.cli.app import app

MAPPING = '[columns]\neps_id = "e"\nobs = ["x", "y"]\nactions = "a"\ndones = "d"\n'


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes 40,000 rows, 1 MB, of 400 episodes; `bad`: rows that are replaced by a text."""

    def write(bad: dict[int, str]) -> Path:
        rows = [f"ride-{n // 100},{n % 100}.25,0.5,{n % 2},{int(n % 100 == 99)}" for n in range(40_000)]
        for number, text in bad.items():
            rows[number] = text
        data = ("e,x,y,a,d\n" + "\n".join(rows) + "\n").encode()
        (tmp_path / "big.csv").write_bytes(data)
        (tmp_path / "mapping.toml").write_text(MAPPING)
        return tmp_path / "big.csv"

    return write


BAD = {0: "ride-0,1", 20_123: "ride-201", 30_000: '"a\nb",1,2,3,4,5,6', 30_001: "x", 39_999: "ride-399,1"}


def test_short_and_long_rows_in_a_file_of_many_blocks_are_quarantined_with_their_place(
    table: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_cli.formats.tables.text_files.CSV_BLOCK", 1 << 14)
    out, mapping = tmp_path / "out", str(tmp_path / "mapping.toml")
    said = ["--on-error", "quarantine", "--json"]
    ended = CliRunner().invoke(app, ["convert", str(table(BAD)), "--out", str(out), "--mapping", mapping, *said])
    assert ended.exit_code == 0, ended.output
    result = json.loads(ended.stdout)
    assert result["rows_in"] == 40_000
    rows = pq.read_table(out / "quarantine").to_pylist()
    ragged = {row["where"]: row["raw"].decode() for row in rows if "cells under 5 columns" in row["reason"]}
    assert ragged == {f"{tmp_path / 'big.csv'} row {number}": text for number, text in BAD.items()}
    assert result["episodes"] == 400 - len({0, 201, 300, 399})  # those that the rows belonged to


def test_a_byte_that_is_no_text_costs_its_row_and_no_other(table: Callable[..., Path], tmp_path: Path) -> None:
    source, mapping = table({}), str(tmp_path / "mapping.toml")
    source.write_bytes(source.read_bytes().replace(b"ride-201,7.25,0.5", b"ride-201,7.\xff5,0.5"))
    said = ["--on-error", "quarantine", "--json", "--mapping", mapping]
    ended = CliRunner().invoke(app, ["convert", str(source), "--out", str(tmp_path / "out"), *said])
    assert ended.exit_code == 0, ended.output
    rows = pq.read_table(tmp_path / "out" / "quarantine").to_pylist()
    assert [row["where"] for row in rows if "utf-8" in row["reason"]] == [f"{source} row 20107"]
    assert json.loads(ended.stdout)["episodes"] == 399
