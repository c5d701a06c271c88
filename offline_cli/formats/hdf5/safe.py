"""An HDF5 file, opened by h5py in this process; each object is checked against an allow-list before anything of it is read.

Allowed: groups, and datasets of numbers, booleans and texts. Bytes of varying length are read only as JPEG frames, as Minari
stores them. Refused by name and place: soft and external links, external storage, virtual datasets, filters other than HDF5's
own and h5py's, other types, and datasets that unfold to more than `RATIO` times what is stored. libhdf5 itself is C code, which
a crafted file may crash, and this process with it (docs/SECURITY.md).

A remote file is copied to a temporary file first: HDF5 jumps around in its files.
"""

from __future__ import annotations

import importlib.util
import io
import math
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadData, MemoryLimitExceeded, MissingPackage, OfflineCliError, UnsafeData
from offline_cli.formats.memory_limits import MEMORY_LIMIT, EpisodeLimit
from offline_cli.scopes import Scope
from offline_cli.storage.failures import storage_failures
from offline_cli.storage.local_files import open_plain
from offline_cli.storage.locations import Location
from offline_cli.tally import Tally

__all__ = ["FRAMES", "TEXT", "Form", "Hdf5File", "Node", "Values", "need_h5py"]

Form = tuple[str, tuple[int, ...]]
"""dtype of one value (or TEXT, FRAMES) and shape of a dataset."""
Values = NDArray[Any] | list[str]

TEXT: Final = "text"  # in place of a dtype
FRAMES: Final = "frames"  # the same, of bytes of varying length
NOTHING: Final[Form] = ("no values", ())  # of a group
FILTERS: Final = frozenset({1, 2, 3, 4, 5, 6, 32000})  # deflate, shuffle, fletcher32, szip, nbit, scaleoffset; h5py's lzf
RATIO: Final = 1100  # more than deflate can: times the stored bytes that a dataset may unfold to, beyond:
SMALL: Final = 64 << 20  # bytes of a dataset
CHUNK: Final = 1 << 30  # bytes
ATTRIBUTE: Final = 16 << 20  # bytes of one
DEEPEST: Final = 32  # groups within groups
OBJECTS: Final = 100_000  # below one group; texts of a dataset
FIX: Final = "write the file again with h5py: plain datasets of numbers in groups"


def need_h5py(where: str, extra: str = "hdf5") -> None:
    """Raise MissingPackage where h5py is not installed."""
    if importlib.util.find_spec("h5py") is None:
        fix = f"pip install 'offline-cli[{extra}]'"
        raise MissingPackage("HDF5 files need the package h5py, which is not installed", where=where, fix=fix)


