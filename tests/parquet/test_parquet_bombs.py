"""A Parquet file of a stranger that unfolds to a thousand times its size is refused; one that packs well is not."""

from __future__ import annotations

import io
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli import convert
from offline_cli.errors import UnsafeData
from offline_cli.parquet.bounds import check_bound

ROWS = 20_000
LONG = "x" * 5_000


def check(values: Any, *, beside: Any = None, **options: Any) -> None:
    stream = io.BytesIO()
    pq.write_table(pa.table({"item": values} | ({} if beside is None else {"beside": beside})), stream, **options)
    check_bound("test", lambda: nullcontext(stream), pq.read_metadata(stream), size=len(stream.getvalue()))


@pytest.mark.parametrize(
    ("values", "options"),
    [
        pytest.param(["y", *[LONG] * ROWS], {}, id="a short text, then a long one"),
        pytest.param(pa.array([[LONG]] * ROWS, pa.list_(pa.string(), 1)), {}, id="lists"),
        pytest.param([{"part": LONG}] * ROWS, {}, id="structs"),
        pytest.param([LONG] * ROWS, {"row_group_size": 2_000}, id="many row groups"),
    ],
)
def test_a_value_that_repeats_without_end_is_refused(values: Any, options: dict[str, Any]) -> None:
    with pytest.raises(UnsafeData) as caught:
        check(values, **options)
    assert caught.value.exit_code == 3


def test_numbers_that_repeat_without_end_are_refused() -> None:
    with pytest.raises(UnsafeData):
        check(pa.array([0.0]).take(pa.array(np.zeros(12 << 20, np.int8))), row_group_size=16 << 20)


def test_a_bomb_beside_a_larger_honest_column_is_refused() -> None:
    with pytest.raises(UnsafeData):
        check(["y", *[LONG] * (ROWS - 1)], beside=pa.array([f"{row % 2000:0400}" for row in range(ROWS)]))


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([f"{row:0400}" for row in range(ROWS)], id="texts that differ"),
        pytest.param([LONG * 50, *[str(row % 100) for row in range(ROWS)]], id="one long text among short ones"),
        pytest.param(["the same"] * ROWS, id="a short text that repeats"),
    ],
)
def test_honest_texts_are_no_bomb(values: list[str]) -> None:
    check(values)


def test_convert_refuses_a_bomb_and_leaves_nothing(tmp_path: Path) -> None:
    pq.write_table(pa.table({"item": pa.array([LONG.encode()] * ROWS)}), tmp_path / "a.parquet")
    with pytest.raises(UnsafeData) as caught:
        convert(str(tmp_path / "a.parquet"), str(tmp_path / "D"))
    assert caught.value.where.endswith("a.parquet")
    assert not (tmp_path / "D" / "manifest.json").exists()
