"""The plain columns of all episodes of an operation's sources, and the writing of those that are chosen.

Datasets of ours that agree in format, spaces and columns are moved row by row: their plain columns are read, then the rows of
the chosen episodes, and no step is decoded. Where that cannot do (other formats, ids that come twice, fragments, agents of
packed episodes, other options of reading), all episodes are read for the survey, and again to be written: stitching alone knows
what is an episode there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.converting.open_episode import changed
from offline_cli.converting.operations import Operation
from offline_cli.converting.reading import EpisodeStream
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.episode_tables import PLAIN_SCHEMA
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.reading import Rows
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import NoData
from offline_cli.parquet.shards import opened
from offline_cli.progress import Progress
from offline_cli.spaces import same_space
from offline_cli.stop_signals import check
from offline_cli.storage.locations import Location

__all__ = ["NOWHERE", "Survey", "by_rows", "surveyed"]

OF_AGENTS: Final = frozenset({Columns.AGENT_ID, Columns.MODULE_ID})
NOWHERE: Final = -1  # the target of an episode that goes nowhere


@dataclass(slots=True)
class Survey:
    """All episodes of the sources of an operation, in the order in which they are read."""

    operation: Operation
    table: Any  # pa.Table, a row an episode: columns of PLAIN_SCHEMA, and fields that were asked for
    moves_rows: bool  # whether nothing is decoded
    duplicates_dropped: int = 0

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> NDArray[Any]:
        """(E,) numbers of one column: length, return, terminated or truncated."""
        values: NDArray[Any] = self.table.column(name).to_numpy()
        return values

    def write(
        self, targets: Sequence[tuple[Location, Mapping[str, Any], Mapping[str, Any]]], goes_to: NDArray[np.int64]
    ) -> tuple[EpisodeStream, list[Manifest]]:
        """Write each episode to target number `goes_to` (E,); the manifests, in order.

        `targets`: of each the place, the identity and what the provenance says of it. What the stream says is known then.
        """
        stream = self.operation.stream()
        with closing(stream):
            kinds = {"decoded": not self.moves_rows}
            writers = [
                self.operation.writer(stream, place, identity=identity, provenance=told, **kinds)
                for place, identity, told in targets
            ]
            if not self.moves_rows:
                return stream, self.operation.copy(stream, writers, _Sharing(self.table.column(Columns.EPS_ID), goes_to))
            with self.operation.written(stream, writers):
                self._move(writers, goes_to)
                return stream, self.operation.committed(stream, writers)

    def _move(self, writers: Sequence[DatasetWriter], goes_to: NDArray[np.int64]) -> None:
        """Write the rows of each episode by the writer that `goes_to` says."""
        at = 0
        for dataset in self.operation.datasets:
            with dataset.rows(memory_limit=self.operation.tables.memory_limit) as found:
                for rows in found:
                    check()
                    plain = self.table.slice(at, len(rows.starts) - 1)
                    _check_same(rows, plain)
                    for number, writer in enumerate(writers):
                        mine = goes_to[at : at + len(plain)] == number
                        if writer.ids_written:
                            mine &= [name not in writer.ids_written for name in plain.column(Columns.EPS_ID).to_pylist()]
                        if mine.any():
                            writer.write_rows(*((rows, plain) if mine.all() else (_chosen(rows, mine), plain.filter(mine))))
                    at += len(plain)
                    self.operation.on_progress(Progress("moving rows", at, len(self), "episodes"))


def _chosen(rows: Rows, mine: NDArray[np.bool_]) -> Rows:
    """Those of some of the (E,) episodes."""
    lengths = np.diff(rows.starts)
    return Rows(rows.table.filter(pa.array(np.repeat(mine, lengths))), np.concatenate([[0], np.cumsum(lengths[mine])]))


def _check_same(rows: Rows, plain: Any) -> None:
    """Raise BadData where rows are not of the episodes that were surveyed."""
    if not rows.table.column(Columns.EPS_ID).take(pa.array(rows.starts[:-1])).equals(plain.column(Columns.EPS_ID)):
        raise changed("the rows are of other episodes than when the sources were looked through")


def surveyed(operation: Operation, columns: Collection[str] = ()) -> Survey:
    """The survey of the sources; `columns`: names of those that decide, plain ones or fields of each episode's custom data.

    Raises NoData, and what reading raises.
    """
    fields = [name for name in columns if name not in PLAIN_SCHEMA.names]
    survey = None if fields else by_rows(operation, agents=not OF_AGENTS.isdisjoint(columns))
    if survey is not None:
        return survey
    with operation.stream(only_looking=True) as stream:
        tables = [_plain(batch, fields) for batch in stream]
        table = pa.concat_tables(tables or [PLAIN_SCHEMA.empty_table()])
        return Survey(operation, table, False, stream.tally.duplicates_dropped)


def by_rows(operation: Operation, *, agents: bool = False) -> Survey | None:
    """The survey by the plain columns of datasets; None where their rows cannot be moved as they are."""
    options, datasets = operation.options, operation.datasets
    asked = any(options[name] is not None for name in ("env", "env_kwargs", "wrappers", "action_scale"))
    packed = operation.format == "episodes"
    if asked or not operation.all_own or (packed and agents) or not _are_alike(datasets, operation.format):
        return None
    tables, limit = [PLAIN_SCHEMA.empty_table()], operation.tables.memory_limit
    for dataset in datasets:
        dataset.refuse_unexplained()
        with dataset.plain(agents=agents, memory_limit=limit) as found:
            tables += found
    table = pa.concat_tables(tables).combine_chunks()
    if not table.num_rows:
        fix = "check that the recording wrote any steps"
        raise NoData("no episode is in the source", where=operation.where, fix=fix)
    if pc.count_distinct(table.column(Columns.EPS_ID), mode="all").as_py() < table.num_rows:
        return None
    ends = pc.or_(table.column(Columns.TERMINATED), table.column(Columns.TRUNCATED))
    is_whole = pc.all(pc.and_(pc.greater(table.column(Columns.LENGTH), 0), ends)).as_py()
    return Survey(operation, table, True) if is_whole else None


def _are_alike(datasets: Sequence[Dataset], row_format: str) -> bool:
    """Whether all have this row format, the same declared spaces, and the same columns."""
    first, schemas = datasets[0].manifest, list[Any]()
    for dataset in datasets:
        known = dataset.manifest
        spaces = (known.observation_space, first.observation_space), (known.action_space, first.action_space)
        if known.format != row_format or not all(own is not None and same_space(own, other) for own, other in spaces):
            return False
        if known.shards:
            with opened(dataset.location.join(known.shards[0].path), size=known.shards[0].bytes) as file:
                schemas.append(file.schema_arrow)
    return all(schema.equals(schemas[0]) for schema in schemas)


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


@dataclass(slots=True)
class _Sharing:
    """Says where the episodes of a stream go: a `Share`. They come in the order of the survey; some may have been set aside."""

    ids: Any  # pa.ChunkedArray, of the survey
    goes_to: NDArray[np.int64]  # (E,)
    _next: int = 0

    def __call__(self, batch: EpisodeBatch) -> NDArray[np.int64]:
        """Raises BadData where an episode was not there when the sources were surveyed."""
        found = pc.index_in(pa.array(batch.ids, pa.string()), self.ids.slice(self._next).combine_chunks())
        if found.null_count:
            unknown = batch.ids[int(np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False))[0])]
            raise changed(f"episode {unknown} was not there when the sources were looked through")
        rows = self._next + found.to_numpy()
        self._next = int(rows[-1]) + 1
        found_targets: NDArray[np.int64] = self.goes_to[rows]
        return found_targets
