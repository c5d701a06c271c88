"""One shard as batches of whole episodes, or as plain columns, a row an episode; streamed by row groups.

Whatever of a shard is not what its manifest or its spaces say raises BadData with its name. Page checksums are compared while
reading (`parquet/`); its sha256 is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import EPISODE_COLUMNS, STEP_COLUMNS, Columns
from offline_cli.datasets import episode_tables, step_tables
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import BatchDecoder
from offline_cli.errors import PROBLEM, BadData
from offline_cli.parquet.arrow_trees import is_numeric
from offline_cli.parquet.bounds import MEMORY_LIMIT
from offline_cli.parquet.shards import OpenShard, read_row_groups
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import Rejects, Tally

__all__ = ["Blocks", "Rows", "ShardReader", "run_starts", "whole_episodes"]

FIX: Final = "write the dataset again from its source"


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of E whole episodes, as they are in a shard."""

    table: Any  # pa.Table
    starts: NDArray[np.int64]  # (E+1,): the rows of episode e are starts[e]:starts[e+1]


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
    memory_limit: int = MEMORY_LIMIT  # bytes that reading a row group may take, however well it is packed
    decoder: BatchDecoder = field(default_factory=lambda: BatchDecoder(Rejects(), Tally()))  # remembers layouts it has seen

    def read(self, file: OpenShard, location: Location) -> Iterator[EpisodeBatch]:
        """Batches of the episodes in an opened shard, in order. Raises BadData where it is damaged, or has other columns than
        its spaces ask for; MemoryLimitExceeded.
        """
        self.check_columns(file, location)
        tables = read_row_groups(file, location, columns=self._columns(file), memory_limit=self.memory_limit)
        if self.format == "columns":
            for rows in whole_episodes(tables, self.target_steps):
                yield self._stepped(rows, location)
            return
        first = 0
        for table in tables:
            yield from self._decoded(table, first, location)
            first += table.num_rows

    def rows(self, file: OpenShard, location: Location) -> Iterator[Rows]:
        """The rows of whole episodes as they are, with all their columns. Raises as `read` does."""
        self.check_columns(file, location)
        tables = read_row_groups(file, location, memory_limit=self.memory_limit)
        if self.format == "columns":
            yield from whole_episodes(tables, 1)
        else:
            yield from (Rows(table, np.arange(table.num_rows + 1)) for table in tables)

    def plain(self, file: OpenShard, location: Location, *, returns: bool = True, agents: bool = True) -> Any:
        """A pa.Table of PLAIN_SCHEMA, a row for each episode. Steps are not decoded: of `episodes`, agents are null.

        `returns`, `agents`: whether they are wanted; else they may be null. Raises BadData for columns that are missing.
        """
        stepwise = self.format == "columns"
        names = step_tables.FLAT_SCHEMA.names if stepwise else EPISODE_COLUMNS
        without = {Columns.ITEM, *(() if returns else [Columns.REWARDS]), *(() if agents else step_tables.OF_AGENTS)}
        wanted = [name for name in names if name not in without]
        like = step_tables.FLAT_SCHEMA if stepwise else episode_tables.EPISODE_SCHEMA
        _check(file.schema_arrow, pa.schema([like.field(name) for name in wanted]), location)
        tables = read_row_groups(file, location, columns=wanted, memory_limit=self.memory_limit)
        found = [episode_tables.PLAIN_SCHEMA.empty_table()]
        if stepwise:
            schema, where = episode_tables.PLAIN_SCHEMA, location.url
            steps = whole_episodes(tables, 1 << 20)
            found += (step_tables.plain_table(rows.table, rows.starts, schema, where) for rows in steps)
        else:
            found += map(episode_tables.with_agents, tables)
        return pa.concat_tables(found)

    # ---- parts of a shard ----

    def blocks(self, file: OpenShard, location: Location) -> Blocks:
        """Where the opened shard holds which episodes. Of `columns`, the ids of all steps are read. Raises as `read` does."""
        self.check_columns(file, location)
        if self.format != "columns":
            rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            return Blocks(np.arange(len(rows) + 1), np.cumsum([0, *rows]))
        groups, episodes, count, last = [0], [0], 0, None
        for group, table in enumerate(read_row_groups(file, location, columns=[Columns.EPS_ID])):
            ids = table.column(Columns.EPS_ID)
            if not len(ids):
                continue
            begins = ids[0] != last
            if begins and count:
                groups.append(group)
                episodes.append(count)
            count += len(run_starts(ids)) - (not begins)
            last = ids[-1]
        ends = ([file.num_row_groups], [count]) if count else ([], [])
        return Blocks(np.array(groups + ends[0]), np.array(episodes + ends[1]))

    def block(self, opening: Callable[[], OpenShard], location: Location, blocks: Blocks, number: int) -> list[EpisodeBatch]:
        """The episodes of one block of a shard, which `opening` gives, in order. Raises as `read` does."""
        file = opening()
        groups = range(int(blocks.groups[number]), int(blocks.groups[number + 1]))
        table = pa.concat_tables(list(read_row_groups(file, location, columns=self._columns(file), groups=groups)))
        if self.format != "columns":
            return list(self._decoded(table, int(blocks.episodes[number]), location))
        return [self._stepped(rows, location) for rows in whole_episodes([table], table.num_rows + 1)]

    def _columns(self, file: OpenShard) -> list[str]:
        """The columns of an opened shard that are read."""
        if self.format != "columns":
            return [Columns.ITEM]
        return [name for name in file.schema_arrow.names if self._is_wanted(name)]

    def _is_wanted(self, name: str) -> bool:
        if self.keep is None or name in (*STEP_COLUMNS, Columns.FINAL_OBS_ASSUMED):
            return True
        return Columns.INFOS in self.keep if name in step_tables.INFO_COLUMNS else name in self.keep

    def _stepped(self, rows: Rows, location: Location) -> EpisodeBatch:
        spaces = {"observation_space": self.observation_space, "action_space": self.action_space}
        return step_tables.from_table(rows.table, rows.starts, **spaces, where=location.url, keep=self.keep)

    def _decoded(self, table: Any, first: int, location: Location) -> Iterator[EpisodeBatch]:
        """`first`: row of the table in its file."""
        spaces: dict[str, Any] = {"observation_space": self.observation_space, "action_space": self.action_space}
        spaces["declared"] = self.declared
        for batch in episode_tables.from_table(table, first=first, where=location.url, decoder=self.decoder, **spaces):
            if self.keep is None:
                yield batch
                continue
            extra = {name: tree for name, tree in batch.extra.items() if name in self.keep}
            yield replace(batch, extra=extra, infos=batch.infos if Columns.INFOS in self.keep else None)

    # ---- its columns ----

    def check_columns(self, file: OpenShard, location: Location) -> None:
        """Raise BadData, naming every difference, unless the opened shard has the columns that its spaces ask for."""
        have = file.schema_arrow
        if self.format != "columns":
            _check(have, pa.schema([episode_tables.EPISODE_SCHEMA.field(Columns.ITEM)]), location)
            return
        assert self.observation_space is not None and self.action_space is not None, "a manifest of columns has spaces"  # noqa: PT018
        _check(have, step_tables.step_schema(self.observation_space, self.action_space), location)
        texts = [name for name in (*step_tables.INFO_COLUMNS, Columns.SOURCE_ID) if name in have.names]
        wrong = [
            f"column {name!r} is {have.field(name).type}, not text"
            for name in texts
            if not pa.types.is_string(have.field(name).type)
        ]
        infos = [name for name in texts if name in step_tables.INFO_COLUMNS]
        wrong += [f"of {' and '.join(step_tables.INFO_COLUMNS)} only {infos[0]}"] if len(infos) == 1 else []
        assumed = Columns.FINAL_OBS_ASSUMED
        if assumed in have.names and not pa.types.is_boolean(have.field(assumed).type):
            wrong.append(f"column {assumed!r} is {have.field(assumed).type}, not true or false")
        extra = [column for column in have if column.name not in (*STEP_COLUMNS, *texts, assumed)]
        wrong += [f"column {part.name!r} is {part.type}, which holds no numbers" for part in extra if not is_numeric(part.type)]
        _refuse_columns(wrong, location)


