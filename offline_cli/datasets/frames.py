"""Batches as data frames of Polars: `Dataset.to_polars`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from offline_cli.columns import Columns
from offline_cli.datasets.step_rows import StepRows, step_schema
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.scopes import Reading
from offline_cli.spaces import Space
from offline_cli.tally import Tally

MULTI_AGENT_ID: Final = "multi_agent_id"  # of the episode in which an agent's was played
Frames = Callable[[Iterable[EpisodeBatch]], Iterator[pl.DataFrame]]


def step_frames(observation_space: Space | None, action_space: Space | None, *, where: str) -> Frames:
    """Makes frames of steps, one for each batch that has any, but at least one; with the columns of the format `columns`, and
    the id of each agent's multi-agent episode.

    Arrays of several axes are Arrays of Polars, the parts of a Tuple fields '0', '1', ... They raise BadData without spaces,
    BadEpisode where extra model outputs change.
    """

    def frames(batches: Iterable[EpisodeBatch]) -> Iterator[pl.DataFrame]:
        if observation_space is None or action_space is None:
            fix = "offline-cli convert with --env, which says the spaces; or to_polars(per='episode')"
            raise BadData("the dataset does not say its spaces, which columns follow from", where=where, fix=fix)
        rows, is_empty = StepRows(observation_space, action_space, Tally()), True
        for batch in filter(len, map(rows.prepare, batches)):
            is_empty = False
            yield _of_steps(rows.table(batch, where=where), batch)
        if is_empty:
            yield _of_steps(step_schema(observation_space, action_space).empty_table(), EpisodeBatch.from_episodes([]))

    return frames


def _of_steps(table: Any, batch: EpisodeBatch) -> pl.DataFrame:
    frame = pl.DataFrame({name: _series(table.column(name)) for name in table.schema.names})
    names = pl.Series(MULTI_AGENT_ID, batch.multi_agent_ids or (None,) * len(batch), dtype=pl.String)
    steps = names.gather(np.repeat(np.arange(len(batch)), batch.lengths))
    return frame.insert_column(frame.get_column_index(Columns.MODULE_ID) + 1, steps)


def _series(column: Any) -> pl.Series:
    """An Arrow column; Polars does not know Arrow's type for arrays of several axes."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if isinstance(column.type, pa.FixedShapeTensorType):
        return pl.Series(pl.from_arrow(column.storage)).reshape((len(column), *column.type.shape))
    if pa.types.is_struct(column.type):
        return pl.DataFrame({one.name: _series(column.field(i)) for i, one in enumerate(column.type.fields)}).to_struct()
    return pl.Series(pl.from_arrow(column))


def episode_frames(batches: Iterable[EpisodeBatch]) -> Iterator[pl.DataFrame]:
    """Frames of episodes, a row for each: one for each batch, and one without rows."""
    for batch in chain(batches, [EpisodeBatch.from_episodes([])]):
        texts = {Columns.AGENT_ID: batch.agent_ids, Columns.MODULE_ID: batch.module_ids, MULTI_AGENT_ID: batch.multi_agent_ids}
        yield pl.DataFrame(
            {
                Columns.EPS_ID: pl.Series(batch.ids, dtype=pl.String),
                Columns.LENGTH: batch.lengths,
                Columns.RETURN: batch.returns,
                Columns.TERMINATED: batch.terminated,
                Columns.TRUNCATED: batch.truncated,
                **{name: pl.Series(of or [None] * len(batch), dtype=pl.String) for name, of in texts.items()},
            }
        )


def whole_frame(reading: Callable[[], Reading[EpisodeBatch]], frames: Frames) -> pl.DataFrame:
    """All that `reading` gives."""
    with reading() as batches:
        return pl.concat(list(frames(batches)))


def lazy_frame(reading: Callable[[], Reading[EpisodeBatch]], frames: Frames) -> pl.LazyFrame:
    """What `reading` gives: it is asked once for the columns, and again whenever the frame is collected."""

    def source(columns: list[str] | None, predicate: Any, rows: int | None, _: int | None) -> Iterator[pl.DataFrame]:
        with reading() as batches:
            for frame in frames(batches):
                found = frame.head(len(frame) if rows is None else rows)
                rows = None if rows is None else rows - len(found)
                found = found if predicate is None else found.filter(predicate)
                yield found if columns is None else found.select(columns)
                if rows == 0:
                    return

    with reading() as batches:
        schema = next(frames(batches)).schema
    return register_io_source(source, schema=schema)
