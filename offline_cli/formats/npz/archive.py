"""A NumPy archive (`.npz`): which arrays it has, and their rows, a bounded number at a time.

Headers are read by numpy, which allocates nothing for them; arrays of objects, which numpy would unpickle, are only named. What
all members unfold to is bounded, and an array's shape times the size of its numbers has to be what its member holds.
"""

from __future__ import annotations

import io
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import PROBLEM, BadData, MemoryLimitExceeded, OfflineCliError, UnsafeData
from offline_cli.formats.memory_limits import MEMORY_LIMIT
from offline_cli.scopes import Scope
from offline_cli.storage.failures import storage_failures

__all__ = ["ArrayInfo", "ArrayRows", "NpzArchive"]

ENDING: Final = ".npy"
READERS: Final = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
MAX_HEADER: Final = 10_000  # letters
MAX_MEMBERS: Final = 10_000
SMALL, RATIO = 64 << 20, 1000  # bytes that any archive may unfold to, and times its own size
NUMBERS, TEXTS = "biuf", "U"
DAMAGE: Final = (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError, SyntaxError)
DAMAGE_OF_PACKING: Final = (EOFError, NotImplementedError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error)
FIX: Final = "write the file again with numpy.savez, or copy it again"


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """What the header of a member says."""

    name: str  # without `.npy`
    dtype: np.dtype[Any] | None  # None: no numbers, texts or flags
    shape: tuple[int, ...]
    in_columns: bool  # Fortran's order
    offset: int  # of its first number in the member
    said: str  # the dtype as text, for messages

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.shape[1:]

    @property
    def nbytes(self) -> int:
        """Of all numbers."""
        return 0 if self.dtype is None else math.prod(self.shape) * self.dtype.itemsize

    @property
    def holds_numbers(self) -> bool:
        """Whether it holds numbers or flags."""
        return self.dtype is not None and self.dtype.kind in NUMBERS


