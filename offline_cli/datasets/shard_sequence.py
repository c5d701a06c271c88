"""The shards that a writer has finished and the current one, including those of an interrupted write.

A shard counts once it has its final name. Complete shards of an earlier writer are read again (`adopt`): their episodes pass
through the same row groups as when they were written, so that statistics are equal to the last bit. A shard that cannot be read
is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from offline_cli.columns import Columns
from offline_cli.datasets.file_names import DATA, shard_name
from offline_cli.datasets.manifest import Shard
from offline_cli.datasets.reading import ShardReader
from offline_cli.datasets.row_formats import RowFormat
from offline_cli.datasets.row_groups import BlockCutter, joined_batch, raw_bytes
from offline_cli.datasets.statistics import StatisticsBuilder
from offline_cli.parquet.shard_writing import ShardWriter
from offline_cli.parquet.shards import fingerprint, opened, read_row_groups
from offline_cli.storage.locations import Location

__all__ = ["Adopted", "ShardSequence", "adopt"]


class ShardSequence:
    """Shards of one generation in order of their numbers; at most one is open. Raises StorageError."""

    def __init__(
        self,
        folder: Location,
        generation: str,
        *,
        compression: str,
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`folder`: the dataset's. `guard`: around each moment in which a shard gets its name; may raise."""
        self._folder, self._generation, self._compression, self._guard = folder, generation, compression, guard
        self._open: ShardWriter | None = None
        self._schema: Any = None  # of the open shard
        self._episodes = self._steps = 0  # in the open shard
        self.finished: list[Shard] = []
        self._schemas: list[Any] = []  # pa.Schema of each finished one

    @property
    def next_path(self) -> str:
        """Path, below the dataset's folder, of the shard that is open or would be opened next."""
        return shard_name(self._generation, len(self.finished))

    def adopt(self, shard: Shard, schema: Any) -> None:
        """Count a shard that an earlier writer finished."""
        same = self._schemas and self._schemas[-1].equals(schema, check_metadata=True)
        self.finished.append(shard)
        self._schemas.append(self._schemas[-1] if same else schema)

    def write(self, table: Any, *, episodes: int, steps: int) -> None:
        """Append a pa.Table of whole episodes to the open shard, or to a new one where none is open."""
        if self._open is None:
            self._schema, self._open = table.schema, self._writer(self.next_path, table.schema)
        self._open.write(table)
        self._episodes += episodes
        self._steps += steps

    def close(self) -> None:
        """Finish the open shard, if one is."""
        if self._open is None:
            return
        self._open.settle()
        with self._guard():
            size, digest = self._open.commit()
        self.adopt(Shard(self.next_path, self._episodes, self._open.rows, self._steps, size, digest), self._schema)
        self._open = None
        self._episodes = self._steps = 0

    def discard(self) -> None:
        """Discard the open shard."""
        if self._open is not None:
            self._open.discard()
            self._open = None

    def complete(self, rows: RowFormat) -> None:
        """Write those finished shards again that lack columns which later ones have."""
        for number, schema in enumerate(self._schemas):
            if rows.lacks(schema):
                self.finished[number] = self._rewritten(self.finished[number], rows)

    def _rewritten(self, shard: Shard, rows: RowFormat) -> Shard:
        """A finished shard, written again with all columns."""
        place = self._folder.join(shard.path)
        writer: ShardWriter | None = None
        try:
            with opened(place, size=shard.bytes) as file:
                for table in map(rows.completed, read_row_groups(file, place)):
                    writer = writer or self._writer(shard.path, table.schema)
                    writer.write(table)
            assert writer is not None, "a finished shard has rows"
            writer.settle()
            with self._guard():
                size, digest = writer.commit()
        except BaseException:
            if writer is not None:
                writer.discard()
            raise
        return replace(shard, bytes=size, sha256=digest)

    def _writer(self, path: str, schema: Any) -> ShardWriter:
        return ShardWriter(self._folder.join(path), schema, folder=self._folder, compression=self._compression)


@dataclass(frozen=True, slots=True)
class Adopted:
    """A shard that an earlier write finished."""

    shard: Shard
    schema: Any  # pa.Schema
    ids: tuple[str, ...]  # of its episodes, in order


def adopt(place: Location, reader: ShardReader, rows: RowFormat, statistics: StatisticsBuilder) -> Adopted:
    """Read the shard at `place`, add its episodes to `statistics` and its columns to `rows`. Raises BadData, StorageError.

    Where `statistics` are of episodes alone, no step is decoded.
    """
    cutter = BlockCutter(max_rows=None, max_bytes=None)
    ids: list[str] = []
    steps = 0
    size, digest = fingerprint(place)
    with opened(place, size=size) as file:
        schema, row_count = file.schema_arrow, file.metadata.num_rows
        rows.adopt(schema)
        if not statistics.has_columns:
            table = reader.plain(file, place, agents=False)
            statistics.add_plain(table)
            ids, steps = table.column(Columns.EPS_ID).to_pylist(), sum(table.column(Columns.LENGTH).to_pylist())
        else:
            for batch in reader.read(file, place):
                ids += batch.ids
                steps += batch.num_steps
                for block in cutter.push(batch, rows.rows_of(batch), raw_bytes(batch)):
                    statistics.add(joined_batch(block))
    for block in cutter.flush():
        statistics.add(joined_batch(block))
    return Adopted(Shard(f"{DATA}/{place.name}", len(ids), row_count, steps, size, digest), schema, tuple(ids))
