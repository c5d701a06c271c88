"""A table of up to 1 GB, its rows in any order, is converted within 1.5 GiB: the whole process, with all that it imports."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from offline_cli.datasets.dataset import Dataset

pytestmark = pytest.mark.nightly

LIMIT = 1 << 30
MOST = 1.5 * LIMIT  # of the process, with its libraries
GB = 10**9
OBS, ACTIONS = 20, 2
CHUNK = 1 << 16  # rows made at a time
BYTES = {"parquet": 106, "csv": 235}  # of a row, about
NEEDED = 5 * GB  # source, rows on disk, dataset
MAPPING = """
[columns]
eps_id = "ride"
t = "step"
obs = [{obs}]
actions = {actions}
rewards = "reward"
terminateds = "end"
"""


def numbers(rows: np.ndarray, column: int) -> np.ndarray:
    """(N,) float32 in [0, 1) that no compression makes smaller, each of them by row and column alone."""
    with np.errstate(over="ignore"):
        mixed = (rows.astype(np.uint64) * np.uint64(64) + np.uint64(column)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return ((mixed >> np.uint64(40)).astype(np.float64) / 2**24).astype(np.float32)


def shuffled(count: int, length: int, *, discrete: bool = False) -> Iterator[pa.Table]:
    """The rows 0 ... count-1 of episodes of `length` steps in a scattered order, some at a time."""
    stride = next(step for step in range(int(count * 0.618), count) if math.gcd(step, count) == 1)
    for first in range(0, count, CHUNK):
        rows = np.arange(first, min(count, first + CHUNK), dtype=np.int64) * stride % count
        columns: dict[str, Any] = {
            "ride": pa.array(rows // length).cast(pa.string()),
            "step": rows % length,
            "reward": numbers(rows, 63),
            "end": rows % length == length - 1,
        }
        columns |= {f"x{i}": numbers(rows, i) for i in range(OBS)}
        columns |= {f"a{i}": rows % 7 if discrete else numbers(rows, OBS + i) for i in range(ACTIONS)}
        yield pa.table(columns)


def write(path: Path, count: int, length: int, *, discrete: bool = False) -> Path:
    writer: Any = None
    for table in shuffled(count, length, discrete=discrete):
        if writer is None and path.suffix == ".csv":
            writer = pyarrow.csv.CSVWriter(path, table.schema)
        elif writer is None:
            writer = pq.ParquetWriter(path, table.schema, compression="none", use_dictionary=False)
        writer.write_table(table)
    writer.close()
    return path


@pytest.fixture
def convert(tmp_path: Path, measured: Callable[..., tuple[str, int]]) -> Callable[..., tuple[dict[str, Any], int]]:
    """A function that converts in a process of its own: the result, and the most memory that the process had."""

    def run(source: Path, *, discrete: bool = False) -> tuple[dict[str, Any], int]:
        obs = ", ".join(f'"x{i}"' for i in range(OBS))
        actions = '"a0"' if discrete else '["a0", "a1"]'
        (tmp_path / "rides.toml").write_text(MAPPING.format(obs=obs, actions=actions), encoding="utf-8")
        command = [sys.executable, "-m", "offline_cli", "convert", str(source), "--out", str(tmp_path / "out"), "--json"]
        command += ["--mapping", str(tmp_path / "rides.toml"), "--memory-limit", "1GiB", "--temp-dir", str(tmp_path)]
        out, peak = measured(command)
        return json.loads(out), peak

    free = shutil.disk_usage(tmp_path).free
    if free < NEEDED:
        pytest.skip(f"{free / 1e9:.1f} GB are free below {tmp_path}, and {NEEDED / 1e9:.0f} GB are needed")
    return run


def check_episodes(out: Path, count: int, length: int) -> None:
    """Every thousandth episode, value for value."""
    seen = 0
    for batch in Dataset.open(out).batches():
        for episode in range(0, len(batch), 1000):
            rows = int(batch.ids[episode].rpartition("-")[2]) * length + np.arange(length)
            obs = np.asarray(batch.obs)[batch.obs_starts[episode] :][:length].astype(np.float32)  # float64, where it was text
            rewards = batch.rewards[batch.starts[episode] :][:length].astype(np.float32)
            assert np.array_equal(obs, np.stack([numbers(rows, i) for i in range(OBS)], axis=1))
            assert np.array_equal(rewards, numbers(rows, 63))
        seen += batch.num_steps
    assert seen == count


@pytest.mark.parametrize(
    ("kind", "length", "size"),
    [pytest.param("parquet", 200, GB, marks=pytest.mark.nightly), ("parquet", 20, GB // 3), ("csv", 200, GB // 3)],
    ids=["a gigabyte of parquet", "short episodes", "csv"],
)
def test_a_large_table_in_any_order_converts_within_its_limit(
    kind: str, length: int, size: int, tmp_path: Path, convert: Callable[..., tuple[dict[str, Any], int]]
) -> None:
    count = size // BYTES[kind] // length * length
    source = write(tmp_path / f"rides.{kind}", count, length)
    assert source.stat().st_size > 0.95 * size
    result, peak = convert(source)
    assert (result["episodes"], result["steps"], result["rows_in"]) == (count // length, count, count)
    assert peak <= MOST, f"{peak / 2**20:.0f} MiB"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", source.name, "rides.toml"]
    check_episodes(tmp_path / "out", count, length)
