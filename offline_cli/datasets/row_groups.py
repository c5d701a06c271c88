"""Cuts a stream of batches into blocks and shards by episodes alone, so that data/ does not depend on how they arrived.

A block becomes one table, and so a row group: about 8 MiB of raw arrays, always whole episodes. A shard is a run of blocks
within the limits that the user gave. An episode larger than a limit has a block, or a shard, of its own. Episodes of two
structures are never joined: the block ends where the structure changes.

`KeptRows`, `RowsInTurn`: rows of episodes that are read and written in one format and not changed in between go from table to
table; making them again takes longer than all else.
"""

from __future__ import annotations

import math
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import methodcaller
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.multi_agent_episode import MultiAgentEpisode
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import UsageError
from offline_cli.parquet.shard_writing import BLOCK_BYTES
from offline_cli.spaces import same_space
from offline_cli.trees import Tree, flatten, leaves

__all__ = [
    "Block",
    "BlockCutter",
    "Episodes",
    "KeptRows",
    "ReadyRows",
    "RowsInTurn",
    "agents_of",
    "joined_batches",
    "raw_bytes",
    "same_content",
]

JOINED = 1 << 16  # single episodes and steps in a batch
ROW_OVERHEAD = 64  # bytes: id, t, reward and flags of a step
LARGE = 64 << 10  # bytes of one value in an info that are counted
MAY_BE_LARGE = frozenset({np.ndarray, bytes, str, list})
VALUES = methodcaller("values")
INFO_KEY_BYTES = 64  # of JSON text, an estimate: infos are counted by their keys, so as not to write them twice


@dataclass(frozen=True, slots=True)
class Block:
    """Whole episodes that become one table."""

    batch: EpisodeBatch
    opens_shard: bool  # whether the first of them begins a new shard


