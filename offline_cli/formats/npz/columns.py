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
from offline_cli.formats.npz.archive import ArrayInfo, NpzArchive
from offline_cli.scopes import Scope

__all__ = ["ALIASES", "TREES", "column_names", "npz_batches", "npz_schema"]

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
MAX_ROW: Final = 1 << 28  # bytes


def column_names(archive: NpzArchive) -> tuple[list[str], int]:
    """The arrays with a row a step, and how many rows these, and most arrays, have. Raises BadData where none has rows."""
    sizes = Counter(info.shape[0] for info in archive.arrays.values() if info.shape and info.dtype is not None)
    if not sizes:
        raise BadData("no array has rows", where=archive.url, fix="write arrays with a row a step (docs/formats.md)")
    rows = max(sizes, key=lambda size: (sizes[size], size))
    texts = [info.name for info in archive.arrays.values() if info.dtype is not None and info.shape == (rows,)]
    numbers = [info.name for info in archive.arrays.values() if info.has_rows(rows) and 0 not in info.shape[1:]]
    return [name for name in archive.arrays if name in {*texts, *numbers}], rows


def npz_schema(archive: NpzArchive) -> pa.Schema:
    """A column for each array with a row a step. Raises BadData where no array has rows."""
    fields = []
    for name in column_names(archive)[0]:
        info = archive.arrays[name]
        assert info.dtype is not None, "of a column"
        kind = pa.from_numpy_dtype(info.dtype.newbyteorder("=")) if info.dtype.kind != "U" else pa.string()
        for size in reversed(_row(info)):
            kind = pa.list_(kind, size)
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def npz_batches(
    archive: NpzArchive, columns: Collection[str] | None, chunk_bytes: int, max_rows: int, scope: Scope
) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Each batch of rows, and the share of them that has been read with it."""
    names, rows = column_names(archive)
    wanted = [name for name in names if columns is None or name in columns]
    row = sum(archive.arrays[name].nbytes for name in wanted) // max(1, rows)
    if row > MAX_ROW:
        raise BadData(f"a row takes {row >> 20} MiB", where=archive.url, fix="write smaller values")
    at_once = max(1, min(max_rows, chunk_bytes // max(1, row)))
    with scope.part() as held:
        parts = {name: archive.rows(name, held) for name in wanted}
        for first in range(0, rows, at_once):
            count = min(at_once, rows - first)
            arrays = [_arrow(parts[name](count), archive.arrays[name]) for name in wanted]
            yield pa.RecordBatch.from_arrays(arrays, wanted), (first + count) / rows


def _row(info: ArrayInfo) -> tuple[int, ...]:
    """The shape of a row; () where one number is written (N, 1), as replay buffers have rewards, flags and choices."""
    is_choice = info.name in ALIASES[Columns.ACTIONS] and info.dtype is not None and info.dtype.kind in "iu"
    return () if info.shape[1:] == (1,) and (info.name in SCALARS or is_choice) else info.shape[1:]


def _arrow(values: NDArray[Any], info: ArrayInfo) -> pa.Array:
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in reversed(_row(info)):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
