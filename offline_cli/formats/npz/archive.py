"""A NumPy archive (`.npz`) opened safely: which arrays it has, and their rows, a bounded number at a time.

Nothing is allocated before it is checked: members must not overlap, are stored or deflated, and unfold to `MAX_BYTES`, or to
`MAX_RATIO` times the file; the header of an array is matched as a text of one form, and never evaluated; its shape times the
size of its numbers has to be what the member holds. Arrays of objects, which numpy would unpickle, are only named.
Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import PROBLEM, BadData, MemoryLimitExceeded, UnsafeData
from offline_cli.parquet.bounds import MAX_BYTES, MAX_RATIO
from offline_cli.scopes import Scope
from offline_cli.storage.failures import storage_failures

__all__ = ["ArrayInfo", "ArrayRows", "NpzArchive"]

MAGIC: Final = b"\x93NUMPY"
ENDING: Final = ".npy"
HEADER: Final = re.compile(
    r"\{'descr': (?:'([<>|=]?[a-zA-Z][0-9]*)'|(.*)), 'fortran_order': (True|False), "
    r"'shape': \(((?:[0-9]{1,18},? ?)*)\), *\} *\n?",
    re.DOTALL,
)
MAX_HEADER: Final = 10_000  # letters
MAX_MEMBERS: Final = 10_000
MAX_DIMENSIONS: Final = 32
NUMBERS: Final = "biuf"
TEXTS: Final = "U"
METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
ENCRYPTED: Final = 0x1
PIECE: Final = 1 << 20  # bytes read at a time
DAMAGE: Final = (
    EOFError,
    IndexError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
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


class NpzArchive:
    """An open archive. Raises BadData, UnsafeData throughout, with the file's place."""

    def __init__(self, file: Any, scope: Scope, *, memory_limit: int) -> None:
        """`file`: a Location, or any Openable; `scope` owns it while it is open."""
        self.url: str = file.url
        self._limit = memory_limit
        with storage_failures(self.url, "reading it"), damage(self.url):
            stream = scope.enter(file.open())
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            self._zip = scope.enter(zipfile.ZipFile(stream))
            entries = _checked(self._zip.infolist(), size, self.url)
            self.arrays: Mapping[str, ArrayInfo] = {name: self._info(name, entry) for name, entry in entries.items()}

    def _info(self, name: str, entry: zipfile.ZipInfo) -> ArrayInfo:
        with self._zip.open(entry) as member:
            found = _header(member, name, f"{self.url}!{name}")
        if found.dtype is not None and found.offset + found.nbytes != entry.file_size:
            what = f"the array {name[:80]!r} says {found.nbytes} bytes, and has {entry.file_size - found.offset}"
            raise BadData(what, where=self.url, fix=FIX)
        return found

    def numbers(self, name: str) -> ArrayInfo:
        """The array of that name. Raises BadData where there is none, or it holds no numbers."""
        found = self.arrays.get(name)
        if found is None:
            known = ", ".join(self.arrays)[:500]
            raise BadData(f"no array {name!r}; there are {known}", where=self.url, fix="name it so, or read it with --mapping")
        if found.dtype is None or found.dtype.kind not in NUMBERS:
            raise BadData(f"the array {name!r} holds {found.said}, and not numbers", where=self.url, fix="write it as numbers")
        return found

    def rows(self, name: str, scope: Scope) -> ArrayRows:
        """To be read in order; `scope` owns the member while it is open."""
        info = self.arrays[name]
        member = scope.enter(self._zip.open(f"{name}{ENDING}"))
        with damage(self.url):
            _skip(member, info.offset)
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
        self._whole: NDArray[Any] | None = None
        self._read = 0

    def read(self, count: int) -> NDArray[Any]:
        """The next `count` rows, in the machine's byte order. Raises BadData where the file breaks off."""
        info = self._info
        assert info.dtype is not None, "only arrays with a dtype are read"
        if info.in_columns and len(info.shape) > 1:
            if self._whole is None:
                self._whole = self._filled(info.shape[::-1]).T
            self._read += count
            return np.ascontiguousarray(self._whole[self._read - count : self._read])
        return self._filled((count, *info.row))

    def _filled(self, shape: tuple[int, ...]) -> NDArray[Any]:
        dtype = self._info.dtype
        assert dtype is not None
        found = np.empty(shape, dtype)
        view = memoryview(found.reshape(-1).view(np.uint8).data) if found.nbytes else memoryview(bytearray())
        with storage_failures(self._url, "reading it"), damage(self._url):
            while len(view):
                size = self._member.readinto(view[:PIECE])
                if not size:
                    raise EOFError(f"the array {self._info.name[:80]!r} breaks off")
                view = view[size:]
        if dtype.kind == "b" and found.nbytes and found.view(np.uint8).max() > 1:
            found = found.view(np.uint8) != 0
        return found if dtype.isnative else found.astype(dtype.newbyteorder("="))


