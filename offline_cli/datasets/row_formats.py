"""The two row formats as a writer uses them: rows per episode, and batches as tables; and batches as data frames of Polars.

`columns` has one schema for the whole dataset; a batch that does not fit it raises. The first block fixes the extra model
outputs and whether there are ids of the source. Infos get their two columns from the first episode on that has any, and
`final_obs_assumed` its one; shards before it get empty ones at the commit (`lacks`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import CUSTOM_COLUMNS, Columns
from offline_cli.datasets import episode_tables, step_tables
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec.pack_batch import check_names
from offline_cli.episodes.fit import check_shapes, conform
from offline_cli.errors import BadData, BadEpisode, UsageError
from offline_cli.scopes import Reading
from offline_cli.spaces import Space, check_supported
from offline_cli.tally import Tally

__all__ = [
    "EpisodeFrames",
    "EpisodeRows",
    "RowFormat",
    "StepFrames",
    "StepRows",
    "lazy_frame",
    "row_format",
    "whole_frame",
]

FIX = "write the dataset again from its source"
MULTI_AGENT_ID = "multi_agent_id"  # the column of data frames: of the episode in which an agent's was played
FURTHER = (Columns.INFOS, Columns.FINAL_OBS_ASSUMED)  # what frames have columns of from the start


class RowFormat:
    """What a row of a dataset is."""

    name: str  # "episodes" | "columns"

    def rows_of(self, batch: EpisodeBatch) -> NDArray[np.int64]:
        """(E,) rows of each episode."""
        raise NotImplementedError

    def prepare(self, batch: EpisodeBatch) -> EpisodeBatch:
        """`batch` as it will be stored. Raises BadEpisode where it does not fit the spaces."""
        raise NotImplementedError

    def first_change(self, batch: EpisodeBatch) -> int | None:
        """The first episode from which on tables have more columns than before; None: the columns stay."""
        return None

    def table(self, batch: EpisodeBatch, *, where: str, ready: Any = None) -> Any:
        """The pa.Table of a prepared batch, bound for the shard `where`. Raises BadData.

        `ready`: its rows as they were read, which are taken where their columns are right.
        """
        raise NotImplementedError

    def add_columns(self, batch: EpisodeBatch) -> None:
        """Make tables with more columns from now on, as `first_change` said of `batch`."""

    def lacks(self, schema: Any) -> bool:
        """Whether a shard of this pa.Schema has fewer columns than the dataset."""
        return False

    def completed(self, table: Any) -> Any:
        """The pa.Table of such a shard with all columns."""
        return table

    def adopt(self, schema: Any) -> None:
        """Continue with the pa.Schema of a shard written before."""


class EpisodeRows(RowFormat):
    """One row per episode, whose columns are always the same."""

    name = "episodes"

    def __init__(self, observation_space: Space | None, action_space: Space | None, tally: Tally) -> None:
        self._spaces = observation_space, action_space
        self._tally = tally

    def rows_of(self, batch: EpisodeBatch) -> NDArray[np.int64]:
        """(E,) ones."""
        return np.ones(len(batch), np.int64)

    def prepare(self, batch: EpisodeBatch) -> EpisodeBatch:
        """`batch` itself; raises BadEpisode where shapes are not those of the spaces."""
        check_shapes(batch, *self._spaces)
        return batch

    def table(self, batch: EpisodeBatch, *, where: str, ready: Any = None) -> Any:
        """See RowFormat."""
        if ready is not None and ready.schema.equals(episode_tables.EPISODE_SCHEMA):
            return episode_tables.table_of(batch, ready.column(Columns.ITEM))
        return episode_tables.to_table(batch, where=where, tally=self._tally)


class StepRows(RowFormat):
    """One row per step."""

    name = "columns"

    def __init__(self, observation_space: Space, action_space: Space, tally: Tally, further: Collection[str] = ()) -> None:
        """`further`: columns that tables have from the start. Raises UnsupportedSpace for spaces that make no column."""
        self._spaces = observation_space, action_space
        self._tally = tally
        self._extra: list[Any] | None = None  # pa.Fields of the extra model outputs; None until the first block
        self._further = set(further)  # of `infos` and `final_obs_assumed` those that tables have by now
        self._has_source_ids: bool | None = None  # None until the first block
        for name, space in zip(("observations", "actions"), self._spaces, strict=True):
            check_supported(space, where=name)
        step_tables.step_schema(*self._spaces)

    def rows_of(self, batch: EpisodeBatch) -> NDArray[np.int64]:
        """(E,) steps."""
        return batch.lengths

    def prepare(self, batch: EpisodeBatch) -> EpisodeBatch:
        """`batch` in the dtypes of the spaces, without episodes that have no step; counts these and what has no column."""
        empty = batch.lengths == 0
        if empty.any():
            self._tally.assume("zero-length-episode", int(empty.sum()))
            batch = batch.select(np.flatnonzero(~empty))
        check_names(batch, where=f"batch from episode {batch.ids[0]!r}" if len(batch) else "an empty batch")
        self._count_what_is_lost(batch)
        return conform(batch, *self._spaces)

    def _count_what_is_lost(self, batch: EpisodeBatch) -> None:
        if self._has_source_ids is None:
            self._has_source_ids = any(Columns.SOURCE_ID in data for data in batch.custom_data or ())
        if batch.custom_data is not None:
            kept = set(CUSTOM_COLUMNS if self._has_source_ids else CUSTOM_COLUMNS[1:])
            self._tally.assume("custom-data-not-kept", sum(not kept.issuperset(data) for data in batch.custom_data))
        if batch.clock is not None:
            self._tally.assume("clock-not-kept", int(np.count_nonzero(~np.isnan(batch.clock).all(axis=1))))
        if batch.multi_agent_ids is not None:
            self._tally.assume("multi-agent-id-not-kept", sum(name is not None for name in batch.multi_agent_ids))

    def first_change(self, batch: EpisodeBatch) -> int | None:
        """The first episode with an info that is not empty, or an assumed last observation, if none had one before."""
        return min(self._changes(batch).values(), default=None)

    def _changes(self, batch: EpisodeBatch) -> dict[str, int]:
        """The first episode that asks for it, of each column that tables do not have yet."""
        found: dict[str, int] = {}
        if Columns.INFOS not in self._further:
            row = next((row for row, info in enumerate(batch.infos or ()) if info), None)
            found |= {} if row is None else {Columns.INFOS: int(np.searchsorted(batch.obs_starts, row, side="right")) - 1}
        if Columns.FINAL_OBS_ASSUMED not in self._further and (assumed := batch.final_obs_assumed).any():
            found[Columns.FINAL_OBS_ASSUMED] = int(assumed.argmax())
        return found

    def add_columns(self, batch: EpisodeBatch) -> None:
        """See RowFormat."""
        self._further |= {name for name, first in self._changes(batch).items() if first == self.first_change(batch)}

    def lacks(self, schema: Any) -> bool:
        """See RowFormat."""
        return not self._further.issubset(schema.names)

    def completed(self, table: Any) -> Any:
        """See RowFormat."""
        return step_tables.completed(table, self._schema())

    def _schema(self) -> Any:
        further = self._further | ({Columns.SOURCE_ID} if self._has_source_ids else set())
        return step_tables.step_schema(*self._spaces, self._extra or (), further=further)

    def table(self, batch: EpisodeBatch, *, where: str, ready: Any = None) -> Any:
        """See RowFormat."""
        self._fix_extras(step_tables.extra_fields(batch), f"batch from episode {batch.ids[0]}")
        schema = self._schema()
        if ready is not None and ready.schema.equals(schema):
            return pa.Table.from_arrays(ready.columns, schema=schema)
        return step_tables.to_table(batch, schema, tally=self._tally)

    def adopt(self, schema: Any) -> None:
        """See RowFormat."""
        self._further |= {Columns.INFOS, Columns.FINAL_OBS_ASSUMED}.intersection(schema.names)
        self._has_source_ids = Columns.SOURCE_ID in schema.names
        self._fix_extras([field for field in schema if field.name not in step_tables.NO_EXTRA], "a shard written before")

    def _fix_extras(self, fields: list[Any], where: str) -> None:
        """Raise BadEpisode unless the extra model outputs are those of the first block, to a dtype and a shape."""
        if self._extra is None:
            self._extra = fields
        before, now = ({field.name: field.type for field in listed} for listed in (self._extra, fields))
        wrong = [
            f"extra model output {name!r} is {now.get(name, 'absent')}, before it was {before.get(name, 'absent')}"
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        ]
        if wrong:
            fix = "convert the two kinds of episodes into two datasets, or use the episodes format"
            raise BadEpisode("; ".join(wrong), where=where, fix=fix)


def row_format(name: str, observation_space: Space | None, action_space: Space | None, tally: Tally) -> RowFormat:
    """The format of that name: `episodes`, or `columns`. Raises UsageError for another, and for columns without both spaces."""
    if name == "episodes":
        return EpisodeRows(observation_space, action_space, tally)
    if name != "columns":
        raise UsageError(f"no format {name!r}", where="format", fix="episodes or columns")
    if observation_space is None or action_space is None:
        fix = "give observation_space and action_space, or format='episodes'"
        raise UsageError("columns follow from the spaces, and these are not given", where="format='columns'", fix=fix)
    return StepRows(observation_space, action_space, tally)


# ---- as data frames ----


class StepFrames:
    """The steps of batches as pl.DataFrames with the columns of the format `columns`, `infos`, `reset_infos` and
    `final_obs_assumed` included, and the id of each agent's multi-agent episode.
    """

    def __init__(self, observation_space: Space | None, action_space: Space | None, *, where: str) -> None:
        self._spaces, self._where = (observation_space, action_space), where

    def frames(self, batches: Iterable[EpisodeBatch]) -> Iterator[Any]:
        """One for each batch that has steps, but at least one, then without rows.

        Arrays of several axes are Arrays of Polars, the parts of a Tuple fields '0', '1', ... Raises BadData without spaces,
        BadEpisode where extra model outputs change.
        """
        observation_space, action_space = self._spaces
        if observation_space is None or action_space is None:
            fix = "offline-cli convert with --env, which says the spaces; or to_polars(per='episode')"
            raise BadData("the dataset does not say its spaces, which columns follow from", where=self._where, fix=fix)
        rows, count = StepRows(observation_space, action_space, Tally(), further=FURTHER), 0
        for prepared in filter(len, map(rows.prepare, batches)):
            count += 1
            yield self._with_multi_agent_ids(_frame(rows.table(prepared, where=self._where)), prepared)
        if not count:
            frame = _frame(step_tables.step_schema(observation_space, action_space, further=FURTHER).empty_table())
            yield self._with_multi_agent_ids(frame, EpisodeBatch.from_episodes([]))

    def _with_multi_agent_ids(self, frame: Any, batch: EpisodeBatch) -> Any:
        import polars as pl

        names = pl.Series(MULTI_AGENT_ID, batch.multi_agent_ids or (None,) * len(batch), dtype=pl.String)
        steps = names.gather(np.repeat(np.arange(len(batch)), batch.lengths))
        return frame.insert_column(frame.get_column_index(Columns.MODULE_ID) + 1, steps)

    def joined(self, frames: Iterable[Any]) -> Any:
        """One frame; without infos, marks and ids of multi-agent episodes, where all are empty."""
        import polars as pl

        whole = _without_nulls_alone(pl.concat(frames))
        empty = all(whole[name].null_count() == len(whole) for name in step_tables.INFO_COLUMNS)
        whole = whole.drop(step_tables.INFO_COLUMNS) if empty else whole
        return whole if whole[Columns.FINAL_OBS_ASSUMED].any() else whole.drop(Columns.FINAL_OBS_ASSUMED)


class EpisodeFrames:
    """The episodes of batches as pl.DataFrames, a row for each."""

    def frames(self, batches: Iterable[EpisodeBatch]) -> Iterator[Any]:
        """One for each batch, but at least one."""
        for batch in batches:
            yield self._frame(batch)
        yield self._frame(EpisodeBatch.from_episodes([]))

    def joined(self, frames: Iterable[Any]) -> Any:
        """One frame; without ids of multi-agent episodes where there are none."""
        import polars as pl

        return _without_nulls_alone(pl.concat(frames))

    def _frame(self, batch: EpisodeBatch) -> Any:
        import polars as pl

        numbers = {
            Columns.LENGTH: batch.lengths,
            Columns.RETURN: batch.returns,
            Columns.TERMINATED: batch.terminated,
            Columns.TRUNCATED: batch.truncated,
        }
        texts = {Columns.EPS_ID: batch.ids, Columns.AGENT_ID: batch.agent_ids, Columns.MODULE_ID: batch.module_ids}
        texts |= {MULTI_AGENT_ID: batch.multi_agent_ids}
        named = {name: pl.Series([None] * len(batch) if of is None else of, dtype=pl.String) for name, of in texts.items()}
        return pl.DataFrame({Columns.EPS_ID: named[Columns.EPS_ID], **numbers, **named})


def _without_nulls_alone(frame: Any) -> Any:
    return frame.drop(MULTI_AGENT_ID) if frame[MULTI_AGENT_ID].null_count() == len(frame) else frame


Frames = StepFrames | EpisodeFrames


def whole_frame(reading: Callable[[], Reading[EpisodeBatch]], frames: Frames) -> Any:
    """All that `reading` gives, as one pl.DataFrame."""
    with reading() as batches:
        return frames.joined(list(frames.frames(batches)))


def lazy_frame(reading: Callable[[], Reading[EpisodeBatch]], frames: Frames) -> Any:
    """A pl.LazyFrame of what `reading` gives: it is asked once for the columns, and again whenever the frame is collected."""
    from polars.io.plugins import register_io_source

    def source(columns: list[str] | None, predicate: Any, rows: int | None, _: int | None) -> Iterator[Any]:
        with reading() as batches:
            for frame in frames.frames(batches):
                found = frame if rows is None else frame.head(rows)
                rows = None if rows is None else rows - len(found)
                found = found if predicate is None else found.filter(predicate)
                yield found if columns is None else found.select(columns)
                if rows == 0:
                    return

    with reading() as batches:
        schema = next(frames.frames(batches)).schema
    return register_io_source(source, schema=schema)


def _frame(table: Any) -> Any:
    import polars as pl

    return pl.DataFrame({name: _series(table.column(name)) for name in table.schema.names})


def _series(column: Any) -> Any:
    """A pl.Series of an Arrow column; Polars does not know Arrow's type for arrays of several axes."""
    import polars as pl

    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if isinstance(column.type, pa.FixedShapeTensorType):
        return pl.Series(pl.from_arrow(column.storage)).reshape((len(column), *column.type.shape))
    if pa.types.is_struct(column.type):
        parts = {part.name: _series(column.field(i)) for i, part in enumerate(column.type.fields)}
        return pl.DataFrame(parts).to_struct()
    return pl.Series(pl.from_arrow(column))
