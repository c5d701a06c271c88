"""The two row formats as a writer uses them: rows per episode, and batches as tables.

`columns` has one schema for the whole dataset; a batch that does not fit it raises. The first block fixes the extra model
outputs and whether there are ids of the source. Infos get their two columns from the first episode on that has any; shards
before it get empty ones at the commit (`lacks`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.datasets import episode_tables, step_tables
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec.fields import check_names
from offline_cli.episodes.episode_spaces import check_shapes, conform
from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space, check_supported
from offline_cli.tally import Tally

__all__ = ["EpisodeRows", "RowFormat", "StepRows", "row_format"]


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

    def add_columns(self) -> None:
        """Make tables with more columns from now on, as `first_change` said."""

    def lacks(self, schema: Any) -> bool:
        """Whether a shard of this pa.Schema has fewer columns than the dataset."""
        return False

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
            return pa.Table.from_arrays(ready.columns, schema=episode_tables.EPISODE_SCHEMA)  # without what reading notes in it
        return episode_tables.to_table(batch, where=where, tally=self._tally)


class StepRows(RowFormat):
    """One row per step."""

    name = "columns"

    def __init__(self, observation_space: Space, action_space: Space, tally: Tally) -> None:
        """Raises UnsupportedSpace for spaces that make no column."""
        self._spaces = observation_space, action_space
        self._tally = tally
        self._extra: list[Any] | None = None  # pa.Fields of the extra model outputs; None until the first block
        self._has_infos = False
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
            kept = {Columns.SOURCE_ID} if self._has_source_ids else set[str]()
            self._tally.assume("custom-data-not-kept", sum(not kept.issuperset(data) for data in batch.custom_data))
        if batch.clock is not None:
            self._tally.assume("clock-not-kept", int(np.count_nonzero(~np.isnan(batch.clock).all(axis=1))))
        if batch.multi_agent_ids is not None:
            self._tally.assume("multi-agent-id-not-kept", sum(name is not None for name in batch.multi_agent_ids))

    def first_change(self, batch: EpisodeBatch) -> int | None:
        """The first episode with an info that is not empty, if none had one before."""
        if self._has_infos or batch.infos is None:
            return None
        row = next((row for row, info in enumerate(batch.infos) if info), None)
        return None if row is None else int(np.searchsorted(batch.obs_starts, row, side="right")) - 1

    def add_columns(self) -> None:
        """Give tables the columns of infos from now on."""
        self._has_infos = True

    def lacks(self, schema: Any) -> bool:
        """Whether a shard of this schema was written before there were infos."""
        return self._has_infos and step_tables.INFO_COLUMNS[0] not in schema.names

    def table(self, batch: EpisodeBatch, *, where: str, ready: Any = None) -> Any:
        """See RowFormat."""
        self._fix_extras(step_tables.extra_fields(batch), f"batch from episode {batch.ids[0]}")
        source_ids = bool(self._has_source_ids)
        schema = step_tables.step_schema(*self._spaces, self._extra or (), source_ids=source_ids, infos=self._has_infos)
        if ready is not None and ready.schema.equals(schema):
            return pa.Table.from_arrays(ready.columns, schema=schema)
        return step_tables.to_table(batch, schema, tally=self._tally)

    def adopt(self, schema: Any) -> None:
        """See RowFormat."""
        self._has_infos |= step_tables.INFO_COLUMNS[0] in schema.names
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
    """The format of that name: `episodes`, or `columns`, which needs both spaces."""
    if name == "episodes":
        return EpisodeRows(observation_space, action_space, tally)
    assert name == "columns", f"no format {name!r}"
    assert observation_space is not None, "columns need an observation space"
    assert action_space is not None, "columns need an action space"
    return StepRows(observation_space, action_space, tally)
