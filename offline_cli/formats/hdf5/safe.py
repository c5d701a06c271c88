"""An HDF5 file, opened by h5py in this process; each object is checked against an allow-list before anything of it is read.

Allowed: groups, datasets of numbers, booleans and texts, hard links, and soft links to objects of the same file. Bytes of
varying length are read only as JPEG frames, as Minari stores them. Refused by name and place: external links, external
storage, virtual datasets, filters other than HDF5's own and h5py's, other types, and datasets that unfold to more than `RATIO`
times what is stored. libhdf5 itself is C code, which a crafted file may crash, and this process with it (docs/SECURITY.md).

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
from functools import cache, cached_property
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadData, MissingPackage, OfflineCliError, UnsafeData
from offline_cli.scopes import Scope
from offline_cli.storage.failures import storage_failures
from offline_cli.storage.local_files import open_plain
from offline_cli.storage.locations import Location

__all__ = ["FRAMES", "TEXT", "Form", "Hdf5File", "Node", "need_h5py"]

Form = tuple[str, tuple[int, ...]]
"""dtype of one value (or TEXT, FRAMES) and shape of a dataset."""

TEXT: Final = "text"  # in place of a dtype
FRAMES: Final = "frames"  # the same, of bytes of varying length
FILTERS: Final = frozenset({1, 2, 3, 4, 5, 6, 32000})  # deflate, shuffle, fletcher32, szip, nbit, scaleoffset; h5py's lzf
RATIO: Final = 1100  # more than deflate can: times the stored bytes that a dataset may unfold to, beyond:
SMALL: Final = 64 << 20  # bytes of a dataset; pixels of a frame
CHUNK: Final = 1 << 30  # bytes
ATTRIBUTE: Final = 16 << 20  # bytes of one
DEEPEST: Final = 32  # groups within groups
OBJECTS: Final = 100_000  # below one group; texts of a dataset
COPIED: Final = 4 << 20  # bytes at a time
FIX: Final = "write the file again with h5py: plain datasets of numbers in groups"


def need_h5py(where: str, extra: str = "hdf5") -> None:
    """Raise MissingPackage where h5py is not installed."""
    if importlib.util.find_spec("h5py") is None:
        fix = f"pip install 'offline-cli[{extra}]'"
        raise MissingPackage("HDF5 files need the package h5py, which is not installed", where=where, fix=fix)


@dataclass(frozen=True, slots=True)
class Node:
    """A group or a dataset, and the datasets below it by their path from here; of a dataset, itself under ''."""

    where: str  # for messages
    attributes: Mapping[str, Any]  # JSON values
    left_out: tuple[str, ...]  # attributes that are neither numbers nor texts
    datasets: Mapping[str, Form]
    groups: tuple[str, ...]
    opened: Mapping[str, Any] = field(repr=False)  # h5d.DatasetID by name

    def rows(self, name: str, first: int, stop: int) -> NDArray[Any]:
        """Rows [first, stop) of a dataset of numbers; of one without rows, its value. Raises BadData."""
        from h5py import h5s

        kind, shape = self.datasets[name]
        if kind in (TEXT, FRAMES):
            raise BadData(f"{name} holds {kind}, and no numbers", where=self.where, fix=FIX)
        stop = min(stop, shape[0]) if shape else stop
        values = np.empty((stop - first, *shape[1:]) if shape else (), kind)
        if values.size:
            dataset, memory, stored = self.opened[name], h5s.ALL, h5s.ALL
            if values.shape != shape:
                memory, stored = h5s.create_simple(values.shape), dataset.get_space()
                stored.select_hyperslab((first, *(0 for _ in shape[1:])), values.shape)
            with _failures(self.where, name):
                dataset.read(memory, stored, values, mtype=_memory_type(kind))
        return values.view(np.uint8).astype(np.bool_) if kind == "|b1" else values  # 0 or 1, whatever is stored

    def texts(self, name: str = "") -> list[str]:
        """All texts of a dataset. Raises BadData."""
        from h5py import h5s, h5t

        kind, shape = self.datasets.get(name, ("nothing", ()))
        if kind != TEXT or math.prod(shape) > OBJECTS:
            what = f"{name} holds {kind} {list(shape)} where at most {OBJECTS:,} texts are wanted"
            raise BadData(what, where=self.where, fix=FIX)
        dataset = self.opened[name]
        with _failures(self.where, name):
            values = np.empty(shape, dataset.dtype)
            dataset.read(h5s.ALL, h5s.ALL, values, mtype=h5t.py_create(dataset.dtype))
        return [_text(value) for value in values.reshape(-1).tolist()]

    def frames(self, name: str, first: int, stop: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """JPEG frames [first, stop), decoded, each of the shape. Raises BadData."""
        import h5py
        from PIL import Image

        found = np.empty((stop - first, *shape), np.uint8)
        with _failures(self.where, name):
            stored = h5py.Dataset(self.opened[name])[first:stop]
            for frame, data in zip(found, stored, strict=True):
                with Image.open(io.BytesIO(np.asarray(data, np.uint8).tobytes()), formats=("JPEG",)) as picture:
                    if picture.width * picture.height > SMALL or (picture.height, picture.width) != shape[:2]:
                        what = f"a frame of {picture.width} x {picture.height} pixels in {name}, {list(shape)} are wanted"
                        raise BadData(what, where=self.where, fix=FIX)
                    frame[:] = np.asarray(picture, np.uint8)
        return found


class Hdf5File:
    """One open file; a context manager. Raises BadData, UnsafeData, StorageError, MissingPackage."""

    def __init__(self, file: Location) -> None:
        self.url = file.url
        self._file = file
        self._scope = Scope()
        self._root: Any = None  # h5g.GroupID

    def __enter__(self) -> Self:
        need_h5py(self.url)
        import h5py
        from h5py import h5g

        try:
            data = self._data()
            try:
                self._root = h5g.open(self._scope.enter(h5py.File(data, "r", locking=False)).id, b"/")
            except Exception as error:
                fix = "copy or write it again"
                raise BadData(f"not an HDF5 file, or a damaged one ({_words(error)})", where=self.url, fix=fix) from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; its nodes cannot be read any more."""
        self._root = None
        self._scope.close()

    def _data(self) -> Any:
        """What h5py opens: a path of this machine, or a copy without a name."""
        with storage_failures(self.url, "reading it"):
            if self._file.is_local:
                open_plain(self._file.path, shown=self.url).close()
                return self._file.path
            copy = self._scope.enter(tempfile.TemporaryFile())  # noqa: SIM115  the scope closes it
            with self._file.open() as stored:
                shutil.copyfileobj(stored, copy, COPIED)
            copy.seek(0)
            return copy

    @cached_property
    def top(self) -> Node:
        """The root, with its direct members."""
        return self.node(whole=False)

    def members(self, path: str = "") -> list[str]:
        """Names in a group, in its order."""
        from h5py import h5g

        where = f"{self.url} {path}".rstrip()
        with _failures(where, ""):
            found = self._walk(self._root, path.encode(), where)
            if not isinstance(found, h5g.GroupID):
                raise BadData("not a group", where=where, fix=FIX)
            return [_text(name) for name in found]

    def node(self, path: str = "", *, whole: bool = True, passed_over: Collection[str] = ()) -> Node:
        """The object with all that is below it, or, without `whole`, with its direct members.

        `passed_over`: names of attributes that are not wanted.
        """
        from h5py import h5d

        where = f"{self.url} {path}".rstrip()
        opened, datasets, groups = dict[str, Any](), dict[str, Form](), list[str]()
        with _failures(where, ""):
            found = self._walk(self._root, path.encode(), where)
            below = [("", found)] if isinstance(found, h5d.DatasetID) else self._below(found, path, "", whole)
            for name, member in below:
                if isinstance(member, h5d.DatasetID):
                    opened[name], datasets[name] = member, _form_of(member, f"{where}/{name}" if name else where)
                else:
                    groups.append(name)
                if len(opened) + len(groups) > OBJECTS:
                    raise BadData(f"more than {OBJECTS:,} objects in one group", where=where, fix=FIX)
            attributes, left_out = _attributes_of(found, where, passed_over)
        return Node(where, attributes, left_out, datasets, tuple(groups), opened)

    def _below(self, group: Any, path: str, prefix: str, whole: bool, depth: int = 1) -> Iterator[tuple[str, Any]]:
        """Path from the first group, and object, of all members; those of a group after it."""
        from h5py import h5g

        for raw in group:
            name = _text(raw)
            place = f"{path}/{name}".lstrip("/")
            member = self._member(group, raw, f"{self.url} {place}")
            yield f"{prefix}{name}", member
            if whole and isinstance(member, h5g.GroupID):
                if depth == DEEPEST:
                    raise BadData(f"groups nested more than {DEEPEST} deep", where=f"{self.url} {place}", fix=FIX)
                yield from self._below(member, place, f"{prefix}{name}/", whole, depth + 1)

    def _walk(self, group: Any, path: bytes, where: str, *, soft: bool = True) -> Any:
        """The object at a path from a group."""
        from h5py import h5g

        for name in filter(None, path.split(b"/")):
            if not isinstance(group, h5g.GroupID) or not group.links.exists(name):
                raise BadData(f"nothing is here: {_text(path)}", where=where, fix=FIX)
            group = self._member(group, name, where, soft=soft)
        return group

    def _member(self, group: Any, name: bytes, where: str, *, soft: bool = True) -> Any:
        """A member of a group; `soft`: it may be a soft link, whose path has hard links alone."""
        from h5py import h5d, h5g, h5l, h5o

        kind = group.links.get_info(name).type
        if kind == h5l.TYPE_SOFT and soft:
            target = group.links.get_val(name)
            return self._walk(self._root if target.startswith(b"/") else group, target, where, soft=False)
        if kind != h5l.TYPE_HARD:
            what = "a soft link to a soft link" if kind == h5l.TYPE_SOFT else "an external link, which leads to another file"
            raise UnsafeData(what, where=where, fix="write a copy of what it leads to in its place")
        found = h5o.open(group, name)
        if not isinstance(found, (h5g.GroupID, h5d.DatasetID)):
            raise BadData("neither a group nor a dataset", where=where, fix=FIX)
        return found


