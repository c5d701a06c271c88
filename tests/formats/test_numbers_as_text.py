"""Texts where numbers belong: counted where a reader takes them, refused where they are no numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

Call = Callable[..., Any]
Rows = list[dict[str, Any]]

MAPPING = """[columns]
eps_id = "e"
t = "t"
obs = ["x", "y"]
actions = "a"
rewards = "r"
terminateds = "end"
"""


def rows_of(column: str = "", text: str = "") -> Rows:
    rows: Rows = [
        {"e": f"E{e}", "t": t, "x": e + 0.5, "y": t + 0.5, "a": t % 2, "r": 1.5, "end": t == 3}
        for e in range(3)
        for t in range(4)
    ]
    return [{**row, column: text} if column and row["e"] == "E1" else row for row in rows]


def write(folder: Path, rows: Rows, kind: str, column: str) -> list[Any]:
    path = folder / f"log.{kind}"
    if kind == "json":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        frame = pl.DataFrame([{**row, column: str(row[column])} for row in rows])
        frame.write_csv(path) if kind == "csv" else frame.write_parquet(path)
    (folder / "mapping.toml").write_text(MAPPING, encoding="utf-8")
    return [path, "--mapping", folder / "mapping.toml"]


@pytest.mark.parametrize(
    ("kind", "column", "text"),
    [("json", "r", " 1.0 "), ("parquet", "x", "1.0"), ("json", "a", "1"), ("parquet", "end", "true")],
)
def test_text_in_a_column_of_numbers_is_counted_by_column(
    call: Call, told: Call, tmp_path: Path, kind: str, column: str, text: str
) -> None:
    rows = (
        [{**row, "end": "true" if row["end"] else "false"} for row in rows_of()] if column == "end" else rows_of(column, text)
    )
    source = write(tmp_path, rows, kind, column)
    assert told("convert", *source, "--out", tmp_path / "d")["assumptions"][f"numbers-as-text:{column}"] == 12
    assert told("inspect", tmp_path / "d")["assumptions"][f"numbers-as-text:{column}"] == 12
    notes = [one for one in call("validate", *source)[1]["problems"] if one["code"] == "assumption"]
    assert notes[0]["details"]["kinds"][f"numbers-as-text:{column}"] == 12


@pytest.mark.parametrize("text", ["nan", "inf"])
def test_text_of_no_finite_number_is_counted_and_an_error_of_validate(
    call: Call, told: Call, tmp_path: Path, text: str
) -> None:
    source = write(tmp_path, rows_of("r", text), "json", "r")
    assert told("convert", *source, "--out", tmp_path / "d")["assumptions"]["numbers-as-text:r"] == 12
    code, found = call("validate", *source)
    assert code == 3
    assert {"nan": "nan-in-rewards", "inf": "infinite-in-rewards"}[text] in {one["code"] for one in found["problems"]}