class BlockCutter:
    """Takes batches, gives blocks; the same episodes in the same order give the same blocks, however they were batched."""

    def __init__(
        self,
        rows_of: Callable[[EpisodeBatch], NDArray[np.int64]],
        *,
        max_rows: int | None,
        max_bytes: int | None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """`rows_of`: (E,) table rows of each episode. Limits are per shard, bytes before compression; None: no limit."""
        self._rows_of = rows_of
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._block_bytes = block_bytes
        self._pending: list[EpisodeBatch] = []
        self._pending_bytes = 0
        self._shard_rows = 0
        self._shard_bytes = 0
        self._opens_shard = True

    @property
    def between_shards(self) -> bool:
        """Whether the next block opens a shard, so that the one before is complete."""
        return self._opens_shard

    def push(self, batch: EpisodeBatch) -> Iterator[Block]:
        """The blocks that `batch` completes."""
        if self._pending and not _same_structure(self._pending[-1], batch):
            yield from self.flush()
        sizes = np.concatenate([[0], np.cumsum(raw_bytes(batch))])
        rows = np.concatenate([[0], np.cumsum(self._rows_of(batch))])
        first = 0
        while first < len(batch):
            in_shard = self._fits_shard(sizes, rows, first)
            count = min(in_shard, _count(sizes, first, self._block_bytes - self._pending_bytes))
            if not count and not in_shard and self._shard_rows:
                yield from self._give_block()
                if not self._pending:
                    self._end_shard()
            elif not count and self._pending:
                yield from self._give_block()
            else:
                last = first + max(1, count)
                self._take(batch, first, last, int(sizes[last] - sizes[first]), int(rows[last] - rows[first]))
                first = last

    def begin_shard(self) -> Iterator[Block]:
        """The block of what is pending; whatever comes next is in a shard of its own."""
        yield from self.flush()
        self._end_shard()

    def flush(self) -> Iterator[Block]:
        """The block of what is pending, if anything is."""
        while self._pending:
            yield from self._give_block()

    def _end_shard(self) -> None:
        self._shard_rows = self._shard_bytes = 0
        self._opens_shard = True

    def _give_block(self) -> Iterator[Block]:
        if self._pending:
            batch = EpisodeBatch.concat(self._pending)
            self._pending, self._pending_bytes = [], 0
            opens, self._opens_shard = self._opens_shard, False
            yield Block(batch, opens)

    def _fits_shard(self, sizes: NDArray[Any], rows: NDArray[Any], first: int) -> int:
        by_rows = _count(rows, first, None if self._max_rows is None else self._max_rows - self._shard_rows)
        by_bytes = _count(sizes, first, None if self._max_bytes is None else self._max_bytes - self._shard_bytes)
        return min(by_rows, by_bytes)

    def _take(self, batch: EpisodeBatch, first: int, last: int, size: int, rows: int) -> None:
        self._pending.append(batch if last - first == len(batch) else batch.select(slice(first, last)))
        self._pending_bytes += size
        self._shard_bytes += size
        self._shard_rows += rows


def _count(sums: NDArray[Any], first: int, room: int | None) -> int:
    """How many episodes from `first` on fit into `room`, by running sums."""
    if room is None:
        return len(sums) - 1 - first
    return max(0, int(np.searchsorted(sums, sums[first] + room, side="right")) - 1 - first)


def _same_structure(left: EpisodeBatch, right: EpisodeBatch) -> bool:
    """Whether both can share a block; quick where they come from one reader, as nearly all do."""
    if left.observation_space is right.observation_space and left.action_space is right.action_space:
        return _signature(left) == _signature(right)
    return not left.structure_difference(right)


def _signature(batch: EpisodeBatch) -> list[tuple[str, Any, tuple[int, ...]]]:
    trees = (("obs", batch.obs), ("actions", batch.actions), *((f"extra {name}", tree) for name, tree in batch.extra.items()))
    found = [(path, leaf.dtype, leaf.shape[1:]) for name, tree in trees for path, leaf in flatten(tree, name)]
    return sorted(found, key=lambda part: part[0])


def raw_bytes(batch: EpisodeBatch) -> NDArray[np.int64]:
    """(E,) bytes of each episode before compression; observations count twice, as in a row, and infos are estimated."""
    step = ROW_OVERHEAD + 2 * _row_bytes(batch.obs) + _row_bytes(batch.actions) + sum(map(_row_bytes, batch.extra.values()))
    sizes: NDArray[np.int64] = (batch.lengths + 1) * step
    if batch.infos is not None:
        keys = np.fromiter(map(len, batch.infos), np.int64, len(batch.infos))
        told = INFO_KEY_BYTES * keys
        if not MAY_BE_LARGE.isdisjoint(map(type, chain.from_iterable(map(VALUES, batch.infos)))):
            told += np.fromiter(map(_large_bytes, batch.infos), np.int64, len(batch.infos))
        sizes = sizes + np.add.reduceat(told, batch.obs_starts[:-1])
    return sizes


def _large_bytes(info: Mapping[str, Any]) -> int:
    """Of an info's values that are LARGE or more: pictures, say, of which a few fill the memory."""
    size = 0
    for value in info.values():
        if type(value) in MAY_BE_LARGE:
            nbytes = value.nbytes if isinstance(value, np.ndarray) else len(value) * (8 if type(value) is list else 1)
            size += nbytes if nbytes >= LARGE else 0
    return size


def _row_bytes(tree: Tree) -> int:
    return sum(leaf.dtype.itemsize * math.prod(leaf.shape[1:]) for leaf in leaves(tree))


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


# ---- rows that are ready ----

BATCHES: Final = 16  # whose rows are kept


@dataclass(frozen=True, slots=True)
class ReadyRows:
    """The rows of the episodes of a batch, as the pa.Table that they were read from."""

    table: Any
    starts: NDArray[np.int64]  # (E+1,): the rows of episode e are starts[e]:starts[e+1]

    def of(self, chosen: NDArray[np.bool_]) -> ReadyRows:
        """Those of some of the (E,) episodes."""
        lengths = np.diff(self.starts)
        table = self.table.filter(pa.array(np.repeat(chosen, lengths)))
        return ReadyRows(table, np.concatenate([[0], np.cumsum(lengths[chosen])]))


class KeptRows:
    """The rows that the last batches were made from: a writer of the same format takes them as they are."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[EpisodeBatch, ReadyRows]] = OrderedDict()

    def keep(self, batch: EpisodeBatch, table: Any, starts: NDArray[np.int64]) -> None:
        """Keep the pa.Table that `batch` was made from; `starts`: the first row of each episode, and the number of rows."""
        if len(batch) and batch.t_started is None:
            self._kept[batch.ids[0]] = batch, ReadyRows(table, starts)
            if len(self._kept) > BATCHES:  # some were never asked for
                self._kept.popitem(last=False)

    def taken(self, batch: EpisodeBatch) -> ReadyRows | None:
        """The rows of `batch`, which are forgotten; None where they are not known, or the batch is not as it was read."""
        read, rows = self._kept.pop(batch.ids[0], (None, None)) if len(batch) else (None, None)
        return rows if read is not None and same_content(read, batch) else None


def same_content(left: EpisodeBatch, right: EpisodeBatch) -> bool:
    """Whether both are made of the same arrays, so that nothing has to be compared; False may mean equal ones."""
    if left.ids != right.ids or left.extra.keys() != right.extra.keys():
        return False
    if not (same_space(left.observation_space, right.observation_space) and same_space(left.action_space, right.action_space)):
        return False
    trees = ("starts", "obs", "actions", "rewards", "terminated", "truncated")
    pairs = [(getattr(left, name), getattr(right, name)) for name in trees]
    pairs += [(left.extra[name], right.extra[name]) for name in left.extra]
    others = ("infos", "agent_ids", "module_ids", "multi_agent_ids", "custom_data", "clock")
    return all(map(_same_leaves, pairs)) and all(getattr(left, name) is getattr(right, name) for name in others)


def _same_leaves(pair: tuple[Tree, Tree]) -> bool:
    here, there = (dict(flatten(tree)) for tree in pair)
    return here.keys() == there.keys() and all(leaf is there[path] for path, leaf in here.items())


class RowsInTurn:
    """Rows of the episodes that wait in a cutter, in their order; None for a batch whose rows have to be made."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, ReadyRows | None]] = deque()  # episodes, and their rows

    def push(self, episodes: int, rows: ReadyRows | None) -> None:
        """Add those of the next batch."""
        self._waiting.append((episodes, rows))

    def pull(self, episodes: int) -> Any:
        """The pa.Table of the next so many episodes, which leave; None where the rows of one have to be made."""
        pulled = list[ReadyRows | None]()
        while episodes:
            count, rows = self._waiting.popleft()
            if count > episodes:
                rest = None if rows is None else ReadyRows(rows.table, rows.starts[episodes:])
                self._waiting.appendleft((count - episodes, rest))
                count, rows = episodes, None if rows is None else ReadyRows(rows.table, rows.starts[: episodes + 1])
            pulled.append(rows)
            episodes -= count
        tables = [rows.table.slice(*_run(rows.starts)) for rows in pulled if rows is not None]
        if len(tables) < len(pulled) or any(not table.schema.equals(tables[0].schema) for table in tables):
            return None
        return pa.concat_tables(tables)


def _run(starts: NDArray[np.int64]) -> tuple[int, int]:
    return int(starts[0]), int(starts[-1] - starts[0])