# ---- the allow-list of one dataset or attribute ----


def _form_of(dataset: Any, where: str) -> Form:
    """dtype (or TEXT, FRAMES) and shape. Raises BadData, UnsafeData for what is not read."""
    from h5py import h5d, h5s

    space, kind, stored = dataset.get_space(), dataset.get_type(), dataset.get_create_plist()
    if space.get_simple_extent_type() == h5s.NULL:
        raise BadData("a dataset without a value", where=where, fix=FIX)
    shape, name, size, layout = space.get_simple_extent_dims(), _type_name(kind, where), kind.get_size(), stored.get_layout()
    if layout == h5d.VIRTUAL:
        raise UnsafeData("a virtual dataset, whose values are in other files", where=where, fix=FIX)
    if stored.get_external_count():
        raise UnsafeData("external storage: its values are in another file", where=where, fix=FIX)
    for number in range(stored.get_nfilters()):
        code = stored.get_filter(number)[0]
        if code not in FILTERS:
            raise UnsafeData(f"filter {code} is not one of HDF5's own, and is not loaded", where=where, fix=FIX)
    nbytes, nstored = math.prod(shape) * size, dataset.get_storage_size()
    if nbytes > max(SMALL, RATIO * nstored):
        what = f"{nbytes / 1e6:,.0f} MB of values in {nstored:,} stored bytes"
        raise BadData(what, where=where, fix="write the file again without compression")
    if layout == h5d.CHUNKED and math.prod(stored.get_chunk()) * size > CHUNK:
        raise BadData("a chunk of more than a gibibyte", where=where, fix="write the file again with smaller chunks")
    return name, shape


