"""Shards as batches of whole episodes, streamed by row groups, and checked against their manifest entries.

`ShardReader.plain` reads the plain columns of episodes alone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import EPISODE_COLUMNS, STEP_COLUMNS, Columns
from offline_cli.datasets import episode_tables, step_tables
from offline_cli.datasets.episode_runs import whole_episodes
from offline_cli.datasets.episode_tables import check_columns, check_further_columns
from offline_cli.datasets.row_groups import KeptRows
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import BatchDecoder
from offline_cli.errors import BadData
from offline_cli.parquet.bounds import MEMORY_LIMIT
from offline_cli.parquet.shards import OpenShard, opened, read_row_groups
from offline_cli.scopes import Scope, part_of
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.storage.timeouts import ReadingPool
from offline_cli.tally import Rejects, Tally

__all__ = ["BlockCache", "Blocks", "ShardReader"]

KEPT: Final = 4  # blocks, of some 8 MiB or one episode each
FIX = "write the dataset again from its source"


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The K runs of row groups of a shard that hold whole episodes, as short as they can be."""

    groups: NDArray[np.int64]  # (K+1,) block k is the row groups groups[k]:groups[k+1]
    episodes: NDArray[np.int64]  # (K+1,) and holds the episodes episodes[k]:episodes[k+1] of the shard


