"""The two row formats as a writer uses them: rows per episode, and batches as tables.

`columns` has one schema for the whole dataset; a batch that does not fit it raises. The first block fixes the extra model
outputs and whether there are ids of the source. Infos get their two columns from the first episode on that has any, and
`final_obs_assumed` its one; shards before it get empty ones at the commit (`lacks`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import CUSTOM_COLUMNS, Columns
from offline_cli.datasets import episode_tables, step_tables
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec.pack_batch import check_names
from offline_cli.episodes.fit import check_shapes, conform
from offline_cli.errors import BadEpisode, UsageError
from offline_cli.spaces import Space, check_supported
from offline_cli.tally import Tally

__all__ = [
    "EpisodeRows",
    "RowFormat",
    "StepRows",
    "row_format",
]


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

    def table(self, batch: EpisodeBatch, *, where: str) -> Any:
        """The pa.Table of a prepared batch, bound for the shard `where`. Raises BadData."""
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

    def table(self, batch: EpisodeBatch, *, where: str) -> Any:
        """See RowFormat."""
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

    def table(self, batch: EpisodeBatch, *, where: str) -> Any:
        """See RowFormat."""
        self._fix_extras(step_tables.extra_fields(batch), f"batch from episode {batch.ids[0]}")
        return step_tables.to_table(batch, self._schema(), tally=self._tally)

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