@contextmanager
def damage(url: str) -> Iterator[None]:
    """Within it, an archive that cannot be read raises BadData."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # the storage's
            raise
        raise _damaged(error, url) from error
    except DAMAGE as error:
        raise _damaged(error, url) from error


def _damaged(error: Exception, url: str) -> BadData:
    what = f"the archive breaks off or is damaged: {str(error)[:200] or type(error).__name__}"
    return BadData(what, where=url, fix=FIX, details={PROBLEM: "unreadable-file"})


def _checked(entries: list[zipfile.ZipInfo], size: int, url: str) -> Mapping[str, zipfile.ZipInfo]:
    """The members by the name of their array. Raises UnsafeData for what unfolds without end, BadData for other members."""
    if len(entries) > MAX_MEMBERS:
        raise UnsafeData(f"{len(entries)} members, more than {MAX_MEMBERS}", where=url, fix=FIX)
    found: dict[str, zipfile.ZipInfo] = {}
    for entry in entries:
        name = entry.filename
        parts = name.split("/")
        if (
            not name.endswith(ENDING)
            or name.startswith("/")
            or "\\" in name
            or ".." in parts
            or "\0" in name
            or len(name) > 512
        ):
            raise BadData(f"a member that is no array: {name[:80]!r}", where=url, fix=FIX)
        if name.removesuffix(ENDING) in found:
            raise BadData(f"two arrays are called {name[:80]!r}", where=url, fix=FIX)
        if entry.compress_type not in METHODS or entry.flag_bits & ENCRYPTED:
            raise BadData(f"the array {name[:80]!r} is packed by another method than deflate", where=url, fix=FIX)
        found[name.removesuffix(ENDING)] = entry
    packed, unfolded = (
        (sum(sizes) for sizes in zip(*((one.compress_size, one.file_size) for one in entries), strict=True))
        if entries
        else (0, 0)
    )
    if packed > size:
        raise UnsafeData("members that overlap", where=url, fix=FIX)
    if unfolded > max(MAX_BYTES, MAX_RATIO * size):
        raise UnsafeData(f"{size} bytes that unfold to {unfolded >> 20} MiB", where=url, fix=FIX)
    return found


def _skip(member: Any, size: int) -> None:
    while size:
        read = len(member.read(min(size, PIECE)))
        if not read:
            raise EOFError("a header breaks off")
        size -= read


def _header(member: Any, name: str, where: str) -> ArrayInfo:
    start = member.read(8)
    if start[:6] != MAGIC or len(start) < 8 or start[6] not in (1, 2):
        raise BadData("no NumPy array of version 1 or 2", where=where, fix=FIX)
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(member.read(width), "little")
    if length > MAX_HEADER:
        raise UnsafeData(f"a header of {length} bytes", where=where, fix=FIX)
    text = member.read(length).decode("latin-1")
    match = HEADER.fullmatch(text)
    if match is None:
        raise BadData(f"a header that is none of NumPy's: {text[:80]!r}", where=where, fix=FIX)
    shape = tuple(int(part) for part in match[4].replace(" ", "").split(",") if part)
    if len(shape) > MAX_DIMENSIONS:
        raise BadData(f"an array of {len(shape)} dimensions", where=where, fix=FIX)
    said = match[1] or match[2][:40]
    return ArrayInfo(name, _dtype(match[1]), shape, match[3] == "True", 8 + width + length, said)


def _dtype(said: str | None) -> np.dtype[Any] | None:
    try:
        found = None if said is None else np.dtype(said)
    except (TypeError, ValueError):
        return None
    if found is None or found.hasobject or found.kind not in NUMBERS + TEXTS or not found.itemsize:
        return None
    return found if found.kind in TEXTS or found.itemsize <= 8 else None
