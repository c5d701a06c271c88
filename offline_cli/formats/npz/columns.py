"""Flat arrays of an archive as the columns of a table, a row a step, and the mapping for names that this field uses."""

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

__all__ = ["ALIASES", "NO_COLUMN", "mapping_for", "npz_batches", "npz_schema", "rows_of"]

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
NEEDED: Final = (Columns.OBS, Columns.ACTIONS)
MAX_ROW: Final = 1 << 28  # bytes
NO_COLUMN: Final = pa.binary()  # stands for an array without a value a row, which is left out by name


def mapping_for(names: Collection[str]) -> dict[str, Any] | None:
    """A mapping document for arrays of these names; None where observations or actions are not among them."""
    columns: dict[str, str] = {}
    for ours, theirs in ALIASES.items():
        found = next((name for name in theirs if name in names), None)
        if found is not None:
            columns[ours] = found
        elif ours in TREES:
            columns |= _parts(ours, theirs, names)
    if any(not any(name.partition(".")[0] == needed for name in columns) for needed in NEEDED):
        return None
    return {"description": "Arrays by the names that this field uses.", "columns": columns}


def _parts(ours: str, theirs: Collection[str], names: Collection[str]) -> dict[str, str]:
    for one in theirs:
        found = {f"{ours}.{name[len(one) + 1 :].replace('/', '.')}": name for name in names if name.startswith(f"{one}/")}
        if found:
            return found
    return {}


def npz_schema(archive: NpzArchive) -> pa.Schema:
    """A column for each array. Raises BadData where no array has rows."""
    rows = rows_of(archive)
    return pa.schema([pa.field(name, _type(info, rows)) for name, info in archive.arrays.items()])


def npz_batches(
    archive: NpzArchive, columns: Collection[str] | None, chunk_bytes: int, max_rows: int, scope: Scope
) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Each batch of rows, and the share of them that has been read with it."""
    rows = rows_of(archive)
    schema = npz_schema(archive)
    wanted = [name for name in schema.names if columns is None or name in columns]
    row = sum(archive.arrays[name].nbytes for name in wanted if schema.field(name).type != NO_COLUMN) // max(1, rows)
    if row > MAX_ROW:
        raise BadData(f"a row takes {row >> 20} MiB", where=archive.url, fix="write smaller values")
    at_once = max(1, min(max_rows, chunk_bytes // max(1, row)))
    with scope.part() as held:
        parts = {name: archive.rows(name, held) for name in wanted if schema.field(name).type != NO_COLUMN}
        for first in range(0, rows, at_once):
            count = min(at_once, rows - first)
            arrays = [
                _arrow(parts[name].read(count), archive.arrays[name]) if name in parts else _nulls(count) for name in wanted
            ]
            yield pa.RecordBatch.from_arrays(arrays, wanted), (first + count) / rows


def rows_of(archive: NpzArchive) -> int:
    """How many rows most of its arrays have. Raises BadData where none has any."""
    sizes = Counter(info.shape[0] for info in archive.arrays.values() if info.shape and info.dtype is not None)
    if not sizes:
        raise BadData("no array has rows", where=archive.url, fix="write arrays with a row a step (docs/formats.md)")
    return max(sizes, key=lambda size: (sizes[size], size))


def _type(info: ArrayInfo, rows: int) -> pa.DataType:
    if info.dtype is None or info.shape[:1] != (rows,) or 0 in info.row or (info.dtype.kind == "U" and info.row):
        return NO_COLUMN
    kind = pa.string() if info.dtype.kind == "U" else pa.from_numpy_dtype(info.dtype.newbyteorder("="))
    for size in reversed(() if _is_flag_column(info) else info.row):
        kind = pa.list_(kind, size)
    return kind


def _is_flag_column(info: ArrayInfo) -> bool:
    """One number a row, written (N, 1): of rewards and flags, as some programs write them."""
    scalars = (name for ours, names in ALIASES.items() if ours not in TREES for name in names)
    return info.row == (1,) and info.name in scalars


def _arrow(values: NDArray[Any], info: ArrayInfo) -> pa.Array:
    if _is_flag_column(info):
        values = values.reshape(-1)
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def _nulls(count: int) -> pa.Array:
    return pa.nulls(count, NO_COLUMN)
