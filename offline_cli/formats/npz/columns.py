"""Flat arrays of an archive as columns of a table: those with a row a step, whatever their names mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import BadData
from offline_cli.formats.npz.archive import NpzArchive
from offline_cli.scopes import Scope

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    Columns.EPS_ID: ("eps_id", "episode_ids", "episode_id"),
    Columns.OBS: ("observations", "obs", "states", "state"),
    Columns.ACTIONS: ("actions", "acts", "action"),
    Columns.REWARDS: ("rewards", "rews", "reward"),
    Columns.NEXT_OBS: ("next_observations", "next_obs", "new_obs", "next_states", "next_state"),
    Columns.TERMINATEDS: ("terminals", "terminateds", "terminations", "terminated"),
    Columns.TRUNCATEDS: ("timeouts", "truncateds", "truncations", "truncated"),
    Columns.DONES: ("dones", "done"),
}
"""Names of arrays for each of our columns, the first that is there counts; `observations/camera` is a part of them."""
TREES: Final = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS)
SCALARS: Final = frozenset(name for ours, names in ALIASES.items() if ours not in TREES for name in names)


def column_names(archive: NpzArchive) -> tuple[list[str], int]:
    """The arrays with a row a step, and how many rows these, and most arrays, have. Raises BadData where none has rows."""
    read = [one for one in archive.arrays.values() if one.shape and (one.dtype is not None or one.said == "text")]
    if not read:
        raise BadData("no array has rows", where=archive.url, fix="write arrays with a row a step (docs/howto/formats.md)")
    sizes = Counter(one.shape[0] for one in read)
    rows = max(sizes, key=lambda size: (sizes[size], size))
    whole = [one for one in read if one.shape[0] == rows and 0 not in one.shape[1:]]
    return [one.name for one in whole if one.dtype is not None or len(one.shape) == 1], rows


def npz_schema(archive: NpzArchive) -> pa.Schema:
    """A column for each array with a row a step. Raises BadData where no array has rows."""
    columns = (archive.arrays[name] for name in column_names(archive)[0])
    empty = {one.name: _arrow(one.name, np.empty((0, *one.shape[1:]), one.dtype or np.str_)) for one in columns}
    return pa.table(empty).schema


def npz_batches(
    archive: NpzArchive, columns: Collection[str] | None, chunk_bytes: int, max_rows: int, scope: Scope
) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Each batch of rows, and the share of them that has been read with it."""
    names, rows = column_names(archive)
    wanted = [name for name in names if columns is None or name in columns]
    at_once = max(1, min(max_rows, chunk_bytes // max(1, sum(archive.arrays[name].row_bytes for name in wanted))))
    with scope.part() as held:
        read = {name: archive.rows(name, held) for name in wanted}
        for first in range(0, rows, at_once):
            count = min(at_once, rows - first)
            arrays = [_arrow(name, read[name](count)) for name in wanted]
            yield pa.RecordBatch.from_arrays(arrays, wanted), (first + count) / rows


def _arrow(name: str, values: NDArray[Any]) -> pa.Array:
    """A column; (N, 1), as replay buffers have rewards, flags and choices, is one number a row."""
    is_choice = name in ALIASES[Columns.ACTIONS] and values.dtype.kind in "iu"
    shape = () if values.shape[1:] == (1,) and (name in SCALARS or is_choice) else values.shape[1:]
    array = pa.array(values.reshape(-1), pa.string() if values.dtype.kind == "U" else None)
    for size in reversed(shape):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
