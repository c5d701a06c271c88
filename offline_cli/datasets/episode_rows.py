"""The `episodes` format: one row per episode, its bytes and a few plain columns.

`episodes.codec` makes the bytes; the plain columns are for other tools to filter by and are not read back. A row without bytes
raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.datasets.row_format import FIX, OF_AGENTS, PLAIN_SCHEMA, RowFormat, Rows, differing_columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import BatchDecoder, encode_batch
from offline_cli.episodes.fit import check_shapes
from offline_cli.errors import BadData, BadEpisode
from offline_cli.spaces import describe, same_space, tree_from_lists
from offline_cli.tally import Rejects, Tally

EPISODE_SCHEMA: Final = pa.schema(
    [pa.field(Columns.ITEM, pa.binary()), *(field for field in PLAIN_SCHEMA if field.name not in OF_AGENTS)]
)


class EpisodeRows(RowFormat):
    """One row per episode, whose columns are always the same."""

    name = "episodes"
    plain_from = EPISODE_SCHEMA.remove(0)

    # ---- writing ----

    def rows_of(self, batch: EpisodeBatch) -> NDArray[np.int64]:
        """See RowFormat."""
        return np.ones(len(batch), np.int64)

    def prepare(self, batch: EpisodeBatch) -> EpisodeBatch:
        """See RowFormat."""
        check_shapes(batch, *self.spaces)
        return batch

    def table(self, batch: EpisodeBatch, *, where: str) -> Any:
        """See RowFormat. Raises BadData for values that cannot be encoded, naming episode, step and key."""
        columns = [
            pa.array(encode_batch(batch, where=where, tally=self.tally), pa.binary()),
            pa.array(batch.ids, pa.string()),
            pa.array(batch.lengths),
            pa.array(batch.returns),
            pa.array(np.ascontiguousarray(batch.terminated)),
            pa.array(np.ascontiguousarray(batch.truncated)),
        ]
        return pa.Table.from_arrays(columns, schema=EPISODE_SCHEMA)

    # ---- reading ----

    def wrong_columns(self, schema: Any) -> list[str]:
        """See RowFormat."""
        return differing_columns(schema, pa.schema([EPISODE_SCHEMA.field(Columns.ITEM)]))

    def columns(self, schema: Any) -> list[str]:
        """See RowFormat."""
        return [Columns.ITEM]

    def starts(self, ids: Any) -> NDArray[np.int64]:
        """See RowFormat."""
        return np.arange(len(ids) + 1)

    def whole(self, tables: Iterable[Any], target_rows: int) -> Iterator[Rows]:
        """See RowFormat: tables as they come."""
        return (Rows(table, np.arange(table.num_rows + 1)) for table in tables)

    def batches(self, rows: Rows, numbers: Sequence[int] | NDArray[Any], *, where: str) -> Iterator[EpisodeBatch]:
        """See RowFormat.

        The spaces replace those in the bytes, and make tuples of what the bytes hold as lists. Raises BadData, naming the row,
        for bytes that hold no episode, and naming the episode where keys or shapes are not those of the spaces.
        """
        items = rows.table.column(Columns.ITEM)
        if items.null_count:
            raise BadData(f"{items.null_count} values of column 'item' are null", where=where, fix=FIX)
        for batch in self._decoder.decode(items, where=lambda row: f"{where} row {numbers[row]}"):
            shaped = self._with_spaces(batch, where)
            if self.declared:
                self._refuse_others(batch, where)
            if self.keep is not None:
                extra = {name: tree for name, tree in shaped.extra.items() if name in self.keep}
                shaped = replace(shaped, extra=extra, infos=shaped.infos if Columns.INFOS in self.keep else None)
            yield shaped

    def plain(self, rows: Rows, *, where: str) -> Any:
        """See RowFormat: who acted is in the packed bytes alone."""
        nobody = pa.nulls(rows.table.num_rows, pa.string())
        columns = [nobody if name in OF_AGENTS else rows.table.column(name) for name in PLAIN_SCHEMA.names]
        return pa.table(columns, schema=PLAIN_SCHEMA)

    @cached_property
    def _decoder(self) -> BatchDecoder:
        """Remembers layouts that it has seen."""
        return BatchDecoder(Rejects(), Tally())

    def _with_spaces(self, batch: EpisodeBatch, where: str) -> EpisodeBatch:
        observations, actions = self.spaces
        if observations is None and actions is None:
            return batch
        try:
            check_shapes(batch, observations, actions)
        except BadEpisode as err:
            raise BadData(f"not in the manifest's spaces: {err.what}", where=f"{where}, {err.where}", fix=FIX) from err
        return replace(
            batch,
            obs=tree_from_lists(batch.obs, observations),
            actions=tree_from_lists(batch.actions, actions),
            observation_space=observations or batch.observation_space,
            action_space=actions or batch.action_space,
        )

    def _refuse_others(self, batch: EpisodeBatch, where: str) -> None:
        """Raise BadData where the episodes themselves say other spaces than their manifest.

        Bounds of observations may differ: a program that wrote through the library may have given others with the episodes.
        Those of actions decide what an action stands for.
        """
        pairs = zip(("observation", "action"), (batch.observation_space, batch.action_space), self.spaces, strict=True)
        for name, own, said in pairs:
            agree = same_space if name == "action" else lambda one, other: describe(one) == describe(other)
            if own is not None and said is not None and own is not said and not agree(own, said):
                states = f"its {name} space is {describe(said)}, the episodes say {describe(own)}"
                raise BadData(
                    f"the manifest contradicts its shards: {states}", where=f"{where}, episode {batch.ids[0]}", fix=FIX
                )
