"""The shards of a dataset that is being written: which episodes share a row group and a shard, and the shards themselves.

A stream of episodes is cut by episodes alone, so that data/ does not depend on how they arrived. A block becomes one table, and
so a row group: about 8 MiB of raw arrays, always whole episodes. A shard is a run of blocks within the limits that the user
gave. An episode larger than a limit has a block, or a shard, of its own. Episodes of two structures are never joined: the
writer ends the block where the structure changes.

A shard counts once it has its final name. Of complete shards of an earlier writer the plain columns are read (`adopt`); one
that cannot be read is an error.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from offline_cli.episodes.multi_agent_episode import MultiAgentEpisode
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import UsageError
from offline_cli.parquet.reading import fingerprint, opened
from offline_cli.parquet.writing import BLOCK_BYTES, ShardWriter
from offline_cli.storage.locations import Location
from offline_cli.trees import Tree, leaves

__all__ = ["Adopted", "Block", "BlockCutter", "Episodes", "Piece", "ShardSequence", "adopt", "agents_of", "joined_batch"]
__all__ += ["joined_batches", "raw_bytes"]

JOINED: Final = 1 << 16  # single episodes and steps in a batch
ROW_OVERHEAD: Final = 64  # bytes: id, t, reward and flags of a step
KEY_BYTES: Final = 64  # of one value in an info, as JSON text


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring episodes of what was pushed."""

    item: Any  # a batch, or rows
    first: int
    last: int  # episodes first:last of it


@dataclass(frozen=True, slots=True)
class Block:
    """Whole episodes that become one table."""

    pieces: tuple[Piece, ...]
    opens_shard: bool  # whether the first of them begins a new shard


class BlockCutter:
    """Takes episodes, gives blocks; the same episodes in the same order give the same blocks, however they were batched."""

    def __init__(self, *, max_rows: int | None, max_bytes: int | None, block_bytes: int = BLOCK_BYTES) -> None:
        """Limits are per shard, bytes before compression; None: no limit."""
        self._max_rows, self._max_bytes, self._block_bytes = max_rows, max_bytes, block_bytes
        self._pending: list[Piece] = []
        self._pending_bytes = self._shard_rows = self._shard_bytes = 0
        self._opens_shard = True

    @property
    def between_shards(self) -> bool:
        """Whether the next block opens a shard, so that the one before is complete."""
        return self._opens_shard

    def push(self, item: Any, rows: NDArray[np.int64], sizes: NDArray[np.int64]) -> Iterator[Block]:
        """The blocks that the E episodes of `item` complete; (E,) their table rows and their bytes."""
        ends, bytes_to = (np.concatenate([[0], np.cumsum(values)]) for values in (rows, sizes))
        first, count = 0, len(rows)
        while first < count:
            in_shard = min(
                _count(ends, first, None if self._max_rows is None else self._max_rows - self._shard_rows),
                _count(bytes_to, first, None if self._max_bytes is None else self._max_bytes - self._shard_bytes),
            )
            taken = min(in_shard, _count(bytes_to, first, self._block_bytes - self._pending_bytes))
            if not taken and not in_shard and self._shard_rows:
                yield from self.begin_shard()
            elif not taken and self._pending:
                yield from self.flush()
            else:
                last = first + max(1, taken)
                self._pending.append(Piece(item, first, last))
                self._pending_bytes += int(bytes_to[last] - bytes_to[first])
                self._shard_bytes += int(bytes_to[last] - bytes_to[first])
                self._shard_rows += int(ends[last] - ends[first])
                first = last

    def begin_shard(self) -> Iterator[Block]:
        """The block of what is pending; whatever comes next is in a shard of its own."""
        yield from self.flush()
        self._shard_rows = self._shard_bytes = 0
        self._opens_shard = True

    def flush(self) -> Iterator[Block]:
        """The block of what is pending, if anything is."""
        if self._pending:
            pieces, self._pending, self._pending_bytes = tuple(self._pending), [], 0
            opens, self._opens_shard = self._opens_shard, False
            yield Block(pieces, opens)


