"""Read the arrays of a NumPy archive (`.npz`), without unpickling, and as columns of a table.

The decompressed size of an archive is limited, and an array's shape and dtype must match the size of its member.

Each array with one row per step is a column.
"""

from __future__ import annotations

import errno
import io
import math
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import PROBLEM, BadData, MemoryLimitExceeded, OfflineCliError, UnsafeData
from offline_cli.formats.memory_limits import MEMORY_LIMIT
from offline_cli.formats.whole_episodes import StoredArray
from offline_cli.scopes import Scope
from offline_cli.storage.failures import storage_failures

ENDING: Final = ".npy"
HEADERS: Final = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
MAX_MEMBERS: Final = 10_000
SMALL, RATIO = 64 << 20, 1000  # limit of the decompressed size: the larger of these bytes and this multiple of the file
FIX: Final = "write the file again with numpy.savez, or copy it again"


class NpzArchive:
    """An open archive. Every method may raise BadData or UnsafeData."""

    def __init__(self, file: Any, scope: Scope, *, memory_limit: int = MEMORY_LIMIT) -> None:
        """Open `file`, a Location or other Openable; `scope` closes it."""
        self.url: str = file.url
        self._most = memory_limit // 4
        with self._damage():
            stream = scope.enter(file.open())
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            self._zip = scope.enter(zipfile.ZipFile(stream))
            entries = self._zip.infolist()
            if len(entries) > MAX_MEMBERS or sum(entry.compress_size for entry in entries) > size:
                raise UnsafeData(f"{len(entries)} members: they overlap, or there are too many", where=self.url, fix=FIX)
            unfolded = sum(entry.file_size for entry in entries)
            if unfolded > max(SMALL, RATIO * size):
                raise UnsafeData(f"{size} bytes decompress to {unfolded >> 20} MiB: refused", where=self.url, fix=FIX)
            self.arrays = {one.name: one for one in map(self._described, entries)}
        if len(self.arrays) < len(entries):
            raise BadData("two arrays have the same name", where=self.url, fix=FIX)

    def _described(self, entry: zipfile.ZipInfo) -> StoredArray:
        name = entry.filename.removesuffix(ENDING)
        if name == entry.filename:
            raise ValueError(f"a member is not an array: {name[:80]!r}")
        with self._zip.open(entry) as member:
            shape, _, dtype = HEADERS[np.lib.format.read_magic(member)](member)
            nbytes = entry.file_size - member.tell()
        has_other_size = not dtype.hasobject and math.prod(shape) * dtype.itemsize != nbytes
        if min(shape, default=0) < 0 or len(shape) > 32 or has_other_size:
            raise ValueError(f"the array {name[:80]!r} declares shape {shape}, but has {nbytes} bytes")
        is_number = dtype.kind in "biuf" and dtype.itemsize <= 8
        said = "text" if dtype.kind == "U" else str(dtype)[:40]
        return StoredArray(name, dtype.newbyteorder("=") if is_number else None, shape, said)

    def rows(self, name: str, scope: Scope) -> Callable[[int], NDArray[Any]]:
        """A function that reads the next `count` rows of an array; `scope` closes its member."""
        with self._damage():
            member: Any = scope.enter(self._zip.open(f"{name}{ENDING}"))
            shape, in_columns, dtype = HEADERS[np.lib.format.read_magic(member)](member)
        if in_columns and len(shape) > 1:  # Fortran order: rows are not contiguous
            whole = self.values(name)
            member, dtype = io.BytesIO(whole.tobytes()), whole.dtype

        def read(count: int) -> NDArray[Any]:
            size = count * math.prod(shape[1:]) * dtype.itemsize
            with self._damage():
                data = member.read(size)
                if len(data) < size:
                    raise EOFError(f"the array {name[:80]!r} is truncated")
            return _native(np.frombuffer(data, dtype).reshape(count, *shape[1:]))

        return read

    def values(self, name: str) -> NDArray[Any]:
        """A whole array. Raises MemoryLimitExceeded."""
        one = self.arrays[name]
        if one.nbytes > self._most:
            what = f"the array {name[:80]!r} takes {one.nbytes >> 20} MiB, too much for the memory limit"
            raise MemoryLimitExceeded(what, where=self.url, fix="raise --memory-limit, or write the array in C order")
        with self._damage(), self._zip.open(f"{name}{ENDING}") as member:
            return _native(np.lib.format.read_array(member, allow_pickle=False))

    def numbers(self, name: str) -> StoredArray:
        """The description of an array. Raises BadData if it is missing or does not hold rows of numbers."""
        found = self.arrays.get(name)
        if found is None or not found.shape or found.dtype is None:
            said = "missing" if found is None else f"{found.said} of shape {list(found.shape)}"
            what = f"the array {name!r} must be rows of numbers, but is {said}; the arrays are {', '.join(self.arrays)[:500]}"
            raise BadData(what, where=self.url, fix="write it as numbers, one row per step, or read the file with --mapping")
        return found

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Turn errors from damaged bytes into BadData; storage failures pass through."""
        with storage_failures(self.url, "reading it"):
            try:
                yield
            except OfflineCliError:
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno not in (
                    None,
                    errno.EINVAL,
                ):  # EINVAL: zipfile sought to before the file
                    raise
                what = f"the archive is truncated or damaged: {str(error)[:200] or type(error).__name__}"
                raise BadData(what, where=self.url, fix=FIX, details={PROBLEM: "unreadable-file"}) from error


def _native(values: NDArray[Any]) -> NDArray[Any]:
    """Convert to native byte order; any nonzero byte of a flag is True."""
    is_flag = values.dtype.kind == "b"
    found = values.view(np.uint8) != 0 if is_flag else values.astype(values.dtype.newbyteorder("="), copy=False)
    return np.ascontiguousarray(found)


# ---- columns of a table ----


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
"""Array names for each column, in order of preference; `observations/camera` is the part `obs.camera`."""
TREES: Final = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS)
SCALARS: Final = frozenset(name for ours, names in ALIASES.items() if ours not in TREES for name in names)


def column_names(archive: NpzArchive) -> tuple[list[str], int]:
    """Names of the arrays with one row per step, and the number of rows (the most common first dimension).

    Raises BadData if no array has rows.
    """
    read = [one for one in archive.arrays.values() if one.shape and (one.dtype is not None or one.said == "text")]
    if not read:
        raise BadData("no array has rows", where=archive.url, fix="write arrays with one row per step")
    sizes = Counter(one.shape[0] for one in read)
    rows = max(sizes, key=lambda size: (sizes[size], size))
    whole = [one for one in read if one.shape[0] == rows and 0 not in one.shape[1:]]
    return [one.name for one in whole if one.dtype is not None or len(one.shape) == 1], rows


def npz_schema(archive: NpzArchive) -> pa.Schema:
    """The columns of an archive, as an Arrow schema. Raises BadData if no array has rows."""
    columns = (archive.arrays[name] for name in column_names(archive)[0])
    empty = {one.name: _arrow(one.name, np.empty((0, *one.shape[1:]), one.dtype or np.str_)) for one in columns}
    return pa.table(empty).schema


def npz_batches(
    archive: NpzArchive, columns: Collection[str] | None, chunk_bytes: int, max_rows: int, scope: Scope
) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Batches of rows, each with the fraction of the rows read so far."""
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
    """A column. Scalars stored as (N, 1), as in replay buffers, become one number per row."""
    is_choice = name in ALIASES[Columns.ACTIONS] and values.dtype.kind in "iu"
    shape = () if values.shape[1:] == (1,) and (name in SCALARS or is_choice) else values.shape[1:]
    array = pa.array(values.reshape(-1), pa.string() if values.dtype.kind == "U" else None)
    for size in reversed(shape):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
