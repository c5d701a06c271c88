"""Complete shards of an earlier writing, read again to go on after them; refuses shards that cannot be read.

Their episodes pass through the same blocks as when they were written, so that statistics come out the same to the last bit.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from offline_cli.storage.blocks import BlockCutter
from offline_cli.storage.layout import DATA
from offline_cli.storage.locations import Location
from offline_cli.storage.manifest import Shard
from offline_cli.storage.reading import ShardReader
from offline_cli.storage.row_formats import RowFormat
from offline_cli.storage.shards import OpenShard, opened
from offline_cli.storage.statistics import StatisticsBuilder
from offline_cli.storage.trust import Hashing, Trust, fingerprint

__all__ = ["Adopted", "adopt"]


@dataclass(frozen=True, slots=True)
class Adopted:
    """A shard that an earlier writing finished."""

    shard: Shard
    schema: Any  # pa.Schema
    ids: tuple[str, ...]  # of its episodes, in order


def adopt(
    place: Location,
    reader: ShardReader,
    rows: RowFormat,
    statistics: StatisticsBuilder,
    *,
    known: tuple[int, str] | None = None,
    said: str | None = None,
    opening: AbstractContextManager[OpenShard] | None = None,
) -> Adopted:
    """Read the shard at `place`, add its episodes to `statistics`, its columns to `rows`.

    `known`: its bytes and sha256, if they have been read. `said`: the sha256 that a manifest says it has.
    `opening`: the shard, if it has been opened. Raises BadData, StorageError, and as `check_bound` does.
    """
    cutter = BlockCutter(rows.rows_of, max_rows=None, max_bytes=None)
    ids: list[str] = []
    steps = 0
    known = known or (None if said is None else fingerprint(place))  # nothing is said: it is hashed while it is read
    with opening or opened(place, size=known and known[0]) as file:
        schema, row_count = file.schema_arrow, file.metadata.num_rows
        rows.adopt(schema)
        hashing = Hashing(file.stream, place)
        trust = None if said is None or known is None else Trust(said, found=known[1])
        with nullcontext() if known else hashing:
            for batch in reader.read(place, trust=trust, opening=nullcontext(file)):
                ids += batch.ids
                steps += batch.num_steps
                for block in cutter.push(batch):
                    statistics.add(block.batch)
            size, digest = known or (file.size, hashing.digest())
    for block in cutter.flush():
        statistics.add(block.batch)
    return Adopted(Shard(f"{DATA}/{place.name}", len(ids), row_count, steps, size, digest), schema, tuple(ids))
