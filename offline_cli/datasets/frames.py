"""Batches as data frames of Polars: `Dataset.to_polars`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

from offline_cli.columns import Columns
from offline_cli.datasets.step_rows import StepRows, step_schema
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.scopes import Reading
from offline_cli.spaces import Space
from offline_cli.tally import Tally

__all__ = ["episode_frames", "lazy_frame", "step_frames", "whole_frame"]

MULTI_AGENT_ID: Final = "multi_agent_id"  # of the episode in which an agent's was played
OPTIONAL: Final = ((MULTI_AGENT_ID,), (Columns.INFOS, Columns.RESET_INFOS), (Columns.FINAL_OBS_ASSUMED,), (Columns.SOURCE_ID,))
"""Columns that whole frames have only where one of them says something."""
Frames = Callable[[Iterable[EpisodeBatch]], Iterator[Any]]


def step_frames(observation_space: Space | None, action_space: Space | None, *, where: str) -> Frames:
    """Makes pl.DataFrames of steps, one for each batch that has any, but at least one; with the columns of the format
    `columns`, and the id of each agent's multi-agent episode.

    Arrays of several axes are Arrays of Polars, the parts of a Tuple fields '0', '1', ... They raise BadData without spaces,
    BadEpisode where extra model outputs change.
    """

    def frames(batches: Iterable[EpisodeBatch]) -> Iterator[Any]:
        if observation_space is None or action_space is None:
            fix = "offline-cli convert with --env, which says the spaces; or to_polars(per='episode')"
            raise BadData("the dataset does not say its spaces, which columns follow from", where=where, fix=fix)
        rows, count = StepRows(observation_space, action_space, Tally()), 0
        for prepared in filter(len, map(rows.prepare, batches)):
            count += 1
            yield _with_multi_agent_ids(_frame(rows.table(prepared, where=where)), prepared)
        if not count:
            empty = _frame(step_schema(observation_space, action_space).empty_table())
            yield _with_multi_agent_ids(empty, EpisodeBatch.from_episodes([]))

    return frames


def _with_multi_agent_ids(frame: Any, batch: EpisodeBatch) -> Any:
    import polars as pl

    names = pl.Series(MULTI_AGENT_ID, batch.multi_agent_ids or (None,) * len(batch), dtype=pl.String)
    steps = names.gather(np.repeat(np.arange(len(batch)), batch.lengths))
    return frame.insert_column(frame.get_column_index(Columns.MODULE_ID) + 1, steps)


def episode_frames(batches: Iterable[EpisodeBatch]) -> Iterator[Any]:
    """pl.DataFrames of episodes, a row for each: one for each batch, and one without rows."""
    import polars as pl

    for batch in chain(batches, [EpisodeBatch.from_episodes([])]):
        numbers = {
            Columns.LENGTH: batch.lengths,
            Columns.RETURN: batch.returns,
            Columns.TERMINATED: batch.terminated,
            Columns.TRUNCATED: batch.truncated,
        }
        names = {Columns.AGENT_ID: batch.agent_ids, Columns.MODULE_ID: batch.module_ids, MULTI_AGENT_ID: batch.multi_agent_ids}
        texts = {name: pl.Series(of or [None] * len(batch), dtype=pl.String) for name, of in names.items()}
        yield pl.DataFrame({Columns.EPS_ID: pl.Series(batch.ids, dtype=pl.String), **numbers, **texts})


def whole_frame(reading: Callable[[], Reading[EpisodeBatch]], frames: Frames) -> Any:
    """All that `reading` gives, as one pl.DataFrame, without those of OPTIONAL that are empty."""
    import polars as pl

    with reading() as batches:
        whole = pl.concat(list(frames(batches)))
    for names in OPTIONAL:
        says = (
            whole[name].any() if whole[name].dtype == pl.Boolean else whole[name].count() for name in names if name in whole
        )
        if not any(says):
            whole = whole.drop(names, strict=False)
    return whole


def lazy_frame(reading: Callable[[], Reading[EpisodeBatch]], frames: Frames) -> Any:
    """A pl.LazyFrame of what `reading` gives: it is asked once for the columns, and again whenever the frame is collected."""
    from polars.io.plugins import register_io_source

    def source(columns: list[str] | None, predicate: Any, rows: int | None, _: int | None) -> Iterator[Any]:
        with reading() as batches:
            for frame in frames(batches):
                found = frame if rows is None else frame.head(rows)
                rows = None if rows is None else rows - len(found)
                found = found if predicate is None else found.filter(predicate)
                yield found if columns is None else found.select(columns)
                if rows == 0:
                    return

    with reading() as batches:
        schema = next(frames(batches)).schema
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
