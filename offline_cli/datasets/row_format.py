"""What writers and readers ask of a row format, and how a shard of it is read. There are two: a row is an episode
(`episode_rows.py`) or a step (`step_rows.py`); `dataset.row_format` gives one by name.

A shard is read as batches of whole episodes, as their rows, or as plain columns, a row an episode; streamed by row groups.
Whatever of a shard is not what its manifest or its spaces say raises BadData with its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import PROBLEM, BadData
from offline_cli.parquet.reading import MEMORY_LIMIT, OpenShard, read_row_groups
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import Tally

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
    def rows_of(self, batch: EpisodeBatch) -> NDArray[Any]:
        """(E,) rows of each episode."""

    @abstractmethod
    def prepare(self, batch: EpisodeBatch) -> EpisodeBatch:
        """`batch` as it will be stored. Raises BadEpisode where it does not fit the spaces."""

    @abstractmethod
    def table(self, batch: EpisodeBatch, *, where: str) -> Any:
        """The table of a prepared batch, bound for `where`. Raises BadData, BadEpisode."""

    def adopt(self, schema: Any) -> None:  # noqa: B027  nothing where all tables have one schema
        """Write tables of the pa.Schema of a shard that is there already. Raises BadEpisode where tables have another."""

    @abstractmethod
    def wrong_columns(self, schema: Any) -> list[str]:
        """How a shard's pa.Schema differs from what the spaces ask for, in words; empty where it does not."""

    @abstractmethod
    def columns(self, schema: Any) -> list[str]:
        """The columns that `batches` needs."""

    @abstractmethod
    def starts(self, ids: Any) -> NDArray[Any]:
        """(E+1,) rows at which episodes start, by the column of their ids."""

    @abstractmethod
    def whole(self, tables: Iterable[Any], target_rows: int) -> Iterator[Rows]:
        """The rows of tables again, in pieces that end where an episode does; of steps, at least `target_rows` each."""

    @abstractmethod
    def batches(self, rows: Rows, numbers: Sequence[int] | NDArray[Any], *, where: str) -> Iterator[EpisodeBatch]:
        """The episodes in rows, decoded, in their order. `numbers`: of the rows in their shard. Raises BadData."""

    @abstractmethod
    def plain(self, rows: Rows, *, where: str) -> Any:
        """The table of PLAIN_SCHEMA, a row an episode; columns are null that lack theirs of `plain_from`. Raises BadData."""

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
