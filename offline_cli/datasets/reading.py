"""One shard as batches of whole episodes, as their rows, or as plain columns, a row an episode; streamed by row groups.

Whatever of a shard is not what its manifest or its spaces say raises BadData with its name. Page checksums are compared while
reading (`parquet/`); its sha256 is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Final

import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.datasets.episode_tables import EpisodeRows
from offline_cli.datasets.row_format import OF_AGENTS, PLAIN_SCHEMA, RowFormat, Rows, differing_columns
from offline_cli.datasets.step_tables import StepRows
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import PROBLEM, BadData, UsageError
from offline_cli.parquet.bounds import MEMORY_LIMIT
from offline_cli.parquet.shards import OpenShard, read_row_groups
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import Tally

__all__ = ["RowFormat", "Rows", "ShardReader", "row_format"]

FIX: Final = "write the dataset again from its source"
PLAIN_ROWS: Final = 1 << 20  # of which plain columns are made at once


def row_format(
    name: str, observation_space: Space | None, action_space: Space | None, tally: Tally, *, declared: bool = False
) -> RowFormat:
    """The format of that name: `episodes`, or `columns`. Raises UsageError for another, and for columns without both spaces."""
    if name == EpisodeRows.name:
        return EpisodeRows(observation_space, action_space, tally, declared=declared)
    if name != StepRows.name:
        raise UsageError(f"no format {name!r}", where="format", fix="episodes or columns")
    if observation_space is None or action_space is None:
        fix = "give observation_space and action_space, or format='episodes'"
        raise UsageError("columns follow from the spaces, and these are not given", where="format='columns'", fix=fix)
    return StepRows(observation_space, action_space, tally)


@dataclass(frozen=True, slots=True)
class ShardReader:
    """How the shards of one dataset are read. Everything raises BadData for a shard that is damaged, or has other columns than
    its spaces ask for; MemoryLimitExceeded.
    """

    format: InitVar[str]  # "episodes" | "columns"
    observation_space: InitVar[Space | None]
    action_space: InitVar[Space | None]
    keep: Sequence[str] | None = None  # extra model outputs to read, and "infos"; None: all
    target_steps: int = 1  # `columns` only: row groups are joined until a batch has so many
    declared: InitVar[bool] = False  # `episodes` only: the episodes may not state other spaces
    memory_limit: int = MEMORY_LIMIT  # bytes that reading a row group may take, however well it is packed
    rows_as: RowFormat = field(init=False)

    def __post_init__(self, format: str, observation_space: Space | None, action_space: Space | None, declared: bool) -> None:
        rows_as = row_format(format, observation_space, action_space, Tally(), declared=declared)
        object.__setattr__(self, "rows_as", rows_as)

    def read(self, file: OpenShard, location: Location) -> Iterator[EpisodeBatch]:
        """Batches of the episodes in an opened shard, in order."""
        self.check_columns(file, location)
        first, names = 0, self.rows_as.columns(file.schema_arrow, self.keep)
        for rows in self.rows_as.whole(self._tables(file, location, names), self.target_steps):
            numbers = range(first, first := first + rows.table.num_rows)
            yield from self.rows_as.batches(rows, numbers, where=location.url, keep=self.keep)

    def rows(self, file: OpenShard, location: Location) -> Iterator[Rows]:
        """The rows of whole episodes as they are, with all their columns."""
        self.check_columns(file, location)
        return self.rows_as.whole(self._tables(file, location, None), 1)

    def plain(self, file: OpenShard, location: Location, *, returns: bool = True, agents: bool = True) -> Any:
        """A pa.Table of PLAIN_SCHEMA, a row for each episode. Steps are not decoded: of `episodes`, agents are null.

        `returns`, `agents`: whether they are wanted; else they may be null.
        """
        without = {*(() if returns else (Columns.REWARDS,)), *(() if agents else OF_AGENTS)}
        wanted = pa.schema([one for one in self.rows_as.plain_from if one.name not in without])
        _refuse(differing_columns(file.schema_arrow, wanted), location)
        pieces = self.rows_as.whole(self._tables(file, location, wanted.names), PLAIN_ROWS)
        found = [self.rows_as.plain(rows, where=location.url) for rows in pieces]
        return pa.concat_tables([PLAIN_SCHEMA.empty_table(), *found])

    def starts(self, file: OpenShard, location: Location) -> NDArray[Any]:
        """(E+1,) the rows of the shard at which its episodes start."""
        self.check_columns(file, location)
        ids = [table.column(Columns.EPS_ID).combine_chunks() for table in self._tables(file, location, [Columns.EPS_ID])]
        return self.rows_as.starts(pa.chunked_array(ids, pa.string()))

    def table(self, file: OpenShard, location: Location, group: int) -> Any:
        """The pa.Table of one row group, with the columns that `decoded` needs."""
        names = self.rows_as.columns(file.schema_arrow, self.keep)
        (table,) = read_row_groups(file, location, columns=names, groups=[group], memory_limit=self.memory_limit)
        return table

    def decoded(self, rows: Rows, numbers: NDArray[Any], location: Location) -> Iterator[EpisodeBatch]:
        """The episodes in rows of the shard at `location`; `numbers`: of these rows in it."""
        return self.rows_as.batches(rows, numbers, where=location.url, keep=self.keep)

    def check_columns(self, file: OpenShard, location: Location) -> None:
        """Raise BadData, naming every difference, unless the opened shard has the columns that its spaces ask for."""
        _refuse(self.rows_as.wrong_columns(file.schema_arrow), location)

    def _tables(self, file: OpenShard, location: Location, names: Sequence[str] | None) -> Iterator[Any]:
        return read_row_groups(file, location, columns=names, memory_limit=self.memory_limit)


def _refuse(wrong: Sequence[str], location: Location) -> None:
    if wrong:
        what = f"other columns than the manifest says: {'; '.join(wrong)}"
        raise BadData(what, where=location.url, fix=FIX, details={PROBLEM: "shard-columns"})
