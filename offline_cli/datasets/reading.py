"""Shards as batches of whole episodes, streamed by row groups, and checked against their manifest entries.

`ShardReader.plain` reads the plain columns of episodes alone. `ShardsAhead`: remote shards are opened before their turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import EPISODE_COLUMNS, STEP_COLUMNS, Columns
from offline_cli.datasets import episode_tables, step_tables
from offline_cli.datasets.row_groups import KeptRows
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import BatchDecoder
from offline_cli.errors import PROBLEM, BadData, OfflineCliError
from offline_cli.files.locations import Location
from offline_cli.files.prefetch import Ahead
from offline_cli.files.remote_files import fetch_end
from offline_cli.files.timeouts import in_daemon_thread
from offline_cli.parquet.arrow_trees import is_numeric
from offline_cli.parquet.shards import OpenShard, expect_row_groups, opened, opened_stream, parsed, read_row_groups
from offline_cli.parquet.trust import Trust
from offline_cli.scopes import Scope, part_of
from offline_cli.spaces import Space
from offline_cli.tally import Rejects, Tally

__all__ = ["PLAIN_SCHEMA", "ShardReader", "ShardsAhead"]

AT_ONCE: Final = 8  # remote shards that are opened before their turn
FIX = "write the dataset again from its source"
PLAIN_SCHEMA: Final = pa.schema(
    [
        *(field for field in episode_tables.EPISODE_SCHEMA if field.name != Columns.ITEM),
        pa.field(Columns.AGENT_ID, pa.string()),
        pa.field(Columns.MODULE_ID, pa.string()),
    ]
)
"""What is known of an episode without its steps; ids of agent and module may be null."""


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

    def read(
        self,
        location: Location,
        *,
        rows: int | None = None,
        trust: Trust | None = None,
        whole: bool = False,
        opening: AbstractContextManager[OpenShard] | None = None,
        scope: Scope | None = None,
        chosen: NDArray[np.bool_] | None = None,
    ) -> Iterator[EpisodeBatch]:
        """Batches of the episodes in the shard at `location`, in order.

        `rows`, `trust`: what its manifest states. `whole`: compare its sha256 by the end of the last batch.
        `opening`: the shard, if it has been opened. `scope` owns it. `chosen`: (E,) those of its episodes that are wanted.
        Raises BadData, naming the shard, where it is missing, has other content, is cut, or has other columns than its spaces
        ask for; MemoryLimitExceeded for row groups that are no bomb only because the sha256 is true.
        """
        with part_of(scope) as held:
            file = held.enter(opening or opened(location))
            if rows is not None and file.metadata.num_rows != rows:
                what = f"the shard has {file.metadata.num_rows} rows, its manifest says {rows}"
                raise BadData(what, where=location.url, fix=FIX)
            self.check_columns(file, location)
            if trust is not None and whole:
                held.enter(trust.beside(file.stream, location))
            read = self._steps if self.format == "columns" else self._episodes
            yield from read(file, location, trust, chosen)
            if trust is not None and whole:
                trust.check(location)

    def check_columns(self, file: OpenShard, location: Location) -> None:
        """Raise BadData, naming every difference, unless the opened shard has the columns that its spaces ask for."""
        if self.format != "columns":
            _check_columns(file.schema_arrow, pa.schema([episode_tables.EPISODE_SCHEMA.field(Columns.ITEM)]), location)
            return
        assert self.observation_space is not None, "a manifest of columns has spaces"
        assert self.action_space is not None, "a manifest of columns has spaces"
        _check_columns(file.schema_arrow, step_tables.step_schema(self.observation_space, self.action_space), location)
        _check_further_columns(file.schema_arrow, location)

    def plain(self, file: OpenShard, location: Location, trust: Trust | None, *, returns: bool) -> Iterator[Any] | None:
        """Tables of PLAIN_SCHEMA, a row for each episode of an opened shard in order; None where it lacks the columns.

        Drawing them raises BadData, naming the shard.
        """
        wanted = self.plain_columns(returns)
        known = {field.name: field.type for field in file.schema_arrow}
        like = PLAIN_SCHEMA if self.format != "columns" else step_tables.FLAT_SCHEMA
        if any(known.get(name) != like.field(name).type for name in wanted):
            return None
        tables = read_row_groups(file, location, columns=wanted, trust=trust)
        if self.format == "columns":
            return (step_tables.plain_table(table, PLAIN_SCHEMA, location.url) for table in _whole_episodes(tables, 1))
        return (_with_agents(table) for table in tables)

    def plain_columns(self, returns: bool) -> list[str]:
        """The columns that `plain` reads; `returns`: those of returns too."""
        if self.format == "columns":
            return [name for name in step_tables.FLAT_SCHEMA.names if returns or name != Columns.REWARDS]
        return [name for name in EPISODE_COLUMNS if name != Columns.ITEM]

    def _steps(
        self, file: OpenShard, location: Location, trust: Trust | None, chosen: NDArray[np.bool_] | None
    ) -> Iterator[EpisodeBatch]:
        episode = 0
        for table in _whole_episodes(self._row_groups(file, location, trust), self.target_steps):
            if chosen is not None:
                starts = step_tables.run_starts(table)
                wanted = chosen[episode : episode + len(starts) - 1]
                episode += len(starts) - 1
                if not wanted.any():
                    continue
                if not wanted.all():
                    table = table.filter(pa.array(np.repeat(wanted, np.diff(starts))))
            batch = step_tables.from_table(
                table,
                observation_space=self.observation_space,
                action_space=self.action_space,
                where=location.url,
                keep=self.keep,
            )
            if self.kept is not None:
                self.kept.keep(batch, table, batch.starts)
            yield batch

    def columns_of(self, file: OpenShard) -> list[str]:
        """The columns of an opened shard that are read."""
        if self.format != "columns":
            return [Columns.ITEM] if self.kept is None else list(EPISODE_COLUMNS)
        return [name for name in file.schema_arrow.names if self._is_wanted(name)]

    def _is_wanted(self, name: str) -> bool:
        if self.keep is None or name in STEP_COLUMNS:
            return True
        return Columns.INFOS in self.keep if name in step_tables.INFO_COLUMNS else name in self.keep

    def _row_groups(self, file: OpenShard, location: Location, trust: Trust | None) -> Iterator[Any]:
        return read_row_groups(file, location, columns=self.columns_of(file), trust=trust)

    def _episodes(
        self, file: OpenShard, location: Location, trust: Trust | None, chosen: NDArray[np.bool_] | None
    ) -> Iterator[EpisodeBatch]:
        first = 0
        for table in self._row_groups(file, location, trust):
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


def _kept(batch: EpisodeBatch, keep: Sequence[str]) -> EpisodeBatch:
    extra = {name: tree for name, tree in batch.extra.items() if name in keep}
    return replace(batch, extra=extra, infos=batch.infos if Columns.INFOS in keep else None)


def _with_agents(table: Any) -> Any:
    """The plain columns of packed episodes in the form of all: who acted is in the packed bytes alone."""
    nobody = pa.nulls(table.num_rows, pa.string())
    columns = {**{name: table.column(name) for name in table.column_names}, Columns.AGENT_ID: nobody, Columns.MODULE_ID: nobody}
    return pa.table([columns[name] for name in PLAIN_SCHEMA.names], schema=PLAIN_SCHEMA)


def _check_columns(have: Any, want: Any, location: Location) -> None:
    """Raise BadData, naming every difference, unless pa.Schema `have` has all the columns of `want`, as it has them."""
    wrong = []
    for column in want:
        if column.name not in have.names:
            wrong.append(f"no column {column.name!r}")
        elif not have.field(column.name).type.equals(column.type):
            wrong.append(f"column {column.name!r} is {have.field(column.name).type}, its space makes it {column.type}")
    if wrong:
        raise _wrong_columns(f"other columns than the manifest says: {'; '.join(wrong)}", location)


def _check_further_columns(have: Any, location: Location) -> None:
    """Raise BadData, naming every one, for infos that are not text and extra model outputs that are not numbers."""
    kinds = {name: have.field(name).type for name in (*step_tables.INFO_COLUMNS, Columns.SOURCE_ID) if name in have.names}
    wrong = [f"column {name!r} is {kind}, not text" for name, kind in kinds.items() if not pa.types.is_string(kind)]
    infos = [name for name in kinds if name in step_tables.INFO_COLUMNS]
    if len(infos) == 1:
        wrong.append(f"of {' and '.join(step_tables.INFO_COLUMNS)} only {infos[0]}")
    extra = [column for column in have if column.name not in STEP_COLUMNS and column.name not in kinds]
    wrong += [f"column {part.name!r} is {part.type}, which holds no numbers" for part in extra if not is_numeric(part.type)]
    if wrong:
        raise _wrong_columns(f"columns that no dataset has: {'; '.join(wrong)}", location)


def _wrong_columns(what: str, location: Location) -> BadData:
    return BadData(what, where=location.url, fix=FIX, details={PROBLEM: "shard-columns"})


def _whole_episodes(tables: Iterator[Any], target_steps: int) -> Iterator[Any]:
    """The rows of `tables` again, cut where an episode ends, each table of `target_steps` rows or more but for the last."""
    pending: list[Any] = []
    rows = cut = 0  # rows pending, and those of them before the episode that may continue
    last_id: Any = None
    for table in tables:
        if not table.num_rows:
            continue
        ids = table.column(Columns.EPS_ID).combine_chunks()
        start = _last_start(ids, last_id)
        cut = rows + start if start is not None else cut
        last_id = ids[-1]
        pending.append(table)
        rows += table.num_rows
        if rows >= target_steps and cut:
            joined = pa.concat_tables(pending)
            yield joined.slice(0, cut)
            pending, rows, cut = [joined.slice(cut)], rows - cut, 0
    if pending:
        yield pa.concat_tables(pending)


def _last_start(ids: Any, before: Any) -> int | None:
    """The last row at which an id begins that is not that of the row before; None: all continue `before`."""
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.chunk(0)
    changes = np.flatnonzero(pc.not_equal(ids[1:], ids[:-1]).fill_null(True).to_numpy(zero_copy_only=False))
    if len(changes):
        return int(changes[-1]) + 1
    return None if before is not None and before.equals(ids[0]) else 0


# ---- ahead of their turn ----


class ShardsAhead:
    """Remote shards to be read one after the other; a context manager, at whose end nothing more is fetched.

    While one is read, the footers of the next ones are fetched, and then the row groups that will be read of them: one `Ahead`
    bounds the bytes fetched of all. What is wrong with one is reported when its turn comes.
    """

    def __init__(self, places: Sequence[tuple[Location, int]], columns_of: Callable[[OpenShard], Sequence[str] | None]) -> None:
        """`places`: each shard, and the bytes that it must have. `columns_of`: the columns of an opened one that are read."""
        self._places = deque(places)
        self._columns_of = columns_of
        self._ahead = Ahead()
        self._coming: deque[_Coming] = deque()

    def turn(self) -> AbstractContextManager[OpenShard]:
        """The next shard. Entering it raises what `opened` raises."""
        return self._coming.popleft() if self._coming else self._begun()

    def _begun(self) -> _Coming:
        place, size = self._places.popleft()
        return _Coming(place, in_daemon_thread("offline-cli-opening", _with_footer, place, size, self._ahead))

    def advance(self) -> None:
        """Advance those whose turn has not come; to be called now and then. Does not block."""
        while self._places and len(self._coming) < AT_ONCE:
            self._coming.append(self._begun())
        for shard in self._coming:
            if not shard.advance(self._columns_of):
                return  # in their order: what is prefetched is wanted first to last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for shard in self._coming:
            shard.give_up()


def _with_footer(place: Location, size: int, ahead: Ahead) -> BinaryIO:
    stream = opened_stream(place, size=size, ahead=ahead)
    try:
        fetch_end(stream)
    except BaseException:
        stream.close()
        raise
    return stream


class _Coming:
    """A remote shard that is being opened, in a thread that does not keep the process alive."""

    def __init__(self, place: Location, stream: Future[BinaryIO]) -> None:
        self._place, self._stream = place, stream
        self._file: OpenShard | None = None
        self._error: OfflineCliError | None = None

    def advance(self, columns_of: Callable[[OpenShard], Sequence[str] | None]) -> bool:
        """Prefetch its row groups, once its footer is here; False before that. Of a broken one nothing is fetched."""
        if self._file is self._error is None and self._stream.done() and self._stream.exception() is None:
            try:
                self._file = parsed(self._stream.result(), self._place)
                expect_row_groups(self._file, self._place, columns_of(self._file))
            except OfflineCliError as error:
                self._error = error
        return self._stream.done()

    def __enter__(self) -> OpenShard:
        """The shard. Raises why it could not be opened."""
        try:
            if self._error is not None:
                raise self._error
            return self._file or parsed(self._stream.result(), self._place)
        except BaseException:
            self.give_up()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.give_up()

    def give_up(self) -> None:
        """Nobody will read it, or continue reading."""
        if not self._stream.cancel():
            self._stream.add_done_callback(_closed)


def _closed(stream: Future[BinaryIO]) -> None:
    if stream.exception() is None:
        stream.result().close()
