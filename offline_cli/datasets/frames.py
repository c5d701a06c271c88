"""Batches as data frames of Polars: `Dataset.to_polars`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from offline_cli.columns import Columns
from offline_cli.datasets.step_rows import StepRows, step_schema
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.spaces import Space

MULTI_AGENT_ID: Final = "multi_agent_id"  # id of the multi-agent episode


def step_frame(
    batches: Iterable[EpisodeBatch], observation_space: Space | None, action_space: Space | None, *, where: str
) -> pl.DataFrame:
    """A data frame with one row per step: the columns of the format `columns`, and the multi-agent episode's id.

    Multi-dimensional arrays become Polars Arrays, the parts of a Tuple fields '0', '1', ... Raises BadData without spaces,
    BadEpisode if extra model outputs change.
    """
    if observation_space is None or action_space is None:
        fix = "convert it with --env, which sets the spaces; or use to_polars(per='episode')"
        raise BadData("the dataset has no spaces, which step columns need", where=where, fix=fix)
    rows = StepRows(observation_space, action_space)
    frames = [_of_steps(rows.table(batch, where=where), batch) for batch in filter(len, map(rows.prepare, batches))]
    empty = step_schema(observation_space, action_space).empty_table()
    return pl.concat(frames or [_of_steps(empty, EpisodeBatch.from_episodes([]))])


def _of_steps(table: Any, batch: EpisodeBatch) -> pl.DataFrame:
    frame = pl.DataFrame({name: _series(table.column(name)) for name in table.schema.names})
    steps = _texts(batch.multi_agent_ids, batch).gather(np.repeat(np.arange(len(batch)), batch.lengths))
    return frame.insert_column(frame.get_column_index(Columns.MODULE_ID) + 1, steps.alias(MULTI_AGENT_ID))


def _texts(values: Sequence[str | None] | None, batch: EpisodeBatch) -> pl.Series:
    return pl.Series(values or [None] * len(batch), dtype=pl.String)


def _series(column: Any) -> pl.Series:
    """Convert an Arrow column; Polars does not support Arrow's tensor type."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if isinstance(column.type, pa.FixedShapeTensorType):
        return pl.Series(pl.from_arrow(column.storage)).reshape((len(column), *column.type.shape))
    if pa.types.is_struct(column.type):
        return pl.DataFrame({one.name: _series(column.field(i)) for i, one in enumerate(column.type.fields)}).to_struct()
    return pl.Series(pl.from_arrow(column))


def episode_frame(batches: Iterable[EpisodeBatch]) -> pl.DataFrame:
    """A data frame with one row per episode."""
    return pl.concat(
        pl.DataFrame(
            {
                Columns.EPS_ID: pl.Series(batch.ids, dtype=pl.String),
                Columns.LENGTH: batch.lengths,
                Columns.RETURN: batch.returns,
                Columns.TERMINATED: batch.terminated,
                Columns.TRUNCATED: batch.truncated,
                Columns.AGENT_ID: _texts(batch.agent_ids, batch),
                Columns.MODULE_ID: _texts(batch.module_ids, batch),
                MULTI_AGENT_ID: _texts(batch.multi_agent_ids, batch),
            }
        )
        for batch in chain(batches, [EpisodeBatch.from_episodes([])])
    )