@dataclass(frozen=True, slots=True)
class ShardReader:
    """How the shards of one dataset are read."""

    format: str  # "episodes" | "columns"
    observation_space: Space | None
    action_space: Space | None
    keep: Sequence[str] | None = None  # extra model outputs to read, and "infos"; None: all
    target_steps: int = 1  # `columns` only: row groups are joined until a batch has so many
    declared: bool = False  # `episodes` only: the episodes may not state other spaces
    decoder: BatchDecoder = field(default_factory=lambda: BatchDecoder(Rejects(), Tally()))  # remembers layouts it has seen
    kept: KeptRows | None = None  # gets the rows of each batch
    ahead: bool = False  # of this machine, a row group is read while the caller has the one before

    def read(
        self,
        location: Location,
        *,
        rows: int | None = None,
        memory_limit: int = MEMORY_LIMIT,
        opening: AbstractContextManager[OpenShard] | None = None,
        scope: Scope | None = None,
        chosen: NDArray[np.bool_] | None = None,
    ) -> Iterator[EpisodeBatch]:
        """Batches of the episodes in the shard at `location`, in order.

        `rows`: what its manifest states. `memory_limit`: bytes that reading a row group may take, however well it is packed.
        `opening`: the shard, if it has been opened. `scope` owns it. `chosen`: (E,) those of its episodes that are wanted.
        Raises BadData, naming the shard, where it is missing, damaged, cut, or has other columns than its spaces ask for;
        MemoryLimitExceeded.
        """
        with part_of(scope) as held:
            file = held.enter(opening or opened(location))
            if rows is not None and file.metadata.num_rows != rows:
                what = f"the shard has {file.metadata.num_rows} rows, its manifest says {rows}"
                raise BadData(what, where=location.url, fix=FIX)
            self.check_columns(file, location)
            how: dict[str, Any] = {"memory_limit": memory_limit, "pool": self._pool(file, location, held)}
            tables = read_row_groups(file, location, columns=self.columns_of(file), **how)
            read = self._steps if self.format == "columns" else self._decoded
            yield from read(tables, location, chosen)

    def check_columns(self, file: OpenShard, location: Location) -> None:
        """Raise BadData, naming every difference, unless the opened shard has the columns that its spaces ask for."""
        if self.format != "columns":
            check_columns(file.schema_arrow, pa.schema([episode_tables.EPISODE_SCHEMA.field(Columns.ITEM)]), location)
            return
        assert self.observation_space is not None and self.action_space is not None, "a manifest of columns has spaces"  # noqa: PT018
        check_columns(file.schema_arrow, step_tables.step_schema(self.observation_space, self.action_space), location)
        check_further_columns(file.schema_arrow, location)

    def plain(
        self, file: OpenShard, location: Location, memory_limit: int, *, returns: bool, agents: bool, scope: Scope
    ) -> Iterator[Any] | None:
        """Tables of PLAIN_SCHEMA, a row for each episode of an opened shard; None where it lacks the columns."""
        wanted = self.plain_columns(returns=returns, agents=agents)
        known = {field.name: field.type for field in file.schema_arrow}
        like = episode_tables.PLAIN_SCHEMA if self.format != "columns" else step_tables.FLAT_SCHEMA
        if any(known.get(name) != like.field(name).type for name in wanted):
            return None
        pool = self._pool(file, location, scope)
        tables = read_row_groups(file, location, columns=wanted, memory_limit=memory_limit, pool=pool)
        if self.format == "columns":
            return (
                step_tables.plain_table(table, starts, episode_tables.PLAIN_SCHEMA, location.url)
                for table, starts in whole_episodes(tables, 1, look_ahead=True)
            )
        return (episode_tables.with_agents(table) for table in tables)

    def plain_columns(self, *, returns: bool, agents: bool) -> list[str]:
        """The columns that `plain` reads; `returns`, `agents`: those of returns, of agents and modules too."""
        names = step_tables.FLAT_SCHEMA.names if self.format == "columns" else EPISODE_COLUMNS
        without = {Columns.ITEM, *(() if returns else [Columns.REWARDS]), *(() if agents else step_tables.OF_AGENTS)}
        return [name for name in names if name not in without]

    def _steps(self, tables: Iterator[Any], location: Location, chosen: NDArray[np.bool_] | None) -> Iterator[EpisodeBatch]:
        episode = 0
        for table, starts in whole_episodes(tables, self.target_steps, look_ahead=self.ahead):
            if chosen is not None:
                wanted = chosen[episode : episode + len(starts) - 1]
                episode += len(starts) - 1
                if not wanted.any():
                    continue
                if not wanted.all():
                    lengths = np.diff(starts)
                    table = table.filter(pa.array(np.repeat(wanted, lengths)))
                    starts = np.concatenate([[0], np.cumsum(lengths[wanted])])
            batch = self._stepped(table, location, starts)
            if self.kept is not None:
                self.kept.keep(batch, table, batch.starts)
            yield batch

    def _stepped(self, table: Any, location: Location, starts: NDArray[np.int64] | None = None) -> EpisodeBatch:
        spaces = {"observation_space": self.observation_space, "action_space": self.action_space}
        return step_tables.from_table(table, **spaces, where=location.url, keep=self.keep, starts=starts)

    def blocks(self, file: OpenShard, location: Location) -> Blocks:
        """Where the opened shard holds which episodes. Of `columns`, the ids of all steps are read. Raises as `read` does."""
        self.check_columns(file, location)
        if self.format != "columns":
            rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            return Blocks(np.arange(len(rows) + 1), np.cumsum([0, *rows]))
        groups, episodes, count, last_id = [0], [0], 0, None
        tables = read_row_groups(file, location, columns=[Columns.EPS_ID])
        for group, table in enumerate(tables):
            if not table.num_rows:
                continue
            ids = table.column(Columns.EPS_ID).combine_chunks()
            ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
            begins = last_id is None or not last_id.equals(ids[0])
            if begins and count:
                groups.append(group)
                episodes.append(count)
            count += int(begins) + int(pc.sum(pc.not_equal(ids[1:], ids[:-1])).as_py() or 0)
            last_id = ids[-1]
        ends = ([file.num_row_groups], [count]) if count else ([], [])
        return Blocks(np.array(groups + ends[0]), np.array(episodes + ends[1]))

    def block(self, file: OpenShard, location: Location, blocks: Blocks, number: int) -> list[EpisodeBatch]:
        """The episodes of one block of the opened shard, in order. Raises as `read` does."""
        groups = range(int(blocks.groups[number]), int(blocks.groups[number + 1]))
        tables = read_row_groups(file, location, columns=self.columns_of(file), groups=groups)
        if self.format != "columns":
            return list(self._decoded(tables, location, first=int(blocks.episodes[number])))
        return [self._stepped(pa.concat_tables(list(tables)), location)]

    def columns_of(self, file: OpenShard) -> list[str]:
        """The columns of an opened shard that are read."""
        if self.format != "columns":
            return [Columns.ITEM] if self.kept is None else list(EPISODE_COLUMNS)
        return [name for name in file.schema_arrow.names if self._is_wanted(name)]

    def _is_wanted(self, name: str) -> bool:
        if self.keep is None or name in (*STEP_COLUMNS, Columns.FINAL_OBS_ASSUMED):
            return True
        return Columns.INFOS in self.keep if name in step_tables.INFO_COLUMNS else name in self.keep

    def _pool(self, file: OpenShard, location: Location, scope: Scope) -> ReadingPool | None:
        """What reads ahead, where that is wanted."""
        return scope.enter(ReadingPool(1)) if (self.ahead or not location.is_local) and file.num_row_groups > 1 else None

    def _decoded(
        self, tables: Iterator[Any], location: Location, chosen: NDArray[np.bool_] | None = None, *, first: int = 0
    ) -> Iterator[EpisodeBatch]:
        """`first`: row of the first table in its file."""
        for table in tables:
            rows, first = np.arange(first, first + table.num_rows), first + table.num_rows
            if chosen is not None and not (wanted := chosen[rows]).all():
                table, rows = table.filter(pa.array(wanted)), rows[wanted]
            read = 0
            for batch in episode_tables.from_table(
                table,
                rows=rows,
                where=location.url,
                decoder=self.decoder,
                observation_space=self.observation_space,
                action_space=self.action_space,
                declared=self.declared,
            ):
                if self.kept is not None:
                    self.kept.keep(batch, table.slice(read, len(batch)), np.arange(len(batch) + 1))
                read += len(batch)
                yield batch if self.keep is None else _kept(batch, self.keep)


