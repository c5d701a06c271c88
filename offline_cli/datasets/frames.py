"""Batches as data frames of Polars: `Dataset.to_polars`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from offline_cli.columns import Columns
from offline_cli.datasets import step_tables
from offline_cli.datasets.step_tables import StepRows
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.scopes import Reading
from offline_cli.spaces import Space
from offline_cli.tally import Tally

__all__ = ["EpisodeFrames", "StepFrames", "lazy_frame", "whole_frame"]

MULTI_AGENT_ID: Final = "multi_agent_id"  # of the episode in which an agent's was played
FURTHER: Final = (Columns.INFOS, Columns.FINAL_OBS_ASSUMED)  # what frames have columns of from the start


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
