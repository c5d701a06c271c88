"""Rows that were set aside, as Parquet files under `quarantine/`: place, error code, reason and the row as it stood."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from offline_cli.storage.layout import QUARANTINE, QUARANTINE_PATH, quarantine_name
from offline_cli.storage.locations import Location
from offline_cli.storage.row_group_cuts import alone
from offline_cli.storage.shards import ShardWriter
from offline_cli.tally import Reject

__all__ = ["next_number", "quarantine_files", "write_rejects"]

SCHEMA = pa.schema([(name, pa.string()) for name in ("where", "code", "reason")] + [("raw", pa.binary())])
COMPRESSION = "zstd"


def write_rejects(folder: Location, rejects: Sequence[Reject], number: int) -> Location:
    """Write `rejects` as file `number` of dataset `folder`. Raises StorageError."""
    folder.join(QUARANTINE).make_folder()
    target = folder.join(quarantine_name(number))
    columns = [[getattr(reject, name) for reject in rejects] for name in SCHEMA.names]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=SCHEMA)
    cuts = alone(table, COMPRESSION)
    writer = ShardWriter(target, SCHEMA, folder=folder, compression=COMPRESSION, is_plain=cuts.is_plain)
    try:
        writer.write(table, rows=cuts.rows)
        writer.commit()
    except BaseException:
        writer.discard()
        raise
    return target


def quarantine_files(folder: Location) -> dict[int, Location]:
    """Files of rows set aside in dataset `folder`, by number; copies in folders below are somebody's."""
    where = folder.join(QUARANTINE)
    matches = {file: QUARANTINE_PATH.fullmatch(f"{QUARANTINE}/{file.name}") for file in where.children()}
    return {int(match["number"]): file for file, match in matches.items() if match}


def next_number(folder: Location) -> int:
    """The number after that of the last file of rows set aside."""
    return max(quarantine_files(folder), default=-1) + 1
