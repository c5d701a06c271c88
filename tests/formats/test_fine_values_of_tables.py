"""Values of Parquet columns that float64 and microseconds cannot hold: ids of many digits, times in nanoseconds."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadMapping
from offline_cli.tally import Reject

MAPPING = '[columns]\neps_id = "ep"\nt = "t"\nobs = ["x"]\nactions = "a"\n'
Read = Callable[..., tuple[Any, EpisodeBatch]]


def write(path: Path, ep: Any, t: Any) -> Path:
    rows = len(ep)
    columns = {"ep": ep, "t": t, "x": np.arange(rows, dtype=np.float32), "a": np.arange(rows) % 2}
    pq.write_table(pa.table(columns), path)
    return path


def test_ids_of_more_digits_than_float64_has_are_episodes_of_their_own(read_table: Read, tmp_path: Path) -> None:
    ids = [Decimal(12345678901234567890 + row // 4) for row in range(12)]
    _, batch = read_table(write(tmp_path / "a.parquet", pa.array(ids, pa.decimal128(38, 0)), np.arange(12) % 4), MAPPING)
    assert [name.rpartition("-")[2] for name in batch.ids] == [str(12345678901234567890 + at) for at in range(3)]
    assert batch.lengths.tolist() == [4, 4, 4]


def test_a_column_of_lists_names_no_episode(read_table: Read, tmp_path: Path) -> None:
    with pytest.raises(BadMapping):
        read_table(write(tmp_path / "a.parquet", pa.array([[0], [0], [1]]), np.arange(3)), MAPPING)


@pytest.mark.parametrize("kind", [pa.duration("ns"), pa.time64("ns"), pa.timestamp("ns")])
def test_steps_that_are_less_than_a_microsecond_apart_are_in_order(kind: pa.DataType, read_table: Read, tmp_path: Path) -> None:
    times = pa.array(np.array([300, 100, 200], np.int64), pa.int64()).cast(kind)
    _, batch = read_table(write(tmp_path / "a.parquet", ["e"] * 3, times), MAPPING)
    assert np.ravel(batch.obs).tolist()[:3] == [1.0, 2.0, 0.0]


def test_files_that_write_times_in_other_units_are_one_table(read_table: Read, tmp_path: Path) -> None:
    folder = tmp_path / "rides"
    folder.mkdir()
    write(folder / "a.parquet", ["a"] * 3, pa.array([100_000_123, 200_000_123, 300_000_123], pa.timestamp("ns")))
    write(folder / "b.parquet", ["b"] * 3, pa.array([1, 2, 3], pa.timestamp("us")))
    _, batch = read_table(folder, MAPPING)
    assert batch.lengths.tolist() == [3, 3]


def test_bad_rows_are_kept_although_reading_ends_before_the_last_row(read_table: Read, write_lines: Any) -> None:
    kept: list[Reject] = []
    lines = [f"e{row // 4},{row % 4},{'bad' if row == 1 else '0.5'},1" for row in range(20)]
    read_table(write_lines("a.csv", "ep,t,x,a", *lines), MAPPING, on_error="quarantine", limit=1, keep=kept.extend)
    assert "row 1" in " ".join(reject.where for reject in kept)
