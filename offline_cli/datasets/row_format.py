"""The two row formats: their interface for writers and readers, how shards are read, and `episodes`, one row per episode.

`columns`, one row per step, is in `step_rows.py`. A shard is streamed by row groups: as batches of whole episodes, as their
rows, or as plain columns, one row per episode. A shard that contradicts its manifest or spaces raises BadData with its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import BatchDecoder, encode_batch
from offline_cli.episodes.fit import check_shapes
from offline_cli.errors import PROBLEM, BadData, BadEpisode
from offline_cli.parquet.reading import MEMORY_LIMIT, OpenShard, read_row_groups
from offline_cli.spaces import Space, describe, same_space, tree_from_lists
from offline_cli.storage.locations import Location
from offline_cli.tally import Rejects, Tally

FIX: Final = "write the dataset again from its source"
PLAIN_ROWS: Final = 1 << 20  # rows per piece of plain columns
OF_AGENTS: Final = (Columns.AGENT_ID, Columns.MODULE_ID)
PLAIN_SCHEMA: Final = pa.schema(
    {
        Columns.EPS_ID: pa.string(),
        Columns.LENGTH: pa.int64(),
        Columns.RETURN: pa.float64(),
        Columns.TERMINATED: pa.bool_(),
        Columns.TRUNCATED: pa.bool_(),
        **dict.fromkeys(OF_AGENTS, pa.string()),
    }
)
"""The plain columns: metadata of an episode without its steps; agent and module ids may be null."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of E whole episodes, as stored in a shard."""

    table: Any  # pa.Table
    starts: NDArray[Any]  # (E+1,) int64: the rows of episode e are starts[e]:starts[e+1]


