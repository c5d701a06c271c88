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

from offline_cli import convert, filter, merge, open_dataset, repack, split, validate
from offline_cli.errors import BadData, OfflineCliError

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


@pytest.mark.parametrize(
    ("column", "lie"),
    [("return", pl.lit(999.0)), ("length", pl.lit(77)), ("terminated", pl.lit(False)), ("truncated", pl.lit(True))],
)
def test_plain_columns_that_lie_are_not_passed_on(column: str, lie: pl.Expr, made: Made, tmp_path: Path) -> None:
    source = made(range(4))
    restate(source, lie.alias(column))
    repack(source, tmp_path / "R")
    assert [one for one in validate(tmp_path / "R").problems if one.severity == "error"] == []
    assert open_dataset(tmp_path / "R")[3].get_return() == 3


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_an_id_that_comes_twice_although_the_plain_columns_have_it_once_is_refused(
    on_error: str, made: Made, tmp_path: Path
) -> None:
    source = made([1.0] * 3)
    restate(source, pl.col("item").first().alias("item"))
    with pytest.raises(BadData, match="two episodes have the id episode-0, and had not when the sources were looked through"):
        filter(source, tmp_path / "F", where="length > 0", on_error=on_error)
    assert not (tmp_path / "F" / "manifest.json").exists()


def test_an_id_that_comes_again_in_another_source_is_refused_too(made: Made, tmp_path: Path) -> None:
    source, other = made([1.0] * 3), made([1.0] * 3, name="E")
    restate(other, (pl.col("eps_id") + "-of-another").alias("eps_id"))
    with pytest.raises(BadData, match="two episodes have the id episode-0"):
        filter([source, other], tmp_path / "F", where="length > 0")
    assert not (tmp_path / "F" / "manifest.json").exists()


def test_a_merge_still_drops_what_comes_twice(made: Made, tmp_path: Path) -> None:
    result = merge([made([1.0] * 3), made([1.0] * 3, name="E")], tmp_path / "M")
    assert (result.episodes, result.duplicates_dropped) == (3, 3)
