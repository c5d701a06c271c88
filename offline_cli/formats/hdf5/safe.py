"""An HDF5 file, opened by h5py in this process; every link and object is checked against an allow-list before a value is read.

Allowed: groups, and datasets of numbers, booleans and texts. Bytes of varying length are read only as JPEG frames, as Minari
stores them. Refused by name and place: soft and external links, external storage, virtual datasets, filters other than HDF5's
own and h5py's, other types, and datasets that unfold to more than `RATIO` times what is stored. libhdf5 itself is C code, which
a crafted file may crash, and this process with it (docs/SECURITY.md).

h5py's low-level objects are used: making a `Group` and `Dataset` of each takes longer than reading a small one. A remote file
is copied to a temporary file first, because HDF5 jumps around in its files.
"""

from __future__ import annotations

import importlib.util
import io
import math
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadData, MemoryLimitExceeded, MissingPackage, OfflineCliError, UnsafeData
from offline_cli.formats.memory_limits import MEMORY_LIMIT, EpisodeLimit
from offline_cli.formats.whole_episodes import StoredArray
from offline_cli.scopes import Scope
from offline_cli.storage.failures import storage_failures
from offline_cli.storage.local_files import open_plain
from offline_cli.storage.locations import Location
from offline_cli.tally import Tally

Values = NDArray[Any] | list[str]

TEXT, FRAMES = "text", "JPEG frames"
FILTERS: Final = frozenset({1, 2, 3, 4, 5, 6, 32000})  # deflate, shuffle, fletcher32, szip, nbit, scaleoffset; h5py's lzf
RATIO: Final = 1100  # more than deflate can: times the stored bytes that a dataset may unfold to, beyond:
SMALL: Final = 64 << 20  # bytes of a dataset
CHUNK: Final = 1 << 30  # bytes
ATTRIBUTE: Final = 16 << 20  # bytes of one
DEEPEST: Final = 32  # groups within groups
OBJECTS: Final = 1_000_000  # in a file; texts of a dataset
FIX: Final = "write the file again with h5py: plain datasets of numbers in groups"


def need_h5py(where: str, extra: str = "hdf5") -> None:
    """Raise MissingPackage where h5py is not installed."""
    if importlib.util.find_spec("h5py") is None:
        fix = f"pip install 'offline-cli[{extra}]'"
        raise MissingPackage("HDF5 files need the package h5py, which is not installed", where=where, fix=fix)