class BlockCache:
    """Where shards have their blocks, and the last few blocks that were read. It is pickled without either."""

    def __init__(self) -> None:
        self._blocks: dict[str, Blocks] = {}  # by URL of the shard
        self._held: OrderedDict[tuple[str, int], list[EpisodeBatch]] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[BlockCache], tuple[()]]:
        return BlockCache, ()

    def read(
        self,
        place: Location,
        reader: ShardReader,
        opening: Callable[[], AbstractContextManager[OpenShard]],
        count: int,
        episodes: NDArray[np.int64],
    ) -> list[tuple[NDArray[np.int64], EpisodeBatch]]:
        """These episodes of the shard at `place`, in parts, each with its places in `episodes`.

        The shard is opened if a part of it has to be read. Raises what `ShardReader.read` raises; BadData for a shard that has
        not `count` episodes.
        """
        with self._lock, ExitStack() as stack:
            file = cache(lambda: stack.enter_context(opening()))
            if place.url not in self._blocks:
                self._blocks[place.url] = reader.blocks(file(), place)
            blocks = self._blocks[place.url]
            if blocks.episodes[-1] != count:
                what = f"the shard holds {blocks.episodes[-1]} episodes, its manifest says {count}"
                raise BadData(what, where=place.url, fix=FIX)
            of_block, found = np.searchsorted(blocks.episodes, episodes, side="right") - 1, []
            for number in np.unique(of_block).tolist():
                batches = self._held.pop((place.url, number), None)
                if batches is None:
                    batches = reader.block(file(), place, blocks, number)
                self._held[place.url, number] = batches
                if len(self._held) > KEPT:
                    self._held.popitem(last=False)
                rows = np.flatnonzero(of_block == number)
                wanted, first = episodes[rows] - blocks.episodes[number], np.cumsum([0, *map(len, batches)])
                of_batch = np.searchsorted(first, wanted, side="right") - 1
                for one in np.unique(of_batch).tolist():
                    at = np.flatnonzero(of_batch == one)
                    found.append((rows[at], batches[one].select(wanted[at] - first[one])))
        return found


def _kept(batch: EpisodeBatch, keep: Sequence[str]) -> EpisodeBatch:
    extra = {name: tree for name, tree in batch.extra.items() if name in keep}
    return replace(batch, extra=extra, infos=batch.infos if Columns.INFOS in keep else None)
