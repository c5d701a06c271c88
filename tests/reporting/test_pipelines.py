"""The table of `apply --show`."""

from __future__ import annotations

from typing import Any

from offline_cli.reporting.pipelines import pieces_grid


def column(name: str) -> dict[str, Any]:
    return {"name": name, "held": "tensor", "dtype": "float32", "shape": [2], "rows": 3, "first": "0 0"}


def test_a_column_that_a_piece_takes_out_is_named() -> None:
    pieces = [
        {"name": "Makes", "episodes": [], "columns": [column("obs"), column("rewards")]},
        {"name": "Drops", "episodes": [], "columns": [column("obs")]},
        {"name": "Leaves", "episodes": [], "columns": [column("obs")]},
    ]
    headings, rows = pieces_grid({"start": [], "pieces": pieces}, traced=False)
    told = [tuple(row[headings.index(name)] for name in ("after piece", "column", "holds")) for row in rows]
    assert told[-2:] == [("Drops", "rewards", "removed"), ("Leaves", "unchanged", None)]
