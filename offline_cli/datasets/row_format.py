"""What writers and readers ask of a row format. There are two: a row is an episode (`episode_tables.py`) or a step
(`step_tables.py`). `reading.row_format` gives one by name.
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
from offline_cli.spaces import Space
from offline_cli.tally import Tally

__all__ = ["OF_AGENTS", "PLAIN_SCHEMA", "RowFormat", "Rows", "differing_columns"]

OF_AGENTS: Final = (Columns.AGENT_ID, Columns.MODULE_ID)
PLAIN_SCHEMA: Final = pa.schema(
    [
        pa.field(Columns.EPS_ID, pa.string()),
        pa.field(Columns.LENGTH, pa.int64()),
        pa.field(Columns.RETURN, pa.float64()),
        pa.field(Columns.TERMINATED, pa.bool_()),
        pa.field(Columns.TRUNCATED, pa.bool_()),
        *(pa.field(name, pa.string()) for name in OF_AGENTS),
    ]
)
"""What is known of an episode without its steps; ids of agent and module may be null."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of E whole episodes, as they are in a shard."""

    table: Any  # pa.Table
    starts: NDArray[Any]  # (E+1,) int64: the rows of episode e are starts[e]:starts[e+1]


class RowFormat(ABC):
    """One of the two, for a dataset's spaces. Tables are of pyarrow; those of one dataset have one schema."""

    name: ClassVar[str]
    plain_from: ClassVar[Any]  # pa.Schema of the columns from which those of PLAIN_SCHEMA follow

    def __init__(
        self, observation_space: Space | None, action_space: Space | None, tally: Tally, *, declared: bool = False
    ) -> None:
        """`declared`: episodes that state other spaces of their own are refused."""
        self.spaces, self.tally, self.declared = (observation_space, action_space), tally, declared

    # ---- writing ----

    @abstractmethod
    def rows_of(self, batch: EpisodeBatch) -> NDArray[Any]:
        """(E,) rows of each episode."""

    @abstractmethod
    def prepare(self, batch: EpisodeBatch) -> EpisodeBatch:
        """`batch` as it will be stored. Raises BadEpisode where it does not fit the spaces."""

    @abstractmethod
    def table(self, batch: EpisodeBatch, *, where: str) -> Any:
        """The table of a prepared batch, bound for the shard `where`. Raises BadData, BadEpisode."""

    def adopt(self, schema: Any) -> None:  # noqa: B027  nothing where all tables have one schema
        """Write tables of the pa.Schema of a shard that is there already. Raises BadEpisode where tables have another."""

    # ---- reading ----

    @abstractmethod
    def wrong_columns(self, schema: Any) -> list[str]:
        """How a shard's pa.Schema differs from what the spaces ask for, in words; empty where it does not."""

    @abstractmethod
    def columns(self, schema: Any, keep: Sequence[str] | None) -> list[str]:
        """The columns that `batches` needs. `keep`: extra model outputs, and "infos"; None: all there are."""

    @abstractmethod
    def starts(self, ids: Any) -> NDArray[Any]:
        """(E+1,) rows at which episodes start, by the column of their ids."""

    @abstractmethod
    def whole(self, tables: Iterable[Any], target_rows: int) -> Iterator[Rows]:
        """The rows of tables again, in pieces that end where an episode does; of steps, at least `target_rows` each."""

    @abstractmethod
    def batches(
        self, rows: Rows, numbers: Sequence[int] | NDArray[Any], *, where: str, keep: Sequence[str] | None = None
    ) -> Iterator[EpisodeBatch]:
        """The episodes in rows, decoded, in their order. `numbers`: of the rows in their shard. Raises BadData."""

    @abstractmethod
    def plain(self, rows: Rows, *, where: str) -> Any:
        """The table of PLAIN_SCHEMA, a row an episode; columns are null that lack theirs of `plain_from`. Raises BadData."""


def differing_columns(have: Any, want: Any) -> list[str]:
    """In words, which columns of the second pa.Schema the first has not, has twice, or has in another type."""
    wrong = []
    for column in want:
        kinds = [one.type for one in have if one.name == column.name]
        if len(kinds) != 1:
            wrong.append(f"{'two columns' if kinds else 'no column'} {column.name!r}")
        elif not kinds[0].equals(column.type):
            wrong.append(f"column {column.name!r} is {kinds[0]}, not {column.type}")
    return wrong
