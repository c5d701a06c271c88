"""The plain columns of all episodes of an operation's sources, and a stream of those that are chosen.

Datasets of ours are surveyed by their plain columns alone, before a step is decoded, and read with the rows of other episodes
left out. Where that cannot do (other formats, ids that come twice, fragments, agents of packed episodes), all episodes are read
for the survey, and again to be written: stitching alone knows what is an episode there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.converting.open_episode import changed
from offline_cli.converting.operations import Operation, Share
from offline_cli.converting.reading import EpisodeStream
from offline_cli.datasets.episode_tables import PLAIN_SCHEMA
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import NoData
from offline_cli.formats.memory_limits import give_back_near, one_heap_near
from offline_cli.formats.opening import OwnSource
from offline_cli.formats.source import Source

__all__ = ["NOWHERE", "Survey", "surveyed"]

OF_AGENTS: Final = frozenset({Columns.AGENT_ID, Columns.MODULE_ID})
NOWHERE: Final = -1  # the target of an episode that goes nowhere


@dataclass(slots=True)
class Survey:
    """All episodes of the sources of an operation, in the order in which they are read."""

    operation: Operation
    table: Any  # pa.Table, a row an episode: columns of PLAIN_SCHEMA, those of agents where they decide
    cuts: list[list[int]] | None  # of each source, the episodes of each shard; None: the sources are read as a whole
    duplicates_dropped: int = 0

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> NDArray[Any]:
        """(E,) numbers of one column: length, return, terminated or truncated."""
        values: NDArray[Any] = self.table.column(name).to_numpy()
        return values

    def stream(self, goes_to: NDArray[np.signedinteger[Any]]) -> tuple[EpisodeStream, Share]:
        """The episodes whose target `goes_to` (E,) is not NOWHERE, or more than these; and the target of each that is read."""
        chosen = goes_to != NOWHERE
        if self.cuts is None:
            return self.operation.stream(), _Sharing(self.table, np.arange(len(self), dtype=np.int32), goes_to)
        order = np.flatnonzero(chosen).astype(np.int32)
        sources = list(_of(self.operation.sources, self.cuts, chosen))
        return self.operation.stream(sources, distinct=True), _Sharing(self.table, order, goes_to)


def surveyed(operation: Operation, columns: Collection[str] = ()) -> Survey:
    """The survey of the sources; `columns`: names of those that decide, plain ones or fields of each episode's custom data.

    Raises NoData, and what reading raises.
    """
    one_heap_near(operation.tables.memory_limit)
    fields = [name for name in columns if name not in PLAIN_SCHEMA.names]
    packed = any(manifest.format == "episodes" for manifest in operation.manifests)
    if operation.all_own and not fields and not (packed and OF_AGENTS.intersection(columns)):
        found = _by_plain_columns(operation, columns)
        give_back_near(operation.tables.memory_limit)
        if found is not None:
            return found
    with operation.stream(only_looking=True) as stream:
        tables = [_plain(batch, fields) for batch in stream]
        return Survey(
            operation, pa.concat_tables(tables or [PLAIN_SCHEMA.empty_table()]), None, stream.tally.duplicates_dropped
        )


def _by_plain_columns(operation: Operation, columns: Collection[str]) -> Survey | None:
    """The survey by the plain columns of datasets; None where these do not tell what an episode is."""
    returns, agents = Columns.RETURN in columns, not OF_AGENTS.isdisjoint(columns)
    unknown = OF_AGENTS if returns else {*OF_AGENTS, Columns.RETURN}
    tables, cuts = [PLAIN_SCHEMA.empty_table()], list[list[int]]()
    for source in operation.sources:
        assert isinstance(source, OwnSource)
        cuts.append([])
        limit, dataset = operation.tables.memory_limit, replace(source.dataset, ahead=operation.reads_ahead)
        with dataset.plain(returns=returns, agents=agents, memory_limit=limit) as shards:
            for table in shards:
                if table is None or any(table.column(name).null_count for name in PLAIN_SCHEMA.names if name not in unknown):
                    return None
                tables.append(table)
                cuts[-1].append(table.num_rows)
    ids = pa.concat_tables(tables).column(Columns.EPS_ID)
    if pc.count_distinct(ids, mode="all").as_py() < len(ids):
        return None
    table = _combined(tables, [name for name in PLAIN_SCHEMA.names if agents or name not in OF_AGENTS])
    if not table.num_rows:
        fix = "check that the recording wrote any steps"
        raise NoData("no episode is in the source", where=operation.where, fix=fix)
    ends = [table.column(name).to_numpy() for name in (Columns.TERMINATED, Columns.TRUNCATED)]
    is_whole = (table.column(Columns.LENGTH).to_numpy() > 0) & (ends[0] | ends[1])
    if not is_whole.all():
        return None
    return Survey(operation, table, cuts)


def _combined(tables: list[Any], names: Sequence[str]) -> Any:
    """The rows of `tables`, which becomes empty, with each column in one piece; at most one column is there twice meanwhile."""
    whole = pa.concat_tables(tables).select(names)
    tables.clear()
    columns = {}
    for name in names:
        columns[name] = whole.column(name).combine_chunks()
        whole = whole.drop_columns([name])
    return pa.table(columns)


def _plain(batch: EpisodeBatch, fields: Sequence[str]) -> Any:
    """The plain columns of a batch, and fields of custom data as texts."""
    nobody = (None,) * len(batch)
    columns = {
        Columns.EPS_ID: pa.array(batch.ids, pa.string()),
        Columns.LENGTH: batch.lengths,
        Columns.RETURN: batch.returns,
        Columns.TERMINATED: np.ascontiguousarray(batch.terminated),
        Columns.TRUNCATED: np.ascontiguousarray(batch.truncated),
        Columns.AGENT_ID: pa.array(batch.agent_ids or nobody, pa.string()),
        Columns.MODULE_ID: pa.array(batch.module_ids or nobody, pa.string()),
    }
    table = pa.table([columns[name] for name in PLAIN_SCHEMA.names], schema=PLAIN_SCHEMA)
    for name in fields:
        values = [data.get(name) for data in batch.custom_data or ({},) * len(batch)]
        texts = [None if value is None else str(value).lower() if isinstance(value, bool) else str(value) for value in values]
        table = table.append_column(name, pa.array(texts, pa.string()))
    return table


def _of(sources: Sequence[Source], cuts: Sequence[Sequence[int]], chosen: NDArray[np.bool_]) -> Iterator[Source]:
    """The sources, of which only the episodes in `chosen` are read."""
    first = 0
    for source, sizes in zip(sources, cuts, strict=True):
        assert isinstance(source, OwnSource)
        last = first + sum(sizes)
        parts = tuple(np.split(chosen[first:last], np.cumsum(sizes)[:-1]))
        first = last
        yield replace(source, dataset=replace(source.dataset, chosen=parts if sizes else ()))


@dataclass(slots=True)
class _Sharing:
    """Says where the episodes of a stream go: a `Share`. They come in the order of the survey; some may have been set aside."""

    table: Any  # of the survey
    order: NDArray[np.int32]  # of the episodes that are read, their numbers in the survey
    goes_to: NDArray[np.signedinteger[Any]]  # (E,) of all
    _ids: Any = field(init=False)
    _next: int = 0  # in `order`

    def __post_init__(self) -> None:
        ids = self.table.column(Columns.EPS_ID)
        self._ids = ids.chunk(0) if ids.num_chunks == 1 else ids.combine_chunks()  # which copies one as well

    def __call__(self, batch: EpisodeBatch) -> NDArray[np.int64]:
        """Raises BadData where an episode is not the one that was surveyed."""
        rows = self.order[self._next : self._next + len(batch)]
        if self._ids.take(pa.array(rows)).to_pylist() != list(batch.ids):
            found = pc.index_in(pa.array(batch.ids, pa.string()), self._ids.take(pa.array(self.order[self._next :])))
            if found.null_count:
                unknown = batch.ids[int(np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False))[0])]
                raise changed(f"episode {unknown} was not there when the sources were looked through")
            rows = self.order[self._next + found.to_numpy()]
        self._next = int(np.searchsorted(self.order, rows[-1])) + 1
        self._check(batch, self.table.take(pa.array(rows)))
        return self.goes_to[rows].astype(np.int64)

    def _check(self, batch: EpisodeBatch, said: Any) -> None:
        """Raise BadData where the episodes are not what their plain columns said."""
        have: dict[str, NDArray[Any]] = {
            Columns.LENGTH: batch.lengths,
            Columns.TERMINATED: batch.terminated,
            Columns.TRUNCATED: batch.truncated,
        }
        if not said.column(Columns.RETURN).null_count:
            have[Columns.RETURN] = batch.returns
        for name, values in have.items():
            told = said.column(name).to_numpy()
            same = values == told
            if not same.all() and not (same := np.isclose(values, told, rtol=1e-9, equal_nan=True)).all():
                row = int(np.flatnonzero(~same)[0])
                what = f"column {name!r} says {said.column(name)[row]} of episode {batch.ids[row]}, its steps {values[row]}"
                raise changed(what)
