"""The two row formats: what writers and readers ask of one, how a shard is read, and `episodes`, where a row is an episode.

`columns`, where a row is a step, is in `step_rows.py`. A shard is read as batches of whole episodes, as their rows, or as plain
columns, a row an episode; streamed by row groups. Whatever of a shard is not what its manifest or its spaces say raises BadData
with its name.
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
PLAIN_ROWS: Final = 1 << 20  # of which plain columns are made at once
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
"""What is known of an episode without its steps; ids of agent and module may be null."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of E whole episodes, as they are in a shard."""

    table: Any  # pa.Table
    starts: NDArray[Any]  # (E+1,) int64: the rows of episode e are starts[e]:starts[e+1]


class RowFormat(ABC):
    """One of the two, for a dataset's spaces. Tables are of pyarrow; those of one dataset have one schema.

    Reading raises BadData for a shard that is damaged, or has other columns than the spaces ask for; MemoryLimitExceeded.
    """

    name: ClassVar[str]
    has_steps: ClassVar[bool]  # whether a row is a step, and else an episode
    plain_from: ClassVar[Any]  # pa.Schema of the columns from which those of PLAIN_SCHEMA follow

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
        """`keep`: extra model outputs to read, and "infos"; None: all there are. `target_steps`: row groups of steps are joined
        until a batch has so many. `memory_limit`: bytes that reading a row group may take, however well it is packed.
        `declared`: episodes that say other spaces of their own are refused.
        """
        self.spaces = (observation_space, action_space)
        self.tally = Tally() if tally is None else tally
        self.keep, self.target_steps, self.memory_limit, self.declared = keep, target_steps, memory_limit, declared

    # ---- what each format does; tables are those of whole episodes ----

    @abstractmethod
    def prepare(self, batch: EpisodeBatch) -> EpisodeBatch:
        """`batch` as it will be stored. Raises BadEpisode where it does not fit the spaces."""

    @abstractmethod
    def table(self, batch: EpisodeBatch, *, where: str) -> Any:
        """The table of a prepared batch, bound for `where`. Raises BadEpisode; BadData for values that cannot be encoded."""

    def adopt(self, schema: Any) -> None:  # noqa: B027  nothing where all tables have one schema
        """Write tables of the pa.Schema of a shard that is there already. Raises BadEpisode where tables have another."""

    @abstractmethod
    def wrong_columns(self, schema: Any) -> list[str]:
        """How a shard's pa.Schema differs from what the spaces ask for, in words; empty where it does not."""

    @abstractmethod
    def columns(self, schema: Any) -> list[str]:
        """The columns that `batches` needs."""

    @abstractmethod
    def batches(self, rows: Rows, numbers: Sequence[int] | NDArray[Any], *, where: str) -> Iterator[EpisodeBatch]:
        """The episodes in rows, decoded, in their order. `numbers`: of the rows in their shard. Raises BadData."""

    @abstractmethod
    def plain(self, rows: Rows, *, where: str) -> Any:
        """The table of PLAIN_SCHEMA, a row an episode; columns are null that lack theirs of `plain_from`. Raises BadData."""

    # ---- which rows are an episode ----

    def rows_of(self, batch: EpisodeBatch) -> NDArray[Any]:
        """(E,) rows of each episode."""
        return batch.lengths if self.has_steps else np.ones(len(batch), np.int64)

    def starts(self, ids: Any) -> NDArray[Any]:
        """(E+1,) rows at which episodes start, by the column of their ids: where a row is a step, another id begins one."""
        rows = len(ids)
        if not self.has_steps or not rows:
            return np.arange(rows + 1)
        ids = ids.combine_chunks()
        ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
        changes = pc.not_equal(ids[1:], ids[:-1]).fill_null(True).to_numpy(zero_copy_only=False)
        return np.concatenate([[0], np.flatnonzero(changes) + 1, [rows]]).astype(np.int64)

    def whole(self, tables: Iterable[Any], target_rows: int) -> Iterator[Rows]:
        """The rows of tables again, in pieces that end where an episode does; of steps, at least `target_rows` each."""
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
            if len(starts) > 2:  # the last episode may go on
                end = int(starts[-2])
                yield Rows(joined.slice(0, end), starts[:-1])
                pending, rows = [joined.slice(end)], rows - end
        if rows:
            joined = pa.concat_tables(pending)
            yield Rows(joined, self.starts(joined.column(Columns.EPS_ID)))

    # ---- an opened shard ----

    def read(self, file: OpenShard, location: Location) -> Iterator[EpisodeBatch]:
        """Batches of the episodes in it, in order."""
        self.check_columns(file, location)
        first, names = 0, self.columns(file.schema_arrow)
        for rows in self.whole(self._tables(file, location, names), self.target_steps):
            numbers = range(first, first := first + rows.table.num_rows)
            yield from self.batches(rows, numbers, where=location.url)

    def read_rows(self, file: OpenShard, location: Location) -> Iterator[Rows]:
        """The rows of whole episodes as they are, with all their columns."""
        self.check_columns(file, location)
        return self.whole(self._tables(file, location), 1)

    def read_plain(self, file: OpenShard, location: Location, *, agents: bool = True) -> Any:
        """A pa.Table of PLAIN_SCHEMA, a row for each episode. Steps are not decoded: of `episodes`, agents are null.

        `agents`: whether they are wanted; else they may be null.
        """
        wanted = pa.schema([one for one in self.plain_from if agents or one.name not in OF_AGENTS])
        _refuse(differing_columns(file.schema_arrow, wanted), location)
        pieces = self.whole(self._tables(file, location, wanted.names), PLAIN_ROWS)
        return pa.concat_tables([PLAIN_SCHEMA.empty_table(), *(self.plain(rows, where=location.url) for rows in pieces)])

    def read_starts(self, file: OpenShard, location: Location) -> NDArray[Any]:
        """(E+1,) the rows of the shard at which its episodes start."""
        self.check_columns(file, location)
        tables = [*self._tables(file, location, [Columns.EPS_ID])]
        return self.starts(pa.chunked_array([one for table in tables for one in table.column(0).chunks], pa.string()))

    def read_group(self, file: OpenShard, location: Location, group: int) -> Any:
        """The pa.Table of one row group, with the columns that `batches` needs."""
        (table,) = self._tables(file, location, self.columns(file.schema_arrow), [group])
        return table

    def check_columns(self, file: OpenShard, location: Location) -> None:
        """Raise BadData, naming every difference, unless the opened shard has the columns that its spaces ask for."""
        _refuse(self.wrong_columns(file.schema_arrow), location)

    def _tables(
        self, file: OpenShard, location: Location, names: Sequence[str] | None = None, groups: Sequence[int] | None = None
    ) -> Iterator[Any]:
        return read_row_groups(file, location, columns=names, groups=groups, memory_limit=self.memory_limit)


