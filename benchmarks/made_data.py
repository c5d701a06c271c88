"""Larger files from RLlib's small recordings: the same rows again and again, each time with new episode ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from offline_cli.columns import Columns

__all__ = ["packed_columns", "packed_files", "sample_batches"]

ROW_GROUP = 100_000  # rows
NEXT = 1_000_003  # added to the ids of SampleBatch lines for each copy


def packed_columns(source: Path, folder: Path, *, copies: int, files: int) -> list[str]:
    """`copies` of all rows under `source`, in `files` Parquet files of a few row groups."""
    table = pa.concat_tables(map(pq.read_table, sorted(source.rglob("*.parquet"))), promote_options="default")
    made = []
    for file in range(files):
        parts = [_renamed(table, f"{file}.{copy}") for copy in range(copies // files)]
        made.append(str(folder / f"packed-{file}.parquet"))
        pq.write_table(pa.concat_tables(parts), made[-1], row_group_size=ROW_GROUP)
    return made


def packed_files(source: Path, folder: Path, *, copies: int) -> list[str]:
    """`copies` of each Parquet file under `source`, as small as it is there."""
    made = []
    for copy in range(copies):
        for number, file in enumerate(sorted(source.rglob("*.parquet"))):
            made.append(str(folder / f"run-{copy}-{number:06d}.parquet"))
            pq.write_table(_renamed(pq.read_table(file), str(copy)), made[-1])
    return made


def _renamed(table: pa.Table, prefix: str) -> pa.Table:
    place = table.schema.get_field_index(Columns.EPS_ID)
    return table.set_column(place, Columns.EPS_ID, pc.binary_join_element_wise(prefix, table[Columns.EPS_ID], "-"))


def sample_batches(source: Path, target: Path, *, copies: int) -> int:
    """`copies` of all lines of the file `source` in the file `target`; gives the steps in it."""
    lines = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    with target.open("w", encoding="utf-8") as out:
        for copy in range(copies):
            for line in lines:
                renamed = {name: _with_new_ids(part, copy) for name, part in line["policy_batches"].items()}
                out.write(json.dumps({**line, "policy_batches": renamed}) + "\n")
    return copies * sum(int(line["count"]) for line in lines)


def _with_new_ids(part: dict[str, Any], copy: int) -> dict[str, Any]:
    return {**part, Columns.EPS_ID: [id_ + copy * NEXT for id_ in part[Columns.EPS_ID]]}
