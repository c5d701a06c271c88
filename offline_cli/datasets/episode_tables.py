"""EpisodeBatch to Arrow table of the `episodes` format and back: one row per episode, its bytes and a few plain columns.

`episodes.codec` makes the bytes; the plain columns are for other tools to filter by and are not read back. A row without bytes
raises. Whether a shard, of either format, has the columns that it must have: `check_columns`, `check_further_columns`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.datasets.step_tables import INFO_COLUMNS
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import BatchDecoder, encode_batch
from offline_cli.episodes.episode_spaces import check_shapes
from offline_cli.errors import PROBLEM, BadData, BadEpisode
from offline_cli.parquet.arrow_trees import is_numeric
from offline_cli.spaces import Space, describe, same_space, tree_from_lists
from offline_cli.storage.locations import Location
from offline_cli.tally import Tally

__all__ = [
    "EPISODE_SCHEMA",
    "PLAIN_SCHEMA",
    "check_columns",
    "check_further_columns",
    "from_table",
    "table_of",
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
    return table_of(batch, _binary(encode_batch(batch, where=where, tally=tally)))


def table_of(batch: EpisodeBatch, items: Any) -> Any:
    """The pa.Table of `batch`, whose bytes are `items`: plain columns of the source are not taken, because they may lie."""
    return pa.Table.from_arrays(
        [
            items,
            pa.array(batch.ids, pa.string()),
            pa.array(batch.lengths),
            pa.array(batch.returns),
            pa.array(np.ascontiguousarray(batch.terminated)),
            pa.array(np.ascontiguousarray(batch.truncated)),
        ],
        schema=EPISODE_SCHEMA,
    )


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
    rows: NDArray[np.int64],
    where: str,
    decoder: BatchDecoder,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    declared: bool = False,
) -> Iterator[EpisodeBatch]:
    """Batches of the episodes in a pa.Table's `item` column, in row order. `rows`: their numbers in its file.

    Given spaces replace those in the bytes, and make tuples of what the bytes hold as lists; where they are `declared`, the
    bytes may say no others. Raises BadData, naming the row, through the decoder's rejects, and naming the episode where keys or
    shapes are not those of the spaces.
    """
    items = table.column(Columns.ITEM)
    if items.null_count:
        raise BadData(f"{items.null_count} values of column 'item' are null", where=where, fix=FIX)
    for batch in decoder.decode(items, where=lambda row: f"{where} row {rows[row]}"):
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


# ---- columns of a shard ----


def check_columns(have: Any, want: Any, location: Location) -> None:
    """Raise BadData, naming every difference, unless pa.Schema `have` has all the columns of `want`, as it has them."""
    wrong = []
    for column in want:
        if column.name not in have.names:
            wrong.append(f"no column {column.name!r}")
        elif not have.field(column.name).type.equals(column.type):
            wrong.append(f"column {column.name!r} is {have.field(column.name).type}, its space makes it {column.type}")
    if wrong:
        raise _wrong_columns(f"other columns than the manifest says: {'; '.join(wrong)}", location)


def check_further_columns(have: Any, location: Location) -> None:
    """Raise BadData, naming every one, for infos that are not text and extra model outputs that are not numbers."""
    kinds = {name: have.field(name).type for name in (*INFO_COLUMNS, Columns.SOURCE_ID) if name in have.names}
    wrong = [f"column {name!r} is {kind}, not text" for name, kind in kinds.items() if not pa.types.is_string(kind)]
    infos = [name for name in kinds if name in INFO_COLUMNS]
    if len(infos) == 1:
        wrong.append(f"of {' and '.join(INFO_COLUMNS)} only {infos[0]}")
    assumed = Columns.FINAL_OBS_ASSUMED
    if assumed in have.names and not pa.types.is_boolean(have.field(assumed).type):
        wrong.append(f"column {assumed!r} is {have.field(assumed).type}, not true or false")
    extra = [column for column in have if column.name not in (*STEP_COLUMNS, *kinds, assumed)]
    wrong += [f"column {part.name!r} is {part.type}, which holds no numbers" for part in extra if not is_numeric(part.type)]
    if wrong:
        raise _wrong_columns(f"columns that no dataset has: {'; '.join(wrong)}", location)


def _wrong_columns(what: str, location: Location) -> BadData:
    return BadData(what, where=location.url, fix=FIX, details={PROBLEM: "shard-columns"})