def _refuse(wrong: Sequence[str], location: Location) -> None:
    if wrong:
        what = f"other columns than the manifest says: {'; '.join(wrong)}"
        raise BadData(what, where=location.url, fix=FIX, details={PROBLEM: "shard-columns"})


def differing_columns(have: Any, want: Any) -> list[str]:
    """In words, which columns of the second pa.Schema the first has not, has twice, or has in another type."""
    wrong = []
    for column in want:
        kinds = [one.type for one in have if one.name == column.name]
        if kinds != [column.type]:
            wrong.append(f"column {column.name!r} is {' and '.join(map(str, kinds)) or 'not there'}, not {column.type}")
    return wrong


# ---- episodes ----

ITEM: Final = pa.schema([pa.field(Columns.ITEM, pa.binary())])


class EpisodeRows(RowFormat):
    """One row per episode: its bytes (`episodes.codec`), and plain columns for other tools to filter by, always the same."""

    name, has_steps = "episodes", False
    plain_from = pa.schema([field for field in PLAIN_SCHEMA if field.name not in OF_AGENTS])

    def prepare(self, batch: EpisodeBatch) -> EpisodeBatch:
        """`batch` itself, whose shapes are those of the spaces."""
        check_shapes(batch, *self.spaces)
        return batch

    def table(self, batch: EpisodeBatch, *, where: str) -> Any:
        """See RowFormat: raises BadData naming episode, step and key."""
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
        """See RowFormat: plain columns are not read back."""
        return differing_columns(schema, ITEM)

    def columns(self, schema: Any) -> list[str]:
        """The bytes alone."""
        return [Columns.ITEM]

    def batches(self, rows: Rows, numbers: Sequence[int] | NDArray[Any], *, where: str) -> Iterator[EpisodeBatch]:
        """See RowFormat.

        The spaces replace those in the bytes, and make tuples of what the bytes hold as lists. Raises BadData, naming the row,
        for bytes that hold no episode, and naming the episode where keys or shapes are not those of the spaces.
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
        """See RowFormat: who acted is in the packed bytes alone."""
        nobody = pa.nulls(rows.table.num_rows, pa.string())
        columns = [nobody if name in OF_AGENTS else rows.table.column(name) for name in PLAIN_SCHEMA.names]
        return pa.table(columns, schema=PLAIN_SCHEMA)

    @cached_property
    def _decoder(self) -> BatchDecoder:
        """Remembers layouts that it has seen."""
        return BatchDecoder(Rejects(), Tally())

    def _with_spaces(self, batch: EpisodeBatch, where: str) -> EpisodeBatch:
        """`batch` with the manifest's spaces. Where these are `declared`, the episodes' own have to be the same, but for
        bounds of observations: those of actions decide what an action stands for.
        """
        observations, actions = self.spaces
        try:
            check_shapes(batch, observations, actions)
        except BadEpisode as err:
            raise BadData(f"not in the manifest's spaces: {err.what}", where=f"{where}, {err.where}", fix=FIX) from err
        own_obs, own = batch.observation_space, batch.action_space
        other = own_obs is not None and observations is not None and describe(own_obs) != describe(observations)
        if self.declared and (other or (own is not None and actions is not None and not same_space(own, actions))):
            said = " and ".join(describe(space) for space in (own_obs, own) if space is not None)
            what = f"the manifest contradicts its shards: the episodes say the spaces {said}"
            raise BadData(what, where=f"{where}, episode {batch.ids[0]}", fix=FIX)
        return replace(
            batch,
            obs=batch.obs if observations is None else tree_from_lists(batch.obs, observations),
            actions=batch.actions if actions is None else tree_from_lists(batch.actions, actions),
            observation_space=observations or own_obs,
            action_space=actions or own,
        )
