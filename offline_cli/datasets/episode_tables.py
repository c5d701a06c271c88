"""EpisodeBatch to Arrow table of the `episodes` format and back: one row per episode, its bytes and a few plain columns.

`episodes.codec` makes the bytes; the plain columns are for other tools to filter by and are not read back. A row without bytes
raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import BatchDecoder, encode_batch
from offline_cli.episodes.fit import check_shapes
from offline_cli.errors import BadData, BadEpisode
from offline_cli.spaces import Space, describe, same_space, tree_from_lists
from offline_cli.tally import Tally

__all__ = [
    "EPISODE_SCHEMA",
    "PLAIN_SCHEMA",
    "EpisodeRows",
    "from_table",
    "to_table",
    "with_agents",
]

FIX = "write the dataset again from its source"
MAX_BINARY = (1 << 31) - 1  # bytes in one array
EPISODE_SCHEMA = pa.schema(
    [
        pa.field(Columns.ITEM, pa.binary()),
        pa.field(Columns.EPS_ID, pa.string()),
        pa.field(Columns.LENGTH, pa.int64()),
        pa.field(Columns.RETURN, pa.float64()),
        pa.field(Columns.TERMINATED, pa.bool_()),
        pa.field(Columns.TRUNCATED, pa.bool_()),
    ]
)


PLAIN_SCHEMA: Final = pa.schema(
    [
        *(field for field in EPISODE_SCHEMA if field.name != Columns.ITEM),
        pa.field(Columns.AGENT_ID, pa.string()),
        pa.field(Columns.MODULE_ID, pa.string()),
    ]
)
"""What is known of an episode without its steps; ids of agent and module may be null."""


def to_table(batch: EpisodeBatch, *, where: str, tally: Tally) -> Any:
    """The pa.Table of `batch`. Raises BadData for values that cannot be encoded, naming episode, step and key."""
    columns = [
        _binary(encode_batch(batch, where=where, tally=tally)),
        pa.array(batch.ids, pa.string()),
        pa.array(batch.lengths),
        pa.array(batch.returns),
        pa.array(np.ascontiguousarray(batch.terminated)),
        pa.array(np.ascontiguousarray(batch.truncated)),
    ]
    return pa.Table.from_arrays(columns, schema=EPISODE_SCHEMA)


def _binary(items: list[bytes]) -> Any:
    """A pa.BinaryArray over one copy of the items, none of a single one; Arrow's own builder makes two."""
    ends = np.cumsum(np.fromiter(map(len, items), np.int64, len(items)))
    if not len(ends) or ends[-1] > MAX_BINARY:
        return pa.array(items, pa.binary())
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    data = items[0] if len(items) == 1 else b"".join(items)
    return pa.Array.from_buffers(pa.binary(), len(items), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def from_table(
    table: Any,
    *,
    first: int,
    where: str,
    decoder: BatchDecoder,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    declared: bool = False,
) -> Iterator[EpisodeBatch]:
    """Batches of the episodes in a pa.Table's `item` column, in row order. `first`: the number of its first row in its file.

    Given spaces replace those in the bytes, and make tuples of what the bytes hold as lists; where they are `declared`, the
    bytes may say no others. Raises BadData, naming the row, through the decoder's rejects, and naming the episode where keys or
    shapes are not those of the spaces.
    """
    items = table.column(Columns.ITEM)
    if items.null_count:
        raise BadData(f"{items.null_count} values of column 'item' are null", where=where, fix=FIX)
    for batch in decoder.decode(items, where=lambda row: f"{where} row {first + row}"):
        try:
            shaped = _with_spaces(batch, observation_space, action_space)
        except BadEpisode as err:
            raise BadData(f"not in the manifest's spaces: {err.what}", where=f"{where}, {err.where}", fix=FIX) from err
        if declared:
            _refuse_others(batch, observation_space, action_space, where)
        yield shaped


def _refuse_others(batch: EpisodeBatch, observation_space: Space | None, action_space: Space | None, where: str) -> None:
    """Raise BadData where the episodes themselves say other spaces than their manifest.

    Bounds of observations may differ: a program that wrote through the library may have given others with the episodes. Those
    of actions decide what an action stands for.
    """
    pairs = (
        ("observation", batch.observation_space, observation_space, lambda own, said: describe(own) == describe(said)),
        ("action", batch.action_space, action_space, same_space),
    )
    for name, own, said, agree in pairs:
        if own is not None and said is not None and own is not said and not agree(own, said):
            what = (
                f"the manifest contradicts its shards: its {name} space is {describe(said)}, the episodes say {describe(own)}"
            )
            raise BadData(what, where=f"{where}, episode {batch.ids[0]}", fix=FIX)


def _with_spaces(batch: EpisodeBatch, observation_space: Space | None, action_space: Space | None) -> EpisodeBatch:
    if observation_space is None and action_space is None:
        return batch
    check_shapes(batch, observation_space, action_space)
    return replace(
        batch,
        obs=tree_from_lists(batch.obs, observation_space),
        actions=tree_from_lists(batch.actions, action_space),
        observation_space=observation_space or batch.observation_space,
        action_space=action_space or batch.action_space,
    )


def with_agents(table: Any) -> Any:
    """The plain columns of packed episodes in the form of all: who acted is in the packed bytes alone."""
    nobody = pa.nulls(table.num_rows, pa.string())
    columns = {**{name: table.column(name) for name in table.column_names}, Columns.AGENT_ID: nobody, Columns.MODULE_ID: nobody}
    return pa.table([columns[name] for name in PLAIN_SCHEMA.names], schema=PLAIN_SCHEMA)


class EpisodeRows:
    """What a writer asks of a row format, here with one row per episode, whose columns are always the same."""

    name = "episodes"

    def __init__(self, observation_space: Space | None, action_space: Space | None, tally: Tally) -> None:
        self._spaces, self._tally = (observation_space, action_space), tally

    def rows_of(self, batch: EpisodeBatch) -> NDArray[np.int64]:
        """(E,) rows of each episode."""
        return np.ones(len(batch), np.int64)

    def prepare(self, batch: EpisodeBatch) -> EpisodeBatch:
        """`batch` as it will be stored. Raises BadEpisode where it does not fit the spaces."""
        check_shapes(batch, *self._spaces)
        return batch

    def first_change(self, batch: EpisodeBatch) -> int | None:
        """The first episode from which on tables have more columns than before; None: the columns stay."""
        return None

    def add_columns(self, batch: EpisodeBatch) -> None:
        """Make tables with more columns from now on, as `first_change` said of `batch`."""

    def table(self, batch: EpisodeBatch, *, where: str) -> Any:
        """The pa.Table of a prepared batch, bound for the shard `where`. Raises BadData."""
        return to_table(batch, where=where, tally=self._tally)

    def adopt(self, schema: Any) -> None:
        """Continue with the pa.Schema of a shard written before."""

    def lacks(self, schema: Any) -> bool:
        """Whether a shard of this pa.Schema has fewer columns than the dataset."""
        return False

    def completed(self, table: Any) -> Any:
        """The pa.Table of such a shard with all columns."""
        return table
