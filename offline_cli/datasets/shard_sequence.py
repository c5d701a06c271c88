"""The shards that a writer has finished and the current one, including those of an interrupted write.

A shard counts once it has its final name. Of complete shards of an earlier writer the plain columns are read (`adopt`); one
that cannot be read is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from offline_cli.columns import Columns
from offline_cli.datasets.file_names import DATA, shard_name
from offline_cli.datasets.manifest import Shard
from offline_cli.datasets.row_format import RowFormat
from offline_cli.datasets.statistics import EpisodeStatistics
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.parquet.shards import fingerprint, opened
from offline_cli.parquet.writing import ShardWriter
from offline_cli.storage.locations import Location

__all__ = ["Adopted", "ShardSequence", "adopt"]


class ShardSequence:
    """Shards of one generation in order of their numbers; at most one is open. Raises StorageError."""

    def __init__(
        self, folder: Location, generation: str, *, compression: str, guard: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """`folder`: the dataset's. `guard`: around each moment in which a shard gets its name; may raise."""
        self._folder, self._generation, self._compression, self._guard = folder, generation, compression, guard
        self._open: ShardWriter | None = None
        self._episodes = self._steps = 0  # in the open shard
        self.finished: list[Shard] = []  # with those that an earlier writer finished

    @property
    def next_path(self) -> str:
        """Path, below the dataset's folder, of the shard that is open or would be opened next."""
        return shard_name(self._generation, len(self.finished))

    def write(self, table: Any, *, episodes: int, steps: int) -> None:
        """Append a pa.Table of whole episodes to the open shard, or to a new one where none is open."""
        if self._open is None:
            place = self._folder.join(self.next_path)
            self._open = ShardWriter(place, table.schema, folder=self._folder, compression=self._compression)
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
        self.finished.append(Shard(self.next_path, self._episodes, self._open.rows, self._steps, size, digest))
        self._open = None
        self._episodes = self._steps = 0

    def discard(self) -> None:
        """Discard the open shard."""
        if self._open is not None:
            self._open.discard()
            self._open = None


@dataclass(frozen=True, slots=True)
class Adopted:
    """A shard that an earlier write finished."""

    shard: Shard
    ids: tuple[str, ...]  # of its episodes, in order


def adopt(
    place: Location,
    rows: RowFormat,
    statistics: EpisodeStatistics,
    see: Callable[[EpisodeBatch], None] | None = None,
) -> Adopted:
    """Count the shard at `place`: its episodes in `statistics`, its columns in `rows`. Raises BadData, StorageError.

    Only `see`, which gets its episodes, has any step decoded.
    """
    size, digest = fingerprint(place)
    with opened(place, size=size) as file:
        rows.adopt(file.schema_arrow)
        table = rows.read_plain(file, place, agents=False)
        if see is not None:
            for batch in rows.read(file, place):
                see(batch)
        statistics.add_plain(table)
        ids, steps = table.column(Columns.EPS_ID).to_pylist(), sum(table.column(Columns.LENGTH).to_pylist())
        shard = Shard(f"{DATA}/{place.name}", len(ids), file.metadata.num_rows, steps, size, digest)
        return Adopted(shard, tuple(ids))
