"""What is resumed or passed through is of the source as it is: not of one that has changed, nor of plain columns that lie."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli import convert, open_dataset, repack, split, validate
from offline_cli.errors import OfflineCliError

Made = Callable[..., Path]


def test_a_split_is_not_resumed_after_its_source_has_grown(made: Made, tmp_path: Path) -> None:
    source, more = made(range(10)), made(range(5), name="E", first_id=10)
    split(source, tmp_path / "S", fractions={"train": 0.5, "val": 0.5})
    shutil.rmtree(tmp_path / "S" / "val")
    convert(more, source, append=True)
    with pytest.raises(OfflineCliError):
        split(source, tmp_path / "S", fractions={"train": 0.5, "val": 0.5}, resume=True)
    assert len(open_dataset(tmp_path / "S" / "train")) == 5
    assert not (tmp_path / "S" / "val" / "manifest.json").exists()


def restate(source: Path, column: pl.Expr) -> None:
    """Write the one shard of a dataset with another column, and its manifest to match."""
    (shard,) = (source / "data").iterdir()
    table = pq.read_table(shard)
    lying = pl.from_arrow(table).with_columns(column).to_arrow().cast(pa.schema(list(table.schema)))  # type: ignore[union-attr]
    pq.write_table(lying, shard, compression="zstd")
    manifest = json.loads((source / "manifest.json").read_text())
    manifest["shards"][0] |= {"bytes": shard.stat().st_size, "sha256": hashlib.sha256(shard.read_bytes()).hexdigest()}
    (source / "manifest.json").write_text(json.dumps(manifest))


def test_plain_columns_that_lie_are_what_validate_finds_before_and_after(made: Made, tmp_path: Path) -> None:
    source = made(range(4))
    restate(source, pl.lit(999.0).alias("return"))
    repack(source, tmp_path / "R")
    for folder in (source, tmp_path / "R"):
        assert "plain-columns-differ" in {one.code for one in validate(folder).problems}