def _type_name(kind: Any, where: str) -> str:
    from h5py import h5t

    for standard, name in _standard_types().get((kind.get_class(), kind.get_size()), ()):
        if kind == standard:
            return name
    if isinstance(kind, h5t.TypeStringID):
        return TEXT
    if isinstance(kind, h5t.TypeVlenID) and kind.get_super() == h5t.NATIVE_UINT8:
        return FRAMES
    if isinstance(kind, (h5t.TypeIntegerID, h5t.TypeFloatID)) or (isinstance(kind, h5t.TypeEnumID) and kind.dtype == np.bool_):
        found: np.dtype[Any] = kind.dtype
        if found.kind in "biuf" and found.itemsize <= 8 and found.names is None:
            return found.newbyteorder("=").str
    words = type(kind).__name__.removeprefix("Type").removesuffix("ID").lower()
    raise UnsafeData(f"values of the type {words}: only numbers, booleans and texts are read", where=where, fix=FIX)


@cache
def _standard_types() -> dict[tuple[int, int], list[tuple[Any, str]]]:
    """Types of this machine's byte order, by class and size, with their dtypes: comparing is much faster than translating."""
    found: dict[tuple[int, int], list[tuple[Any, str]]] = {}
    for name in ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8"):
        kind = _memory_type(name)
        found.setdefault((kind.get_class(), kind.get_size()), []).append((kind, name))
    return found


@cache
def _memory_type(name: str) -> Any:
    from h5py import h5t

    return h5t.py_create(np.dtype(name))


def _attributes_of(found: Any, where: str, passed_over: Collection[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Values by name, and the names of those that are neither numbers nor texts."""
    from h5py import h5a, h5s, h5t

    values: dict[str, Any] = {}
    left_out: list[str] = []
    names: list[bytes] = []
    h5a.iterate(found, names.append)
    for raw in names:
        name = _text(raw)
        if name in passed_over:
            continue
        attribute = h5a.open(found, raw)
        kind = attribute.get_type()
        size = math.prod(attribute.shape or ()) * kind.get_size()
        if size > ATTRIBUTE:
            raise BadData(f"an attribute of {size / 1e6:,.0f} MB", where=f"{where}@{name}", fix=FIX)
        is_text = isinstance(kind, h5t.TypeStringID)
        is_number = isinstance(kind, (h5t.TypeIntegerID, h5t.TypeFloatID, h5t.TypeEnumID)) and kind.get_size() <= 8
        if attribute.get_space().get_simple_extent_type() == h5s.NULL or not (is_text or is_number):
            left_out.append(name)
            continue
        array = np.empty(attribute.shape, attribute.dtype)
        attribute.read(array, mtype=h5t.py_create(attribute.dtype))
        values[name] = _texts_in(array.tolist()) if is_text else array.tolist()
    return values, tuple(left_out)


def _texts_in(value: Any) -> Any:
    return [_texts_in(one) for one in value] if isinstance(value, list) else _text(value)


def _text(raw: Any) -> str:
    """A name or text of a file, whatever its bytes are."""
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else str(raw)


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
