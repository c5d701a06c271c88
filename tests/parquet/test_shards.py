"""One Parquet file of a dataset: whole under its name or not there, in row groups that stream, read back as it was written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_bucket import FakeBucket
from gymnasium import spaces

from offline_cli import convert, validate
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.manifest import Manifest
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import MemoryLimitExceeded
from offline_cli.formats import parquet_files
from offline_cli.parquet.writing import BLOCK_BYTES, COMPRESSIONS, ShardWriter
from offline_cli.storage.locations import Location, open_location

Make = Callable[..., EpisodeBatch]
Write = Callable[..., Manifest]

KIB = 1 << 10
IMAGE = spaces.Box(0, 255, (12, 12, 3), np.uint8)
TABLE = pa.table({"x": list(range(1000)), "name": ["same"] * 1000})


def begun(folder: Location, **options: Any) -> ShardWriter:
    folder.join("data").make_folder()
    given: dict[str, Any] = {"compression": "none", **options}
    return ShardWriter(folder.join("data/a.parquet"), TABLE.schema, folder=folder, **given)


# ---- writing ----


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_tables_are_read_back_in_their_order_with_checked_pages(place: Location, compression: str) -> None:
    writer = begun(place, compression=compression)
    for number in range(3):
        writer.write(TABLE.slice(100 * number, 100))
    size, _ = writer.commit()
    with place.join("data/a.parquet").open() as stream:
        found = pq.ParquetFile(stream, page_checksum_verification=True)
        assert found.read().equals(TABLE.slice(0, 300))
        assert found.metadata.num_row_groups == 3
        assert stream.seek(0, 2) == size


def test_a_large_table_is_cut_into_row_groups_that_stream(tmp_path: Path) -> None:
    table = pa.table({"x": np.random.default_rng(0).random(5 * BLOCK_BYTES // 8), "name": pa.nulls(5 * BLOCK_BYTES // 8)})
    writer = ShardWriter(
        open_location(tmp_path / "a.parquet"), table.schema, folder=open_location(tmp_path), compression="none"
    )
    writer.write(table)
    writer.commit()
    found = pq.read_metadata(tmp_path / "a.parquet")
    sizes = [found.row_group(group).total_byte_size for group in range(found.num_row_groups)]
    assert len(sizes) >= 5
    assert max(sizes) <= 2 * BLOCK_BYTES


# ---- what we write, we read, however well it packs ----


def still(make_batch: Make, steps: int) -> EpisodeBatch:
    """An episode in which nothing moves."""
    batch = make_batch((steps,), observation_space=IMAGE)
    batch.obs[:] = 0  # type: ignore[call-overload]  # the leaf of a Box
    return batch


@pytest.fixture
def packed(tmp_path: Path, make_batch: Make, write_dataset: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset whose shard unfolds to far more than its size."""
    write_dataset(open_location(tmp_path / "P"), still(make_batch, 900), format="episodes", observation_space=IMAGE)
    monkeypatch.setattr(parquet_files, "BIG", 64 * KIB)
    return tmp_path / "P"


def test_a_shard_of_a_dataset_is_read_and_valid_however_well_it_packs(packed: Path, tmp_path: Path) -> None:
    assert sum(batch.num_steps for batch in Dataset.open(packed).batches()) == 900
    assert validate(str(packed), deep=True).passed
    assert convert(str(packed), str(tmp_path / "copy")).steps == 900


def test_a_row_group_beyond_the_memory_limit_is_refused(packed: Path) -> None:
    with pytest.raises(MemoryLimitExceeded) as caught:
        list(Dataset.open(packed).batches(memory_limit=900 * KIB))  # twice what it unfolds to
    assert caught.value.exit_code == 6
    assert len(list(Dataset.open(packed).batches(memory_limit=1500 * KIB))) == 1


# ---- shards that are not those that were written ----


def test_of_a_large_remote_shard_only_the_columns_asked_for_are_fetched(
    tmp_path: Path, make_batch: Make, write_dataset: Write
) -> None:
    image = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    write_dataset(open_location(tmp_path / "D"), make_batch((200, 300), observation_space=image), observation_space=image)
    written = {f"bucket/{file.relative_to(tmp_path)}": file.read_bytes() for file in (tmp_path / "D").rglob("*.*")}
    bucket = FakeBucket.holding(written)
    place = Location(bucket, "bucket/D", "s3://bucket/D")
    with Dataset.open(place).plain() as tables:
        (table,) = tables
    assert table["length"].to_pylist() == [200, 300]
    assert sum(map(len, written.values())) > 10_000_000
    assert sum(end - start for _, start, end in bucket.gets) < 300_000
