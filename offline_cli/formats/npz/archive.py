"""A NumPy archive (`.npz`): which arrays it has, and their rows, a bounded number at a time.

Headers are read by numpy, which allocates nothing for them; arrays of objects, which numpy would unpickle, are only named. What
all members unfold to is bounded, and an array's shape times the size of its numbers has to be what its member holds.
"""

from __future__ import annotations

import errno
import io
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import PROBLEM, BadData, MemoryLimitExceeded, OfflineCliError, UnsafeData
from offline_cli.formats.memory_limits import MEMORY_LIMIT
from offline_cli.scopes import Scope
from offline_cli.storage.failures import storage_failures

__all__ = ["ArrayInfo", "NpzArchive"]

ENDING: Final = ".npy"
HEADERS: Final = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
MAX_HEADER: Final = 10_000  # letters
MAX_MEMBERS: Final = 10_000
SMALL, RATIO = 64 << 20, 1000  # bytes that any archive may unfold to, and times its own size
NUMBERS, TEXTS = "biuf", "U"
FIX: Final = "write the file again with numpy.savez, or copy it again"


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """What the header of a member says."""

    name: str  # without `.npy`
    dtype: np.dtype[Any] | None  # None: no numbers, texts or flags
    shape: tuple[int, ...]
    in_columns: bool  # several dimensions in Fortran's order
    offset: int  # of its first number in the member
    said: str  # the dtype as text, for messages

    @property
    def nbytes(self) -> int:
        """Of all numbers."""
        return 0 if self.dtype is None else math.prod(self.shape) * self.dtype.itemsize

    def has_rows(self, rows: int) -> bool:
        """Whether it has a number, or an array of them, for each of `rows` rows."""
        return self.dtype is not None and self.dtype.kind in NUMBERS and self.shape[:1] == (rows,)


class NpzArchive:
    """An open archive. Raises BadData, UnsafeData throughout, with the file's place."""

    def __init__(self, file: Any, scope: Scope, *, memory_limit: int = MEMORY_LIMIT) -> None:
        """`file`: a Location, or any Openable; `scope` owns it while it is open."""
        self.url: str = file.url
        self._limit = memory_limit
        with self._damage():
            stream = scope.enter(file.open())
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            self._zip = scope.enter(zipfile.ZipFile(stream))
            entries = self._zip.infolist()
            if len(entries) > MAX_MEMBERS or sum(entry.compress_size for entry in entries) > size:
                raise UnsafeData(f"{len(entries)} members that overlap, or too many", where=self.url, fix=FIX)
            unfolded = sum(entry.file_size for entry in entries)
            if unfolded > max(SMALL, RATIO * size):
                raise UnsafeData(f"{size} bytes that unfold to {unfolded >> 20} MiB", where=self.url, fix=FIX)
            self.arrays: Mapping[str, ArrayInfo] = {info.name: info for info in map(self._info, entries)}
        if len(self.arrays) < len(entries):
            raise BadData("two arrays of one name", where=self.url, fix=FIX)

    def _info(self, entry: zipfile.ZipInfo) -> ArrayInfo:
        name = entry.filename.removesuffix(ENDING)
        if name == entry.filename:
            raise ValueError(f"a member that is no array: {name[:80]!r}")
        with self._zip.open(entry) as member:
            version = np.lib.format.read_magic(member)
            if version not in HEADERS:
                raise ValueError(f"{name[:80]!r} is an array of version {version}")
            shape, in_columns, dtype = HEADERS[version](member, max_header_size=MAX_HEADER)
            offset = member.tell()
        is_read = dtype.itemsize and (dtype.kind in TEXTS or (dtype.kind in NUMBERS and dtype.itemsize <= 8))
        found = ArrayInfo(name, dtype if is_read else None, shape, in_columns and len(shape) > 1, offset, str(dtype)[:40])
        if min(shape, default=0) < 0 or len(shape) > 32 or (is_read and offset + found.nbytes != entry.file_size):
            raise ValueError(f"the array {name[:80]!r} says {shape}, and has {entry.file_size - offset} bytes")
        return found

    def numbers(self, name: str) -> ArrayInfo:
        """The array of that name. Raises BadData where there is none, or it holds no numbers."""
        found = self.arrays.get(name)
        if found is None:
            known = ", ".join(self.arrays)[:500]
            raise BadData(f"no array {name!r}; there are {known}", where=self.url, fix="name it so, or read it with --mapping")
        if not found.has_rows(next(iter(found.shape), 0)):
            what = f"the array {name!r} is {found.said} of shape {list(found.shape)}, and not rows of numbers"
            raise BadData(what, where=self.url, fix="write it as numbers, with a row a step")
        return found

    def rows(self, name: str, scope: Scope) -> Callable[[int], NDArray[Any]]:
        """A function that gives the next rows, so many of them; `scope` owns the member while it is open.

        Raises MemoryLimitExceeded for a large array in Fortran's order, which is read as a whole.
        """
        info = self.arrays[name]
        with self._damage():
            member = scope.enter(self._zip.open(f"{name}{ENDING}"))
            member.read(info.offset)
        if not info.in_columns:
            return lambda count: self._next(info, member, (count, *info.shape[1:]))
        self._check_fits(info)
        left = [self._next(info, member, info.shape[::-1]).T]

        def read(count: int) -> NDArray[Any]:
            taken, left[0] = left[0][:count], left[0][count:]
            return np.ascontiguousarray(taken)

        return read

    def whole(self, name: str) -> NDArray[Any]:
        """All of one array of rows. Raises MemoryLimitExceeded."""
        info = self.arrays[name]
        self._check_fits(info)
        with Scope() as scope:
            return self.rows(name, scope)(info.shape[0])

    def _check_fits(self, info: ArrayInfo) -> None:
        if info.nbytes > self._limit // 4:
            what = f"the array {info.name[:80]!r} takes {info.nbytes >> 20} MiB at once, too much for the memory limit"
            raise MemoryLimitExceeded(what, where=self.url, fix="raise --memory-limit, or write it in C order")

    def _next(self, info: ArrayInfo, member: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """The next values of a member, in the machine's byte order. Raises BadData where the file breaks off."""
        assert info.dtype is not None, "only arrays with a dtype are read"
        size = math.prod(shape) * info.dtype.itemsize
        with self._damage():
            data = member.read(size)
            if len(data) < size:
                raise EOFError(f"the array {info.name[:80]!r} breaks off")
            found: NDArray[Any] = np.frombuffer(data, info.dtype).reshape(shape)
        return found.view(np.uint8) != 0 if info.dtype.kind == "b" else found.astype(info.dtype.newbyteorder("="), copy=False)

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Within it, whatever damaged bytes raise is BadData; failures of storage stay what they are."""
        with storage_failures(self.url, "reading it"):
            try:
                yield
            except OfflineCliError:
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno != errno.EINVAL:  # which seeking to a place before the file gives
                    raise
                what = f"the archive breaks off or is damaged: {str(error)[:200] or type(error).__name__}"
                raise BadData(what, where=self.url, fix=FIX, details={PROBLEM: "unreadable-file"}) from error
