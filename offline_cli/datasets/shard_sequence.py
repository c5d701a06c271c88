"""The shards that a writer has finished and the current one, including those of an interrupted write.

A shard counts once it has its final name. Complete shards of an earlier writer are read again (`adopt`): their episodes pass
through the same row groups as when they were written, so that statistics are equal to the last bit. A shard that cannot be read
is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from offline_cli.datasets.file_names import DATA, shard_name
from offline_cli.datasets.manifest import Shard
from offline_cli.datasets.reading import ShardReader
from offline_cli.datasets.row_formats import RowFormat
from offline_cli.datasets.row_groups import BlockCutter
from offline_cli.datasets.statistics import StatisticsBuilder
from offline_cli.datasets.step_tables import EMPTY_INFOS_BYTES, with_empty_infos
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.files.locations import Location
from offline_cli.parquet import safety
from offline_cli.parquet.row_group_cuts import Cuts, cuts_of
from offline_cli.parquet.shards import OpenShard, ShardWriter, check_bound, is_plain, opened, read_row_groups
from offline_cli.parquet.trust import Hashing, Trust, fingerprint

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
        self._folder = folder
        self._generation = generation
        self._compression = compression
        self._guard = guard
        self._open: ShardWriter | None = None
        self._episodes = self._steps = 0  # in the open shard
        self.finished: list[Shard] = []
        self.schemas: list[Any] = []  # pa.Schema of each finished one
        self._schema: Any = None

    @property
    def next_path(self) -> str:
        """Path, below the dataset's folder, of the shard that is open or would be opened next."""
        return shard_name(self._generation, len(self.finished))

    def adopt(self, shard: Shard, schema: Any) -> None:
        """Count a shard that an earlier writer finished."""
        self.finished.append(shard)
        self.schemas.append(schema)

    def cuts_of(self, table: Any) -> Cuts | None:
        """How the pa.Table is to be written; None: not into the shard that is open."""
        if self._open is None:
            return cuts_of(table, self._compression)
        return None if self._open.is_plain else cuts_of(table, self._compression, self._open.held())

    def write(self, batch: EpisodeBatch, table: Any, cuts: Cuts) -> None:
        """Append the pa.Table of `batch`, cut as `cuts_of` says, to the open shard, or to a new one where none is open."""
        if self._open is None:
            self._schema = table.schema
            self._open = self._writer(self.next_path, table.schema, is_plain=cuts.is_plain)
        self._open.write(table, rows=cuts.rows)
        self._episodes += len(batch)
        self._steps += batch.num_steps

    def close(self) -> None:
        """Finish the open shard, if one is."""
        if self._open is None:
            return
        self._open.settle()
        with self._guard():
            size, digest = self._open.commit()
        shard = Shard(self.next_path, self._episodes, self._open.rows, self._steps, size, digest)
        self.adopt(shard, self._schema)
        self._open = None
        self._episodes = self._steps = 0

    def discard(self) -> None:
        """Discard the open shard."""
        if self._open is not None:
            self._open.discard()
            self._open = None

    def add_empty_infos(self, rows: RowFormat) -> None:
        """Write those finished shards again that lack columns which later ones have: those of infos."""
        for number, schema in enumerate(self.schemas):
            if rows.lacks(schema):
                self.rewrite(number)

    def rewrite(self, number: int) -> None:
        """Write finished shard `number` again, with empty infos."""
        shard = self.finished[number]
        place = self._folder.join(shard.path)
        writer: ShardWriter | None = None
        try:
            with opened(place, size=shard.bytes) as file:
                trust = Trust(shard.sha256)
                grown = check_bound(place, place.open, file.metadata, trust=trust).nbytes + shard.rows * EMPTY_INFOS_BYTES
                plain = is_plain(file) or grown > max(safety.MAX_BYTES, safety.MAX_RATIO * shard.bytes)
                for table in map(with_empty_infos, read_row_groups(file, place, trust=trust)):
                    writer = writer or self._writer(shard.path, table.schema, is_plain=plain)
                    writer.write(table, rows=[table.num_rows])
                    self.schemas[number] = table.schema
            assert writer is not None, "a finished shard has rows"
            writer.settle()
            with self._guard():
                size, digest = writer.commit()
        except BaseException:
            if writer is not None:
                writer.discard()
            raise
        self.finished[number] = Shard(shard.path, shard.episodes, shard.rows, shard.steps, size, digest)

    def _writer(self, path: str, schema: Any, *, is_plain: bool) -> ShardWriter:
        place = self._folder.join(path)
        return ShardWriter(place, schema, folder=self._folder, compression=self._compression, is_plain=is_plain)


@dataclass(frozen=True, slots=True)
class Adopted:
    """A shard that an earlier write finished."""

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

    `known`: its bytes and sha256, if they have been read. `said`: the sha256 in a manifest.
    `opening`: the shard, if it has been opened. Raises BadData, StorageError, and as `check_bound` does.
    """
    cutter = BlockCutter(rows.rows_of, max_rows=None, max_bytes=None)
    ids: list[str] = []
    steps = 0
    known = known or (None if said is None else fingerprint(place))  # no sha256 is known: it is hashed while it is read
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
