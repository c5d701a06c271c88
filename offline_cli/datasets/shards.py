"""Write the shards of a dataset: which episodes share a row group and a shard, and the shards themselves.

A stream of episodes is cut by episodes alone, so that data/ does not depend on how they arrived. Neighbours become one table,
and so a row group: about 8 MiB of raw arrays, and at most 8,192 whole episodes. A shard is a run of row groups within the
limits that the user gave. An episode larger than a limit has a row group, or a shard, of its own.

A shard is complete once it has its final name. `adopt` reads the plain columns of an earlier writer's complete shards; an
unreadable one is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.datasets.file_names import DATA, shard_name
from offline_cli.datasets.manifest import Shard
from offline_cli.datasets.row_format import RowFormat
from offline_cli.datasets.statistics import EpisodeStatistics
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.parquet.reading import fingerprint, opened
from offline_cli.parquet.writing import BLOCK_BYTES, ShardWriter
from offline_cli.storage.locations import Location
from offline_cli.trees import Tree, leaves

ROW_OVERHEAD: Final = 64  # bytes: id, t, reward and flags of a step
KEY_BYTES: Final = 64  # of one value in an info, as JSON text
BLOCK_EPISODES: Final = 1 << 13  # of a row group: packing takes kilobytes of each, however short


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive episodes of an added item."""

    item: Any  # a batch, or rows
    first: int
    last: int  # episodes first:last of it


class ShardSequence:
    """Writes the shards of one generation in order; at most one is open. Raises StorageError."""

    def __init__(
        self,
        folder: Location,
        generation: str,
        *,
        compression: str,
        guard: Callable[[], AbstractContextManager[None]],
        table_of: Callable[[Sequence[Piece]], tuple[Any, int, int]],
        max_rows: int | None,
        max_bytes: int | None,
    ) -> None:
        """`folder`: the dataset folder. `guard`: wraps each commit of a shard; may raise. `table_of`: makes the pa.Table of
        some pieces, and its numbers of episodes and steps. Limits are per shard, bytes before compression.
        """
        self._folder, self._generation, self._compression, self._guard = folder, generation, compression, guard
        self._table_of = table_of
        self._limits = [1 << 62 if most is None else most for most in (max_rows, max_bytes)]
        self._pending: list[Piece] = []  # of the next row group
        self._pending_bytes = self._waiting = 0  # of them, bytes and episodes
        self._rows = self._bytes = 0  # of the open shard, pending ones included
        self._open: ShardWriter | None = None
        self._episodes = self._steps = 0  # in the open shard
        self.finished: list[Shard] = []  # including an earlier writer's

    def add(self, item: Any, rows: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Add the E episodes of `item`; `rows` and `sizes`, (E,) each: their numbers of table rows and bytes."""
        ends, bytes_to = (np.concatenate([[0], np.cumsum(values)]) for values in (rows, sizes))
        max_rows, max_bytes = self._limits
        first = 0
        while first < len(rows):
            in_shard = min(_fitting(ends, first, max_rows - self._rows), _fitting(bytes_to, first, max_bytes - self._bytes))
            taken = min(in_shard, _fitting(bytes_to, first, BLOCK_BYTES - self._pending_bytes), BLOCK_EPISODES - self._waiting)
            if not taken and not in_shard and self._rows:
                self.close()
            elif not taken and self._pending:
                self.flush()
            else:
                last = first + max(1, taken)
                self._pending.append(Piece(item, first, last))
                size = int(bytes_to[last] - bytes_to[first])
                self._pending_bytes += size
                self._waiting += last - first
                self._bytes += size
                self._rows += int(ends[last] - ends[first])
                first = last

    def flush(self) -> None:
        """Write pending pieces as a row group."""
        if not self._pending:
            return
        pieces, self._pending, self._pending_bytes, self._waiting = self._pending, [], 0, 0
        table, episodes, steps = self._table_of(pieces)
        if self._open is None:
            place = self._folder.join(shard_name(self._generation, len(self.finished)))
            self._open = ShardWriter(place, table.schema, folder=self._folder, compression=self._compression)
        self._open.write(table)
        self._episodes += episodes
        self._steps += steps

    def close(self) -> None:
        """Finish the open shard, if any."""
        self.flush()
        if self._open is None:
            return
        self._open.settle()
        with self._guard():
            size, digest = self._open.commit()
        path = shard_name(self._generation, len(self.finished))
        self.finished.append(Shard(path, self._episodes, self._open.rows, self._steps, size, digest))
        self._open = None
        self._episodes = self._steps = self._rows = self._bytes = 0

    def discard(self) -> None:
        """Discard the open shard, if any."""
        if self._open is not None:
            self._open.discard()
            self._open = None


def _fitting(sums: NDArray[Any], first: int, room: int) -> int:
    """The number of episodes from `first` on that fit into `room`, by cumulative sums."""
    return max(0, int(np.searchsorted(sums, int(sums[first]) + room, side="right")) - 1 - first)


def raw_bytes(batch: EpisodeBatch) -> NDArray[np.int64]:
    """(E,) uncompressed bytes of each episode; observations count twice, as in step rows, and infos are estimated."""
    step = ROW_OVERHEAD + 2 * _row_bytes(batch.obs) + _row_bytes(batch.actions) + sum(map(_row_bytes, batch.extra.values()))
    sizes: NDArray[np.int64] = (batch.lengths + 1) * step
    if batch.infos is not None:
        sizes = sizes + np.add.reduceat(np.fromiter(map(_info_bytes, batch.infos), np.int64), batch.obs_starts[:-1])
    return sizes


def _info_bytes(info: Mapping[str, Any]) -> int:
    """An estimate; arrays such as images count with their size."""
    sizes = (getattr(one, "nbytes", len(one) if isinstance(one, str | bytes) else 0) for one in info.values())
    return sum(KEY_BYTES + size for size in sizes)


def _row_bytes(tree: Tree) -> int:
    return sum(leaf.dtype.itemsize * math.prod(leaf.shape[1:]) for leaf in leaves(tree))


@dataclass(frozen=True, slots=True)
class Adopted:
    """A shard finished by an earlier writer."""

    shard: Shard
    ids: tuple[str, ...]  # of its episodes, in order


def adopt(
    place: Location,
    rows: RowFormat,
    statistics: EpisodeStatistics,
    *,
    decode: bool = False,
) -> Adopted:
    """Take over the shard at `place`: add its episodes to `statistics`, and its schema to `rows`. Raises BadData, StorageError.

    `decode`: decode all steps too, which raises for damaged ones.
    """
    size, digest = fingerprint(place)
    with opened(place, size=size) as file:
        rows.adopt(file.schema_arrow)
        table = rows.read_plain(file, place, agents=False)
        for _ in rows.read(file, place) if decode else ():
            continue
        statistics.add_plain(table)
        ids, steps = table.column(Columns.EPS_ID).to_pylist(), sum(table.column(Columns.LENGTH).to_pylist())
        shard = Shard(f"{DATA}/{place.name}", len(ids), file.metadata.num_rows, steps, size, digest)
        return Adopted(shard, tuple(ids))