def joined_batch(block: Block) -> EpisodeBatch:
    """The episodes of a block whose pieces are of batches."""
    parts = ((piece.item, piece.first, piece.last) for piece in block.pieces)
    return EpisodeBatch.concat(
        [one if last - first == len(one) else one.select(slice(first, last)) for one, first, last in parts]
    )


def _count(sums: NDArray[Any], first: int, room: int | None) -> int:
    """How many episodes from `first` on fit into `room`, by running sums."""
    if room is None:
        return len(sums) - 1 - first
    return max(0, int(np.searchsorted(sums, sums[first] + room, side="right")) - 1 - first)


def raw_bytes(batch: EpisodeBatch) -> NDArray[np.int64]:
    """(E,) bytes of each episode before compression; observations count twice, as in a row, and infos are estimated."""
    step = ROW_OVERHEAD + 2 * _row_bytes(batch.obs) + _row_bytes(batch.actions) + sum(map(_row_bytes, batch.extra.values()))
    sizes: NDArray[np.int64] = (batch.lengths + 1) * step
    if batch.infos is not None:
        sizes = sizes + np.add.reduceat(np.fromiter(map(_info_bytes, batch.infos), np.int64), batch.obs_starts[:-1])
    return sizes


def _info_bytes(info: Mapping[str, Any]) -> int:
    """An estimate: pictures, of which a few fill the memory, count as they are."""
    return sum(
        KEY_BYTES + (value.nbytes if isinstance(value, np.ndarray) else len(value) if isinstance(value, str | bytes) else 0)
        for value in info.values()
    )


def _row_bytes(tree: Tree) -> int:
    return sum(leaf.dtype.itemsize * math.prod(leaf.shape[1:]) for leaf in leaves(tree))


# ---- the shards themselves ----


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


# ---- single episodes ----

Episodes = (
    EpisodeBatch | SingleAgentEpisode | MultiAgentEpisode | Iterable[EpisodeBatch | SingleAgentEpisode | MultiAgentEpisode]
)


def joined_batches(episodes: Episodes) -> Iterator[EpisodeBatch]:
    """Batches as they come; between them, single episodes are joined. `episodes` may be one alone.

    Raises BadEpisode for neighbours that cannot be joined, UsageError for what is no episode.
    """
    single: list[SingleAgentEpisode] = []
    size = 0  # of these: steps and episodes
    if isinstance(episodes, EpisodeBatch | SingleAgentEpisode | MultiAgentEpisode):
        episodes = [episodes]
    if isinstance(episodes, str | bytes | os.PathLike) or not isinstance(episodes, Iterable) or _is_table(episodes):
        raise _no_episodes(episodes)
    for one in episodes:
        if not isinstance(one, EpisodeBatch | SingleAgentEpisode | MultiAgentEpisode):
            raise _no_episodes(one)
        parts = [] if isinstance(one, EpisodeBatch) else agents_of(one)
        single += parts
        size += len(parts) + sum(map(len, parts))
        if single and (isinstance(one, EpisodeBatch) or size >= JOINED):
            yield EpisodeBatch.from_episodes(single)
            single, size = [], 0
        if isinstance(one, EpisodeBatch):
            yield one
    if single:
        yield EpisodeBatch.from_episodes(single)


def agents_of(episode: SingleAgentEpisode | MultiAgentEpisode) -> list[SingleAgentEpisode]:
    """The episodes of its agents; of a single one itself."""
    return [episode] if isinstance(episode, SingleAgentEpisode) else list(episode.agent_episodes.values())


def _is_table(given: object) -> bool:
    """Whether it is of Polars, pandas or Arrow: such tables can be iterated, by column."""
    return type(given).__module__.split(".")[0] in ("polars", "pandas", "pyarrow")


def _no_episodes(given: object) -> UsageError:
    shown = f" {given!r}" if isinstance(given, str) else ""
    fix = "EpisodeBatches, SingleAgentEpisodes or MultiAgentEpisodes; of a dataset, open_dataset(...).batches()"
    if _is_table(given):
        fix = "write the table to a Parquet file, and `offline-cli convert` it (docs/tables.md)"
    return UsageError(f"a {type(given).__name__}{shown} where an episode is wanted", where="episodes", fix=fix)