class RowFormat(ABC):
    """A row format for a dataset's spaces. Tables are pa.Tables; all tables of a dataset have one schema.

    Reading raises BadData for a damaged shard, or one whose columns do not fit the spaces; MemoryLimitExceeded.
    """

    name: ClassVar[str]
    has_steps: ClassVar[bool]  # a row is a step; otherwise an episode
    plain_from: ClassVar[Any]  # pa.Schema of the columns from which PLAIN_SCHEMA is computed

    def __init__(
        self,
        observation_space: Space | None,
        action_space: Space | None,
        tally: Tally | None = None,
        *,
        keep: Sequence[str] | None = None,
        target_steps: int = 1,
        memory_limit: int = MEMORY_LIMIT,
        declared: bool = False,
    ) -> None:
        """`keep`: extra model outputs to read, and "infos"; None: all. `target_steps`: row groups of steps are joined until a
        batch has as many steps. `memory_limit`: maximum bytes for a decompressed row group. `declared`: reject episodes whose
        own spaces differ.
        """
        self.spaces = (observation_space, action_space)
        self.tally = Tally() if tally is None else tally
        self.keep, self.target_steps, self.memory_limit, self.declared = keep, target_steps, memory_limit, declared

    # ---- interface of a format; tables hold whole episodes ----

    @abstractmethod
    def prepare(self, batch: EpisodeBatch) -> EpisodeBatch:
        """Convert `batch` to its stored form. Raises BadEpisode if it does not fit the spaces."""

    @abstractmethod
    def table(self, batch: EpisodeBatch, *, where: str) -> Any:
        """The table of a prepared batch; `where`: for errors. Raises BadEpisode; BadData for values that cannot be encoded."""

    def adopt(self, schema: Any) -> None:  # noqa: B027  nothing to do if all tables have one schema
        """Use the pa.Schema of an existing shard for all further tables. Raises BadEpisode if it differs from theirs."""

    @abstractmethod
    def wrong_columns(self, schema: Any) -> list[str]:
        """Describe how a shard's pa.Schema differs from the one for the spaces; empty if it does not."""

    @abstractmethod
    def columns(self, schema: Any) -> list[str]:
        """The columns that `batches` needs."""

    @abstractmethod
    def batches(self, rows: Rows, numbers: Sequence[int] | NDArray[Any], *, where: str) -> Iterator[EpisodeBatch]:
        """Decode the episodes of `rows`, in order. `numbers`: the row numbers in the shard. Raises BadData."""

    @abstractmethod
    def plain(self, rows: Rows, *, where: str) -> Any:
        """The plain columns, one row per episode; null where a column of `plain_from` is missing. Raises BadData."""

    # ---- rows of episodes ----

    def rows_of(self, batch: EpisodeBatch) -> NDArray[Any]:
        """(E,) the number of rows of each episode."""
        return batch.lengths if self.has_steps else np.ones(len(batch), np.int64)

    def starts(self, ids: Any) -> NDArray[Any]:
        """(E+1,) the rows at which episodes start: every row, or for step rows each change in the id column `ids`."""
        rows = len(ids)
        if not self.has_steps or not rows:
            return np.arange(rows + 1)
        ids = ids.combine_chunks()
        ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
        changes = pc.not_equal(ids[1:], ids[:-1]).fill_null(True).to_numpy(zero_copy_only=False)
        return np.concatenate([[0], np.flatnonzero(changes) + 1, [rows]]).astype(np.int64)

    def whole(self, tables: Iterable[Any], target_rows: int) -> Iterator[Rows]:
        """Split and join tables into pieces of whole episodes; pieces of steps have at least `target_rows` rows."""
        pending, rows = list[Any](), 0
        for table in tables:
            if not self.has_steps:
                yield Rows(table, np.arange(table.num_rows + 1))
                continue
            pending.append(table)
            rows += table.num_rows
            if rows < target_rows or not table.num_rows:
                continue
            pending = [joined := pa.concat_tables(pending)]
            starts = self.starts(joined.column(Columns.EPS_ID))
            if len(starts) > 2:  # the last episode may continue
                end = int(starts[-2])
                yield Rows(joined.slice(0, end), starts[:-1])
                pending, rows = [joined.slice(end)], rows - end
        if rows:
            joined = pa.concat_tables(pending)
            yield Rows(joined, self.starts(joined.column(Columns.EPS_ID)))

    # ---- an opened shard ----

    def read(self, file: OpenShard, location: Location) -> Iterator[EpisodeBatch]:
        """Batches of the shard's episodes, in order."""
        self.check_columns(file, location)
        first, names = 0, self.columns(file.schema_arrow)
        for rows in self.whole(self._tables(file, location, names), self.target_steps):
            numbers = range(first, first := first + rows.table.num_rows)
            yield from self.batches(rows, numbers, where=location.url)

    def read_rows(self, file: OpenShard, location: Location) -> Iterator[Rows]:
        """The rows of whole episodes as stored, with all columns."""
        self.check_columns(file, location)
        return self.whole(self._tables(file, location), 1)

    def read_plain(self, file: OpenShard, location: Location, *, agents: bool = True) -> Any:
        """A pa.Table of PLAIN_SCHEMA, one row per episode. Steps are not decoded, so agents are null for `episodes`.

        `agents`: read agent and module ids; otherwise they may be null.
        """
        wanted = pa.schema([one for one in self.plain_from if agents or one.name not in OF_AGENTS])
        _refuse(differing_columns(file.schema_arrow, wanted), location)
        pieces = self.whole(self._tables(file, location, wanted.names), PLAIN_ROWS)
        return pa.concat_tables([PLAIN_SCHEMA.empty_table(), *(self.plain(rows, where=location.url) for rows in pieces)])

    def read_starts(self, file: OpenShard, location: Location) -> NDArray[Any]:
        """(E+1,) the rows at which the shard's episodes start."""
        self.check_columns(file, location)
        tables = [*self._tables(file, location, [Columns.EPS_ID])]
        return self.starts(pa.chunked_array([one for table in tables for one in table.column(0).chunks], pa.string()))

    def read_group(self, file: OpenShard, location: Location, group: int) -> Any:
        """The pa.Table of a row group, with the columns that `batches` needs."""
        (table,) = self._tables(file, location, self.columns(file.schema_arrow), [group])
        return table

    def check_columns(self, file: OpenShard, location: Location) -> None:
        """Raise BadData, naming every difference, unless the shard's columns fit the spaces."""
        _refuse(self.wrong_columns(file.schema_arrow), location)

    def _tables(
        self, file: OpenShard, location: Location, names: Sequence[str] | None = None, groups: Sequence[int] | None = None
    ) -> Iterator[Any]:
        return read_row_groups(file, location, columns=names, groups=groups, memory_limit=self.memory_limit)


def _refuse(wrong: Sequence[str], location: Location) -> None:
    if wrong:
        what = f"the columns differ from the manifest: {'; '.join(wrong)}"
        raise BadData(what, where=location.url, fix=FIX, details={PROBLEM: "shard-columns"})


