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
    """A function that writes 100,000 rows, 2.5 MB, of 1,000 episodes; `bad`: rows that are replaced by a text."""

    def write(bad: dict[int, str]) -> Path:
        rows = [f"ride-{n // 100},{n % 100}.25,0.5,{n % 2},{int(n % 100 == 99)}" for n in range(100_000)]
        for number, text in bad.items():
            rows[number] = text
        data = ("e,x,y,a,d\n" + "\n".join(rows) + "\n").encode()
        (tmp_path / "big.csv").write_bytes(data)
        (tmp_path / "mapping.toml").write_text(MAPPING)
        return tmp_path / "big.csv"

    return write


SMALL_BLOCKS = ["--memory-limit", "256MiB"]
BAD = {0: "ride-0,1", 30_123: "ride-301", 50_000: '"a\nb",1,2,3,4,5,6', 50_001: "x", 99_999: "ride-999,1"}


def test_short_and_long_rows_in_a_file_of_many_blocks_are_quarantined_with_their_place(
    table: Callable[..., Path], tmp_path: Path
) -> None:
    out, mapping = tmp_path / "out", str(tmp_path / "mapping.toml")
    said = ["--on-error", "quarantine", "--json", *SMALL_BLOCKS]
    ended = CliRunner().invoke(app, ["convert", str(table(BAD)), "--out", str(out), "--mapping", mapping, *said])
    assert ended.exit_code == 0, ended.output
    result = json.loads(ended.stdout)
    assert result["rows_in"] == 100_000
    rows = pq.read_table(out / "quarantine").to_pylist()
    ragged = {row["where"]: row["raw"].decode() for row in rows if "cells under 5 columns" in row["reason"]}
    assert ragged == {f"{tmp_path / 'big.csv'} row {number}": text for number, text in BAD.items()}
    assert result["episodes"] == 1000 - len({0, 301, 500, 999})  # those that the rows belonged to
