"""Row groups that are encoded apart make the bytes that one writer of Arrow's makes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli.files.locations import open_location
from offline_cli.parquet import shard_writing
from offline_cli.parquet.row_group_cuts import parquet_options
from offline_cli.parquet.shard_writing import COMPRESSIONS, ShardWriter

SCHEMA = pa.schema(
    [
        ("eps_id", pa.string()),
        ("agent_id", pa.string()),
        ("t", pa.int64()),
        ("obs", pa.list_(pa.float32(), 3)),
        ("image", pa.struct([("left", pa.list_(pa.uint8(), 4))])),
        ("rewards", pa.float64()),
        ("infos", pa.string()),
        ("terminateds", pa.bool_()),
    ],
    metadata={"kind": "made"},
)


def table(rows: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    obs = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(3 * rows, np.float32)), 3)
    left = pa.FixedSizeListArray.from_arrays(pa.array(rng.integers(0, 255, 4 * rows, np.uint8)), 4)
    columns = [
        pa.array([f"{seed}-{row // 7}" for row in range(rows)], pa.string()),
        pa.nulls(rows, pa.string()),
        pa.array(np.arange(rows)),
        obs,
        pa.StructArray.from_arrays([left], ["left"]),
        pa.array(rng.random(rows)),
        pa.array([None if row % 3 else "x" * (row % 50) for row in range(rows)], pa.string()),
        pa.array(rng.random(rows) > 0.5),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


@pytest.mark.parametrize("large", [0, 1 << 40])
@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=6),
    compression=st.sampled_from(COMPRESSIONS),
    is_plain=st.booleans(),
    cut=st.integers(20, 200),
)
def test_bytes_are_those_of_one_writer(
    large: int, sizes: list[int], compression: str, is_plain: bool, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("joined")
    tables = [table(rows, number) for number, rows in enumerate(sizes)]
    cuts = [[*[cut] * (rows // cut), *([rows % cut] if rows % cut or not rows else [])] for rows in sizes]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shard_writing, "LARGE", large)
        place = open_location(folder)
        writer = ShardWriter(place.join("a.parquet"), SCHEMA, folder=place, compression=compression, is_plain=is_plain)
        for one, rows in zip(tables, cuts, strict=True):
            writer.write(one, rows=rows)
        writer.commit()
    with pq.ParquetWriter(folder / "b.parquet", SCHEMA, **parquet_options(SCHEMA, compression, is_plain=is_plain)) as parquet:
        for one, rows in zip(tables, cuts, strict=True):
            first = 0
            for count in rows:
                parquet.write_table(one.slice(first, count), row_group_size=max(1, count))
                first += count
    assert (folder / "a.parquet").read_bytes() == (folder / "b.parquet").read_bytes()


def test_tables_are_encoded_beside_each_other_and_written_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the first two waits until the other is being encoded, too."""
    both, real = threading.Barrier(2, timeout=30), ShardWriter._encoded
    seen: list[int] = []

    def encoded(self: Any, tables: list[Any], rows: Any) -> Any:
        seen.append(len(rows))
        if len(seen) <= 2:
            both.wait()
        return real(self, tables, rows)

    monkeypatch.setattr(ShardWriter, "_encoded", encoded)
    place = open_location(tmp_path)
    writer = ShardWriter(place.join("a.parquet"), SCHEMA, folder=place, compression="zstd")
    for number in range(5):
        writer.write(table(10, number), rows=[10])
    writer.commit()
    ids = pq.read_table(tmp_path / "a.parquet").column("eps_id").to_pylist()
    assert [name.partition("-")[0] for name in ids] == [str(number) for number in range(5) for _ in range(10)]
