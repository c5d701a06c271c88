"""Dataset folders with one problem each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from faulty import Make, made

from offline_cli.tally import Reject


@made({"uncommitted": 1})
def a_dataset_that_is_being_written(make: Make) -> Path:
    folder = make.dataset()
    (folder / "manifest.json").rename(folder / "_writing.json")
    return folder


@made({"broken-manifest": 2})
def a_manifest_with_two_mistakes(make: Make) -> Path:
    return make.edit_manifest(make.dataset(), lambda found: found.update(complete="yes", compression=7))


@made({"missing-shard": 1})
def a_shard_that_is_gone(make: Make) -> Path:
    folder = make.dataset()
    next((folder / "data").iterdir()).unlink()
    return folder


@made({"shard-size": 1})
def a_shard_that_was_cut(make: Make) -> Path:
    folder = make.dataset()
    shard = next((folder / "data").iterdir())
    os.truncate(shard, shard.stat().st_size - 10)
    return folder


@made({"shard-hash": 1}, deep=True)
def a_shard_with_a_changed_byte(make: Make) -> Path:
    return flip(make.dataset())


def flip(folder: Path) -> Path:
    """Change a byte of the only shard: the last of what its first column holds."""
    shard = next((folder / "data").iterdir())
    chunk = pq.ParquetFile(shard).metadata.row_group(0).column(0)
    data = bytearray(shard.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    shard.write_bytes(data)
    return folder


@made({"shard-columns": 1})
def a_shard_without_actions(make: Make) -> Path:
    return make.rewrite_shard(make.dataset(format="columns"), lambda table: table.drop_columns(["actions"]))


@made({"count-mismatch": 2})
def a_manifest_that_counts_wrong(make: Make) -> Path:
    def change(found: dict[str, Any]) -> None:
        found["counts"].update(steps=13, terminated=2)
        found["shards"][0]["steps"] = 13

    return make.edit_manifest(make.dataset(), change)


@made({"unlisted-file": 1})
def a_file_that_the_manifest_does_not_list(make: Make) -> Path:
    folder = make.dataset()
    shard = next((folder / "data").iterdir())
    (folder / "data" / "copy.parquet").write_bytes(shard.read_bytes())
    return folder


@made({"leftover-file": 1})
def a_half_written_file(make: Make) -> Path:
    folder = make.dataset()
    (folder / "_part-1").write_bytes(b"PAR1")
    return folder


@made({"damaged-quarantine": 1, "quarantined-rows": 1}, deep=True)
def rows_set_aside_that_cannot_be_read(make: Make) -> Path:
    folder = make.dataset(rejects=[Reject("a", "bad-data", "cut", b"")])
    (folder / "quarantine" / "rows-000000.rejects").write_bytes(b"PAR1")
    return folder


@made({"lost-episodes": 3})
def a_dataset_whose_source_had_more_episodes(make: Make) -> Path:
    return make.dataset(commit={"episodes_lost": 3})


@made({"incomplete-dataset": 1})
def a_recording_that_was_interrupted(make: Make) -> Path:
    return make.dataset(commit={"complete": False})


@made({"quarantined-rows": 1})
def a_dataset_with_rows_set_aside(make: Make) -> Path:
    return make.dataset(rejects=[Reject("a", "bad-data", "cut", b"")], commit={"assumptions": {"missing-t": 2}})