def _check(have: Any, want: Any, location: Location) -> None:
    """Raise BadData, naming every difference, unless pa.Schema `have` has all the columns of `want`, as it has them."""
    wrong = []
    for column in want:
        if column.name not in have.names:
            wrong.append(f"no column {column.name!r}")
        elif not have.field(column.name).type.equals(column.type):
            wrong.append(f"column {column.name!r} is {have.field(column.name).type}, not {column.type}")
    _refuse_columns(wrong, location)


def _refuse_columns(wrong: Sequence[str], location: Location) -> None:
    if wrong:
        what = f"other columns than the manifest says: {'; '.join(wrong)}"
        raise BadData(what, where=location.url, fix=FIX, details={PROBLEM: "shard-columns"})


# ---- where an episode ends and the next begins ----


def whole_episodes(tables: Iterable[Any], target_steps: int) -> Iterator[Rows]:
    """The rows of pa.Tables of steps again, cut where an episode ends, `target_steps` rows or more but for the last."""
    pending: list[Any] = []
    rows = 0  # that are pending
    for table in tables:
        pending.append(table)
        rows += table.num_rows
        if rows < target_steps or not table.num_rows:
            continue
        joined = pa.concat_tables(pending)
        starts = run_starts(joined.column(Columns.EPS_ID))
        pending = [joined]
        if len(starts) > 1:  # the last episode may go on
            end = int(starts[-1])
            yield Rows(joined.slice(0, end), starts)
            pending, rows = [joined.slice(end)], rows - end
    if rows:
        joined = pa.concat_tables(pending)
        yield Rows(joined, np.append(run_starts(joined.column(Columns.EPS_ID)), rows))


def run_starts(ids: Any) -> NDArray[np.int64]:
    """Rows at which another id begins, of a pa.ChunkedArray of texts."""
    if not len(ids):
        return np.zeros(0, np.int64)
    ids = ids.combine_chunks()
    ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
    changes = pc.not_equal(ids[1:], ids[:-1]).fill_null(True).to_numpy(zero_copy_only=False)
    return np.append(0, np.flatnonzero(changes) + 1).astype(np.int64)
