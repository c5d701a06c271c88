"""A Parquet file that may unfold to far more than its size is read in small tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli import convert
from offline_cli.errors import BadData
from offline_cli.formats import parquet_files
from offline_cli.formats.parquet_files import chunks
from offline_cli.storage.locations import open_location
from offline_cli.tally import Rejects

ROWS = 20_000
LONG = "x" * 5_000
VALUES = {
    "a short text, then a long one": ["y", *[LONG] * ROWS],
    "lists": pa.array([[LONG]] * ROWS, pa.list_(pa.string(), 1)),
    "structs": [{"part": LONG}] * ROWS,
    "numbers": pa.array([0.0]).take(pa.array(np.zeros(1 << 20, np.int8))),
    "texts that differ": [f"{row:0400}" for row in range(ROWS)],
    "one long text among short ones": [LONG * 50, *[str(row % 100) for row in range(ROWS)]],
}


@pytest.mark.parametrize("name", VALUES)
def test_rows_come_in_tables_of_bounded_size(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("BIG", "BYTES"):
        monkeypatch.setattr(parquet_files, limit, 1 << 20)
    table: Any = pa.table({"item": VALUES[name]})
    pq.write_table(table, tmp_path / "a.parquet")
    found = [chunk.table for chunk in chunks([open_location(tmp_path / "a.parquet")], Rejects())]
    assert max(one.nbytes for one in found) < 3 << 20
    assert sum(one.num_rows for one in found) == table.num_rows


def test_convert_of_a_bomb_leaves_nothing(tmp_path: Path) -> None:
    pq.write_table(pa.table({"item": pa.array([LONG.encode()] * ROWS)}), tmp_path / "a.parquet")
    with pytest.raises(BadData):
        convert(str(tmp_path / "a.parquet"), str(tmp_path / "D"))
    assert not (tmp_path / "D" / "manifest.json").exists()