def differing_columns(have: Any, want: Any) -> list[str]:
    """Describe the columns of pa.Schema `want` that `have` lacks, has twice, or has with another type."""
    wrong = []
    for column in want:
        kinds = [one.type for one in have if one.name == column.name]
        if kinds != [column.type]:
            wrong.append(f"column {column.name!r} is {' and '.join(map(str, kinds)) or 'missing'}, not {column.type}")
    return wrong


# ---- episodes ----

ITEM: Final = pa.schema([pa.field(Columns.ITEM, pa.binary())])


class EpisodeRows(RowFormat):
    """One row per episode: its bytes (`episodes.codec`), and fixed plain columns by which other tools can filter."""

    name, has_steps = "episodes", False
    plain_from = pa.schema([field for field in PLAIN_SCHEMA if field.name not in OF_AGENTS])

    def prepare(self, batch: EpisodeBatch) -> EpisodeBatch:
        """Return `batch` unchanged after checking its shapes."""
        check_shapes(batch, *self.spaces)
        return batch

    def table(self, batch: EpisodeBatch, *, where: str) -> Any:
        """See RowFormat. BadData names episode, step and key."""
        columns = [
            pa.array(encode_batch(batch, where=where, tally=self.tally), pa.binary()),
            pa.array(batch.ids, pa.string()),
            pa.array(batch.lengths),
            pa.array(batch.returns),
            pa.array(np.ascontiguousarray(batch.terminated)),
            pa.array(np.ascontiguousarray(batch.truncated)),
        ]
        return pa.Table.from_arrays(columns, schema=pa.schema([*ITEM, *self.plain_from]))

    def wrong_columns(self, schema: Any) -> list[str]:
        """See RowFormat. Plain columns are not read back, so not checked."""
        return differing_columns(schema, ITEM)

    def columns(self, schema: Any) -> list[str]:
        """Only the packed bytes."""
        return [Columns.ITEM]

    def batches(self, rows: Rows, numbers: Sequence[int] | NDArray[Any], *, where: str) -> Iterator[EpisodeBatch]:
        """See RowFormat.

        The spaces replace those in the bytes, and turn lists into tuples. Raises BadData, naming the row, for invalid bytes,
        and naming the episode if keys or shapes differ from the spaces.
        """
        items = rows.table.column(Columns.ITEM)
        if items.null_count:
            raise BadData(f"{items.null_count} values of column 'item' are null", where=where, fix=FIX)
        for batch in self._decoder.decode(items, where=lambda row: f"{where} row {numbers[row]}"):
            shaped = self._with_spaces(batch, where)
            if self.keep is not None:
                extra = {name: tree for name, tree in shaped.extra.items() if name in self.keep}
                shaped = replace(shaped, extra=extra, infos=shaped.infos if Columns.INFOS in self.keep else None)
            yield shaped

    def plain(self, rows: Rows, *, where: str) -> Any:
        """See RowFormat. Agent and module ids are null: only the packed bytes hold them."""
        nobody = pa.nulls(rows.table.num_rows, pa.string())
        columns = [nobody if name in OF_AGENTS else rows.table.column(name) for name in PLAIN_SCHEMA.names]
        return pa.table(columns, schema=PLAIN_SCHEMA)

    @cached_property
    def _decoder(self) -> BatchDecoder:
        """Kept, because it caches layouts."""
        return BatchDecoder(Rejects(), Tally())

    def _with_spaces(self, batch: EpisodeBatch, where: str) -> EpisodeBatch:
        """`batch` with the manifest's spaces. If these are `declared`, the episodes' own spaces must be equal, except for
        observation bounds; action bounds define the meaning of an action.
        """
        observations, actions = self.spaces
        try:
            check_shapes(batch, observations, actions)
        except BadEpisode as err:
            raise BadData(f"not in the manifest's spaces: {err.what}", where=f"{where}, {err.where}", fix=FIX) from err
        own_obs, own = batch.observation_space, batch.action_space
        other = own_obs is not None and observations is not None and describe(own_obs) != describe(observations)
        if self.declared and (other or (own is not None and actions is not None and not same_space(own, actions))):
            spaces = " and ".join(describe(space) for space in (own_obs, own) if space is not None)
            what = f"the manifest contradicts its shards: the episodes have the spaces {spaces}"
            raise BadData(what, where=f"{where}, episode {batch.ids[0]}", fix=FIX)
        return replace(
            batch,
            obs=batch.obs if observations is None else tree_from_lists(batch.obs, observations),
            actions=batch.actions if actions is None else tree_from_lists(batch.actions, actions),
            observation_space=observations or own_obs,
            action_space=actions or own,
        )