class NpzArchive:
    """An open archive. Raises BadData, UnsafeData throughout, with the file's place."""

    def __init__(self, file: Any, scope: Scope, *, memory_limit: int = MEMORY_LIMIT) -> None:
        """`file`: a Location, or any Openable; `scope` owns it while it is open."""
        self.url: str = file.url
        self._limit = memory_limit
        with _damage(self.url):
            stream = scope.enter(file.open())
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            self._zip = scope.enter(zipfile.ZipFile(stream))
            entries = self._zip.infolist()
            self._check(entries, size)
            self.arrays: Mapping[str, ArrayInfo] = {info.name: info for info in map(self._info, entries)}
        if len(self.arrays) < len(entries):
            raise BadData("two arrays of one name", where=self.url, fix=FIX)

    def _check(self, entries: list[zipfile.ZipInfo], size: int) -> None:
        """Raise UnsafeData for what unfolds without end, BadData for other members."""
        other = next((entry.filename for entry in entries if not entry.filename.endswith(ENDING)), None)
        if other is not None:
            raise BadData(f"a member that is no array: {other[:80]!r}", where=self.url, fix=FIX)
        unfolded = sum(entry.file_size for entry in entries)
        if len(entries) > MAX_MEMBERS or sum(entry.compress_size for entry in entries) > size:
            raise UnsafeData(f"{len(entries)} members that overlap, or too many", where=self.url, fix=FIX)
        if unfolded > max(SMALL, RATIO * size):
            raise UnsafeData(f"{size} bytes that unfold to {unfolded >> 20} MiB", where=self.url, fix=FIX)

    def _info(self, entry: zipfile.ZipInfo) -> ArrayInfo:
        name = entry.filename.removesuffix(ENDING)
        with self._zip.open(entry) as member:
            version = np.lib.format.read_magic(member)
            if version not in READERS:
                raise ValueError(f"{name[:80]!r} is an array of version {version}")
            shape, in_columns, dtype = READERS[version](member, max_header_size=MAX_HEADER)
            offset = member.tell()
        is_read = dtype.kind in TEXTS or (dtype.kind in NUMBERS and dtype.itemsize <= 8)
        found = ArrayInfo(name, dtype if is_read and dtype.itemsize else None, shape, in_columns, offset, str(dtype)[:40])
        if min(shape, default=0) < 0 or len(shape) > 32 or (found.dtype and offset + found.nbytes != entry.file_size):
            raise ValueError(f"the array {name[:80]!r} says {shape}, and has {entry.file_size - offset} bytes")
        return found

    def numbers(self, name: str) -> ArrayInfo:
        """The array of that name. Raises BadData where there is none, or it holds no numbers."""
        found = self.arrays.get(name)
        if found is None:
            known = ", ".join(self.arrays)[:500]
            raise BadData(f"no array {name!r}; there are {known}", where=self.url, fix="name it so, or read it with --mapping")
        if not found.holds_numbers:
            raise BadData(f"the array {name!r} holds {found.said}, and not numbers", where=self.url, fix="write it as numbers")
        return found

    def rows(self, name: str, scope: Scope) -> ArrayRows:
        """To be read in order; `scope` owns the member while it is open. Raises MemoryLimitExceeded, see `whole`."""
        info = self.arrays[name]
        with _damage(self.url):
            member = scope.enter(self._zip.open(f"{name}{ENDING}"))
            member.read(info.offset)
        if info.in_columns and len(info.shape) > 1:
            self._check_fits(info)
        return ArrayRows(info, member, self.url)

    def whole(self, name: str) -> NDArray[Any]:
        """All of one array. Raises MemoryLimitExceeded."""
        info = self.arrays[name]
        self._check_fits(info)
        with Scope() as scope:
            return self.rows(name, scope).read(info.shape[0] if info.shape else 1)

    def _check_fits(self, info: ArrayInfo) -> None:
        if info.nbytes > self._limit // 4:
            what = f"the array {info.name[:80]!r} takes {info.nbytes >> 20} MiB at once, too much for the memory limit"
            raise MemoryLimitExceeded(what, where=self.url, fix="raise --memory-limit, or write it in C order")


class ArrayRows:
    """Rows of one array, in order."""

    def __init__(self, info: ArrayInfo, member: Any, url: str) -> None:
        self._info, self._member, self._url = info, member, url
        self._whole: NDArray[Any] | None = None  # of an array in Fortran's order
        self._read = 0

    def read(self, count: int) -> NDArray[Any]:
        """The next `count` rows, in the machine's byte order. Raises BadData where the file breaks off."""
        info = self._info
        if info.in_columns and len(info.shape) > 1:
            if self._whole is None:
                self._whole = self._next(info.shape[::-1]).T
            self._read += count
            return np.ascontiguousarray(self._whole[self._read - count : self._read])
        return self._next((count, *info.row) if info.shape else ())

    def _next(self, shape: tuple[int, ...]) -> NDArray[Any]:
        dtype = self._info.dtype
        assert dtype is not None, "only arrays with a dtype are read"
        size = math.prod(shape) * dtype.itemsize
        with _damage(self._url):
            data = self._member.read(size)
            if len(data) < size:
                raise EOFError(f"the array {self._info.name[:80]!r} breaks off")
            found: NDArray[Any] = np.frombuffer(data, dtype).reshape(shape)
        if dtype.kind == "b":
            return np.not_equal(found.view(np.uint8), 0)
        return found if dtype.isnative else found.astype(dtype.newbyteorder("="))


@contextmanager
def _damage(url: str) -> Iterator[None]:
    """Within it, an archive that cannot be read raises BadData; failures of storage stay what they are."""
    with storage_failures(url, "reading it"):
        try:
            yield
        except OfflineCliError:
            raise
        except (*DAMAGE, *DAMAGE_OF_PACKING) as error:
            what = f"the archive breaks off or is damaged: {str(error)[:200] or type(error).__name__}"
            raise BadData(what, where=url, fix=FIX, details={PROBLEM: "unreadable-file"}) from error