@dataclass(frozen=True, slots=True)
class Node:
    """The datasets below a group, by their path from there; of a dataset, itself under ''."""

    where: str  # for messages
    datasets: Mapping[str, Form]
    opened: Mapping[str, Any] = field(repr=False)  # h5py.Dataset by name
    most: int  # bytes that may be read at once

    def has_rows(self, name: str, rows: int) -> bool:
        """Whether there is a dataset of that name with a number, or an array of them, for each of `rows` rows."""
        kind, shape = self.datasets.get(name, (TEXT, ()))
        return kind not in (TEXT, FRAMES) and shape[:1] == (rows,)

    def values(self, without: Collection[str] = ()) -> dict[str, Values]:
        """All datasets by path, but for those named. Raises as `read` does."""
        return {name: self.read(name) for name in self.datasets if name not in without}

    def read(self, name: str = "") -> Values:
        """All of a dataset: numbers, texts as a list, JPEG frames decoded. Raises BadData, MemoryLimitExceeded."""
        kind, shape = self.datasets.get(name, NOTHING)
        if kind == TEXT:
            if math.prod(shape) > OBJECTS:
                raise BadData(f"more than {OBJECTS:,} texts in {name}", where=self.where, fix=FIX)
            with _failures(self.where, name):
                return [_text(value) for value in np.asarray(self.opened[name][()]).reshape(-1).tolist()]
        if kind == FRAMES:
            with _failures(self.where, name):
                return self._frames(name)
        return self.rows(name)

    def rows(self, name: str = "", first: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Rows [first, stop) of a dataset of numbers; of one without rows, its value. Raises BadData, MemoryLimitExceeded."""
        kind, shape = self.datasets.get(name, NOTHING)
        if kind in (TEXT, FRAMES, NOTHING[0]):
            raise BadData(f"{name or 'it'} holds {kind}, and no numbers", where=self.where, fix=FIX)
        count = len(range(shape[0])[first:stop]) if shape else 1
        self._check_fits(name, count * math.prod(shape[1:]) * np.dtype(kind).itemsize)
        with _failures(self.where, name):
            values = self._all(name) if not first and stop is None else np.asarray(self.opened[name][first:stop])
        return values.view(np.uint8) != 0 if kind == "|b1" else values.astype(kind, copy=False)  # 0 or 1, whatever is stored

    def _all(self, name: str) -> NDArray[Any]:
        """A whole dataset, by h5py's low-level call: indexing a dataset takes ten times as long where it is small."""
        from h5py import h5s

        kind, shape = self.datasets[name]
        values: NDArray[Any] = np.empty(shape, kind)
        if values.size:
            self.opened[name].id.read(h5s.ALL, h5s.ALL, values)
        return values

    def _frames(self, name: str) -> NDArray[np.uint8]:
        """(N, height, width, ...) pictures of one size."""
        from PIL import Image

        found: NDArray[np.uint8] | None = None
        stored = self.opened[name][:]
        for number, data in enumerate(stored):
            with Image.open(io.BytesIO(np.asarray(data, np.uint8).tobytes()), formats=("JPEG",)) as picture:
                if found is None:
                    shape = (picture.height, picture.width, len(picture.getbands()))
                    self._check_fits(name, len(stored) * math.prod(shape))
                    found = np.empty((len(stored), *(shape if shape[2] > 1 else shape[:2])), np.uint8)
                if (picture.height, picture.width) != found.shape[1:3]:
                    raise BadData(f"frames of two sizes in {name}", where=self.where, fix=FIX)
                found[number] = np.asarray(picture, np.uint8)
        return np.empty((0,), np.uint8) if found is None else found

    def _check_fits(self, name: str, nbytes: int) -> None:
        if nbytes > self.most:
            what = f"{name} has {nbytes / 1e6:,.0f} MB in one episode, too much for the memory limit"
            raise MemoryLimitExceeded(what, where=self.where, fix="raise --memory-limit")


class Hdf5File:
    """One open file; a context manager. Raises BadData, UnsafeData, StorageError, MissingPackage."""

    def __init__(self, file: Location, memory_limit: int = MEMORY_LIMIT) -> None:
        self.url = file.url
        self._file, self._most = file, EpisodeLimit.within(memory_limit).most
        self._scope = Scope()
        self._root: Any = None  # h5py.File
        self._last: tuple[str, Any] = "", None  # what `_at` found last: datasets of a group, then its attributes

    def __enter__(self) -> Self:
        need_h5py(self.url)
        import h5py

        try:
            data = self._data()
            try:
                self._root = self._scope.enter(h5py.File(data, "r", locking=False))
            except Exception as error:
                fix = "copy or write it again"
                raise BadData(f"not an HDF5 file, or a damaged one ({_words(error)})", where=self.url, fix=fix) from error
        except BaseException:
            self._scope.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._root, self._last = None, ("", None)
        self._scope.close()

    def _data(self) -> Any:
        """What h5py opens: a path of this machine, or a copy without a name."""
        with storage_failures(self.url, "reading it"):
            if self._file.is_local:
                open_plain(self._file.path, shown=self.url).close()
                return self._file.path
            copy = self._scope.enter(tempfile.TemporaryFile())  # noqa: SIM115  the scope closes it
            with self._file.open() as stored:
                shutil.copyfileobj(stored, copy, 4 << 20)
            copy.seek(0)
            return copy

    def members(self, path: str = "") -> list[str]:
        """Names in a group, in its order."""
        import h5py

        where = self._where(path)
        with _failures(where, ""):
            found = self._at(path, where)
            if not isinstance(found, h5py.Group):
                raise BadData("not a group", where=where, fix=FIX)
            return [_checked(name) for name in found]

    def attributes(self, path: str = "", tally: Tally | None = None, without: Collection[str] = ()) -> dict[str, Any]:
        """Those of an object as JSON values, but for those named; the names of others, which are neither numbers nor texts, go
        to `tally`."""
        import h5py

        where, values = self._where(path), dict[str, Any]()
        with _failures(where, ""):
            found = self._at(path, where)
            for name in [name for name in found.attrs if name not in without]:
                attribute = found.attrs.get_id(name)
                size, kind = math.prod(attribute.shape or ()) * attribute.get_type().get_size(), attribute.dtype
                if size > ATTRIBUTE:
                    raise BadData(f"an attribute of {size / 1e6:,.0f} MB", where=f"{where}@{name}", fix=FIX)
                is_text = h5py.check_string_dtype(kind) is not None
                if attribute.shape is not None and (is_text or (kind.kind in "biuf" and kind.itemsize <= 8)):
                    value = np.asarray(found.attrs[name]).tolist()
                    values[name] = _texts_in(value) if is_text else value
                elif tally is not None:
                    tally.drop_column(f"@{name}", "an attribute that is neither numbers nor text")
        return values

    def node(self, path: str = "") -> Node:
        """The dataset there, or all datasets below the group, however deep."""
        import h5py

        where, opened, datasets = self._where(path), dict[str, Any](), dict[str, Form]()
        links: list[tuple[bytes, Any]] = []

        def collect(name: bytes, link: Any) -> bool | None:  # an exception would be lost in libhdf5
            links.append((name, link.type))
            return True if len(links) > OBJECTS or name.count(b"/") >= DEEPEST else None

        with _failures(where, ""):
            found = self._at(path, where)
            if isinstance(found, h5py.Dataset):
                opened[""], datasets[""] = found, _form_of(found, where)
            elif found.id.links.visit(collect, info=True):
                what = f"more than {OBJECTS:,} objects in one group, or groups nested more than {DEEPEST} deep"
                raise BadData(what, where=where, fix=FIX)
            for raw, kind in links:
                name = raw.decode()
                place = f"{where}/{name}"
                _check_link(kind, place)
                member = h5py.h5o.open(found.id, raw)
                if isinstance(member, h5py.h5d.DatasetID):
                    opened[name] = h5py.Dataset(member)
                    datasets[name] = _form_of(opened[name], place)
                elif not isinstance(member, h5py.h5g.GroupID):
                    raise BadData("neither a group nor a dataset", where=place, fix=FIX)
        return Node(where, datasets, opened, self._most)

    def _where(self, path: str) -> str:
        return f"{self.url} {path}".rstrip()

    def _at(self, path: str, where: str) -> Any:
        """The group or dataset at a path."""
        import h5py

        found = self._root
        if path and path == self._last[0]:
            return self._last[1]
        for name in filter(None, path.split("/")):
            if not isinstance(found, h5py.Group) or not found.id.links.exists(name.encode()):
                raise BadData(f"nothing is here: {path}", where=where, fix=FIX)
            _check_link(found.id.links.get_info(name.encode()).type, where)
            found = found[name]
        if not isinstance(found, (h5py.Group, h5py.Dataset)):
            raise BadData("neither a group nor a dataset", where=where, fix=FIX)
        self._last = path, found
        return found


def _check_link(kind: int, where: str) -> None:
    from h5py import h5l

    if kind != h5l.TYPE_HARD:
        fix = "write a copy of what it leads to in its place (h5repack, or h5py's Group.copy)"
        raise UnsafeData("a soft or an external link, which may lead to another file", where=where, fix=fix)


# ---- the allow-list of one dataset ----


def _form_of(dataset: Any, where: str) -> Form:
    """dtype (or TEXT, FRAMES) and shape. Raises BadData, UnsafeData for what is not read."""
    from h5py import h5d

    stored, shape, dtype = dataset.id.get_create_plist(), dataset.id.shape, dataset.id.dtype
    if shape is None:
        raise BadData("a dataset without a value", where=where, fix=FIX)
    layout, size = stored.get_layout(), dataset.id.get_type().get_size()
    if layout == h5d.VIRTUAL:
        raise UnsafeData("a virtual dataset, whose values are in other files", where=where, fix=FIX)
    if stored.get_external_count():
        raise UnsafeData("external storage: its values are in another file", where=where, fix=FIX)
    for number in range(stored.get_nfilters()):
        code = stored.get_filter(number)[0]
        if code not in FILTERS:
            raise UnsafeData(f"filter {code} is not one of HDF5's own, and is not loaded", where=where, fix=FIX)
    name = _type_name(dtype, where)
    nbytes, nstored = math.prod(shape) * size, dataset.id.get_storage_size()
    if nbytes > max(SMALL, RATIO * nstored):
        what = f"{nbytes / 1e6:,.0f} MB of values in {nstored:,} stored bytes"
        raise BadData(what, where=where, fix="write the file again without compression")
    if layout == h5d.CHUNKED and math.prod(stored.get_chunk()) * size > CHUNK:
        raise BadData("a chunk of more than a gibibyte", where=where, fix="write the file again with smaller chunks")
    return name, shape


def _type_name(kind: np.dtype[Any], where: str) -> str:
    import h5py

    if h5py.check_string_dtype(kind) is not None:
        return TEXT
    if h5py.check_vlen_dtype(kind) == np.uint8:
        return FRAMES
    if kind.kind not in "biuf" or kind.itemsize > 8 or kind.names is not None:
        raise UnsafeData(f"values of {kind}: only numbers, booleans and texts are read", where=where, fix=FIX)
    return kind.newbyteorder("=").str


def _texts_in(value: Any) -> Any:
    return [_texts_in(one) for one in value] if isinstance(value, list) else _text(value)


def _text(raw: Any) -> str:
    """A text of a file, whatever its bytes are."""
    data = raw if isinstance(raw, bytes) else str(raw).encode("utf-8", "surrogateescape")
    return data.decode("utf-8", "backslashreplace")


def _checked(name: str) -> str:
    """The name of a member. Raises UnicodeEncodeError for bytes that are no text."""
    name.encode()
    return name


@contextmanager
def _failures(where: str, name: str) -> Iterator[None]:
    """Within it, whatever h5py raises for damaged bytes is BadData."""
    try:
        yield
    except (OfflineCliError, KeyboardInterrupt):
        raise
    except Exception as error:
        place = f"{where}/{name}" if name else where
        raise BadData(f"HDF5 cannot read it ({_words(error)})", where=place, fix=FIX) from error


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300].encode("ascii", "backslashreplace").decode()