@dataclass(frozen=True, slots=True)
class SafeDataset(StoredArray):
    """A dataset that passed the allow-list. Reading raises BadData, and MemoryLimitExceeded."""

    where: str  # its place, for messages
    opened: Any = field(repr=False)  # h5py.h5d.DatasetID
    most: int  # bytes that may be read at once

    @property
    def is_frames(self) -> bool:
        """Whether it holds JPEG frames."""
        return self.said == FRAMES

    def read(self) -> Values:
        """All of it: numbers, a single one as one row; texts as a list; JPEG frames decoded."""
        if self.dtype is not None:
            values = self.rows()
            return values if self.shape else values.reshape(1)
        with _failures(self.where):
            return self._frames() if self.is_frames else self._texts()

    def rows(self, first: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Rows [first, stop) of numbers; of a dataset without rows, its number."""
        if self.dtype is None:
            raise BadData(f"{self.said}, and no numbers", where=self.where, fix=FIX)
        is_part = bool(self.shape) and (first > 0 or (stop is not None and stop < self.shape[0]))
        shape = (len(range(self.shape[0])[first:stop]), *self.shape[1:]) if is_part else self.shape
        self._check_fits(math.prod(shape) * self.dtype.itemsize)
        with _failures(self.where):
            if is_part:
                values = np.asarray(self._indexed(slice(first, stop))).astype(self.dtype, copy=False)
            else:
                values = np.empty(shape, self.dtype)
                if values.size:
                    every, memory_type = _reading(self.dtype)
                    self.opened.read(every, every, values, memory_type)
        return values.view(np.uint8) != 0 if self.dtype.kind == "b" else values  # 0 or 1, whatever is stored

    def _indexed(self, rows: Any) -> Any:
        from h5py import Dataset as HighLevel

        return HighLevel(self.opened)[rows]

    def _texts(self) -> list[str]:
        if math.prod(self.shape) > OBJECTS:
            raise BadData(f"more than {OBJECTS:,} texts", where=self.where, fix=FIX)
        return [_text(value) for value in np.asarray(self._indexed(())).reshape(-1).tolist()]

    def _frames(self) -> NDArray[np.uint8]:
        """(N, height, width) or (N, height, width, 3), as Minari decodes them."""
        from PIL import Image

        found: list[NDArray[np.uint8]] = []
        for data in self._indexed(slice(None)):
            with Image.open(io.BytesIO(np.asarray(data, np.uint8).tobytes()), formats=("JPEG",)) as picture:
                self._check_fits(self.shape[0] * picture.height * picture.width * len(picture.getbands()))
                found.append(np.asarray(picture, np.uint8))
        return np.stack(found) if found else np.empty((0,), np.uint8)

    def _check_fits(self, nbytes: int) -> None:
        if nbytes > self.most:
            what = f"{nbytes / 1e6:,.0f} MB in one episode, too much for the memory limit"
            raise MemoryLimitExceeded(what, where=self.where, fix="raise --memory-limit")


class Hdf5File:
    """One open file without links; a context manager. Raises BadData, UnsafeData, StorageError, MissingPackage."""

    def __init__(self, file: Location, memory_limit: int = MEMORY_LIMIT) -> None:
        self.url = file.url
        self._file, self._most = file, EpisodeLimit.within(memory_limit).most
        self._scope = Scope()
        self._h5: Any = None  # the package: it is imported when a file is opened
        self._root: Any = None  # h5py.h5g.GroupID
        self._names: list[str] = []  # of all objects, by path, sorted
        self._last: tuple[str, Any] = "", None  # the group that was used last

    def __enter__(self) -> Self:
        need_h5py(self.url)
        import h5py

        self._h5 = h5py
        try:
            with storage_failures(self.url, "reading it"):
                data = self._local_data()
            with _failures(self.url, "copy or write it again"):
                opened = self._scope.enter(h5py.File(data, "r", locking=False))
                self._root = h5py.h5g.open(opened.id, b"/")
                self._last = "", self._root
                self._names = sorted(self._checked_names())
        except BaseException:
            self._scope.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._root, self._last = None, ("", None)
        self._scope.close()

    def _local_data(self) -> Any:
        """What h5py opens: a path of this machine, or a copy without a name."""
        if self._file.is_local:
            open_plain(self._file.path, shown=self.url).close()
            return self._file.path
        copy = self._scope.enter(tempfile.TemporaryFile())  # noqa: SIM115  the scope closes it
        with self._file.open() as stored:
            shutil.copyfileobj(stored, copy, 4 << 20)
        copy.seek(0)
        return copy

    def _checked_names(self) -> Iterator[str]:
        """Of all objects. Raises UnsafeData for a link that may lead elsewhere, BadData for too many or too deep ones."""
        links: list[tuple[bytes, int]] = []

        def collect(name: bytes, link: Any) -> bool | None:  # an exception would be lost in libhdf5
            links.append((name, link.type))
            return True if len(links) > OBJECTS or name.count(b"/") >= DEEPEST else None

        if self._root.links.visit(collect, info=True):
            what = f"more than {OBJECTS:,} objects, or groups nested more than {DEEPEST} deep"
            raise BadData(what, where=self.url, fix=FIX)
        for raw, kind in links:
            name = raw.decode()
            if kind != self._h5.h5l.TYPE_HARD:
                fix = "write a copy of what it leads to in its place (h5repack, or h5py's Group.copy)"
                what = "a soft or an external link, which may lead to another file"
                raise UnsafeData(what, where=f"{self.url} {name}", fix=fix)
            yield name

    def _below(self, path: str) -> list[str]:
        """The paths of all objects below a group, without its own."""
        start = f"{path}/" if path else ""
        stop = bisect_left(self._names, f"{path}0") if path else len(self._names)  # 0 is what follows a slash
        return [name[len(start) :] for name in self._names[bisect_left(self._names, start) : stop]]

    def members(self, path: str = "") -> list[str]:
        """Names in a group; none where there is no such group."""
        return list(dict.fromkeys(name.partition("/")[0] for name in self._below(path)))

    def datasets(self, path: str = "") -> dict[str, SafeDataset]:
        """All datasets below a group, by path."""
        h5d, h5g, h5o = self._h5.h5d, self._h5.h5g, self._h5.h5o
        where, found = self._where(path), dict[str, SafeDataset]()
        with _failures(where):
            group = self._group(path)
            for name in self._below(path):
                member = h5o.open(group, name.encode())
                if isinstance(member, h5d.DatasetID):
                    found[name] = self._checked(member, name, f"{where}/{name}")
                elif not isinstance(member, h5g.GroupID):
                    raise BadData("neither a group nor a dataset", where=f"{where}/{name}", fix=FIX)
        return found

    def attributes(self, path: str = "", tally: Tally | None = None, without: Collection[str] = ()) -> dict[str, Any]:
        """Those of a group as JSON values, but for those named; the names of others, which are neither numbers nor texts, go
        to `tally`."""
        where, values, names = self._where(path), dict[str, Any](), list[bytes]()
        with _failures(where):
            group = self._group(path)
            self._h5.h5a.iterate(group, lambda name, *_: names.append(name))
            for raw in names:
                name = raw.decode()
                if name in without:
                    continue
                attribute = self._h5.h5a.open(group, raw)
                kind = attribute.dtype
                size = math.prod(attribute.shape or ()) * kind.itemsize
                if size > ATTRIBUTE:
                    raise BadData(f"an attribute of {size / 1e6:,.0f} MB", where=f"{where}@{name}", fix=FIX)
                is_text = self._h5.check_string_dtype(kind) is not None
                if attribute.shape is not None and (is_text or (kind.kind in "biuf" and kind.itemsize <= 8)):
                    value = np.empty(attribute.shape, kind)
                    if value.size:
                        attribute.read(value)
                    values[name] = _texts_in(value.tolist()) if is_text else value.tolist()
                elif tally is not None:
                    tally.drop_column(f"@{name}", "an attribute that is neither numbers nor text")
        return values

    def _where(self, path: str) -> str:
        return f"{self.url} {path}".rstrip()

    def _group(self, path: str) -> Any:
        """h5py.h5g.GroupID at a path."""
        if path != self._last[0]:
            self._last = path, self._h5.h5o.open(self._root, path.encode())
        if not isinstance(self._last[1], self._h5.h5g.GroupID):
            raise BadData("not a group", where=self._where(path), fix=FIX)
        return self._last[1]

    def _checked(self, opened: Any, name: str, where: str) -> SafeDataset:
        """Raises BadData, UnsafeData for what is not on the allow-list."""
        h5d = self._h5.h5d
        stored, shape, dtype = opened.get_create_plist(), opened.shape, opened.dtype
        layout = stored.get_layout()
        if shape is None:
            raise BadData("a dataset without a value", where=where, fix=FIX)
        if layout == h5d.VIRTUAL or (layout == h5d.CONTIGUOUS and stored.get_external_count()):
            raise UnsafeData("a virtual dataset or external storage: its values are in another file", where=where, fix=FIX)
        if layout == h5d.CHUNKED:
            unknown = {stored.get_filter(number)[0] for number in range(stored.get_nfilters())} - FILTERS
            if unknown:
                raise UnsafeData(f"filter {min(unknown)} is not HDF5's own, and is not loaded", where=where, fix=FIX)
            if math.prod(stored.get_chunk()) * dtype.itemsize > CHUNK:
                raise BadData("a chunk of more than a gibibyte", where=where, fix="write the file again with smaller chunks")
        numbers, said = _type_of(dtype, where)
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > SMALL and nbytes > RATIO * opened.get_storage_size():
            what = f"{nbytes / 1e6:,.0f} MB of values in {opened.get_storage_size():,} stored bytes"
            raise BadData(what, where=where, fix="write the file again without compression")
        return SafeDataset(name, numbers, shape, said, where, opened, self._most)


def _type_of(kind: np.dtype[Any], where: str) -> tuple[np.dtype[Any] | None, str]:
    """The dtype of numbers in the machine's byte order, and its name; TEXT, FRAMES. Raises UnsafeData for other types."""
    import h5py

    if kind.kind in "biuf" and kind.itemsize <= 8:
        return _numbers(kind)
    if h5py.check_string_dtype(kind) is not None:
        return None, TEXT
    if h5py.check_vlen_dtype(kind) == np.uint8:
        return None, FRAMES
    raise UnsafeData(f"values of {kind}: only numbers, booleans and texts are read", where=where, fix=FIX)


@cache
def _numbers(kind: np.dtype[Any]) -> tuple[np.dtype[Any], str]:
    plain = np.dtype(kind.newbyteorder("=").str)  # without what an enumeration says of its values
    return plain, str(plain)


@cache
def _reading(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """h5py's names of all rows and of the values in memory, which take longer to make than small arrays to read."""
    from h5py import h5s, h5t

    return h5s.ALL, h5t.py_create(dtype)


def _texts_in(value: Any) -> Any:
    return [_texts_in(one) for one in value] if isinstance(value, list) else _text(value)


def _text(raw: Any) -> str:
    """A text of a file, whatever its bytes are."""
    data = raw if isinstance(raw, bytes) else str(raw).encode("utf-8", "surrogateescape")
    return data.decode("utf-8", "backslashreplace")


@contextmanager
def _failures(where: str, fix: str = FIX) -> Iterator[None]:
    """Within it, whatever h5py raises for damaged bytes is BadData."""
    try:
        yield
    except (OfflineCliError, KeyboardInterrupt):
        raise
    except Exception as error:
        words = f"{type(error).__name__}: {error}"[:300].encode("ascii", "backslashreplace").decode()
        raise BadData(f"HDF5 cannot read it ({words})", where=where, fix=fix) from error


def numbered(names: Iterable[str], prefix: str) -> list[tuple[int, str]]:
    """Those of the names that are `prefix` and a number, with that number and in its order."""
    parts = ((name.removeprefix(prefix), name) for name in names if name.startswith(prefix))
    return sorted((int(rest), name) for rest, name in parts if rest.isascii() and rest.isdecimal() and len(rest) < 18)
