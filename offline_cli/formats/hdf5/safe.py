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
from functools import cached_property
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
    opened: Mapping[str, Any] = field(repr=False)  # h5py.Dataset by name

    def rows(self, name: str, first: int, stop: int) -> NDArray[Any]:
        """Rows [first, stop) of a dataset of numbers; of one without rows, its value. Raises BadData."""
        kind, shape = self.datasets[name]
        if kind in (TEXT, FRAMES):
            raise BadData(f"{name} holds {kind}, and no numbers", where=self.where, fix=FIX)
        with _failures(self.where, name):
            values: NDArray[Any] = np.asarray(self.opened[name][first:stop] if shape else self.opened[name][()])
        return values.view(np.uint8) != 0 if kind == "|b1" else values.astype(kind, copy=False)  # 0 or 1, whatever is stored

    def texts(self, name: str = "") -> list[str]:
        """All texts of a dataset. Raises BadData."""
        kind, shape = self.datasets.get(name, ("nothing", ()))
        if kind != TEXT or math.prod(shape) > OBJECTS:
            what = f"{name} holds {kind} {list(shape)} where at most {OBJECTS:,} texts are wanted"
            raise BadData(what, where=self.where, fix=FIX)
        with _failures(self.where, name):
            return [_text(value) for value in np.asarray(self.opened[name][()]).reshape(-1).tolist()]

    def frames(self, name: str, first: int, stop: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """JPEG frames [first, stop), decoded, each of the shape. Raises BadData."""
        from PIL import Image

        found = np.empty((stop - first, *shape), np.uint8)
        with _failures(self.where, name):
            for frame, data in zip(found, self.opened[name][first:stop], strict=True):
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
        self._root: Any = None  # h5py.File

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
                shutil.copyfileobj(stored, copy, 4 << 20)
            copy.seek(0)
            return copy

    @cached_property
    def top(self) -> Node:
        """The root, with its direct members."""
        return self.node(whole=False)

    def members(self, path: str = "") -> list[str]:
        """Names in a group, in its order."""
        import h5py

        where = f"{self.url} {path}".rstrip()
        with _failures(where, ""):
            found = self._walk(self._root, path, where)
            if not isinstance(found, h5py.Group):
                raise BadData("not a group", where=where, fix=FIX)
            return list(_names(found))

    def node(self, path: str = "", *, whole: bool = True, passed_over: Collection[str] = ()) -> Node:
        """The object with all that is below it, or, without `whole`, with its direct members.

        `passed_over`: names of attributes that are not wanted.
        """
        import h5py

        where = f"{self.url} {path}".rstrip()
        opened, datasets, groups = dict[str, Any](), dict[str, Form](), list[str]()
        with _failures(where, ""):
            found = self._walk(self._root, path, where)
            for name, member in [("", found)] if isinstance(found, h5py.Dataset) else self._below(found, where, whole):
                if isinstance(member, h5py.Dataset):
                    opened[name], datasets[name] = member, _form_of(member, f"{where}/{name}" if name else where)
                else:
                    groups.append(name)
                if len(opened) + len(groups) > OBJECTS:
                    raise BadData(f"more than {OBJECTS:,} objects in one group", where=where, fix=FIX)
            attributes, left_out = _attributes_of(found, where, passed_over)
        return Node(where, attributes, left_out, datasets, tuple(groups), opened)

    def _below(self, group: Any, where: str, whole: bool, prefix: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
        """Path from the first group, and object, of all members; those of a group after it."""
        import h5py

        for name in _names(group):
            place = f"{where}/{prefix}{name}"
            member = self._member(group, name, place)
            yield f"{prefix}{name}", member
            if whole and isinstance(member, h5py.Group):
                if depth == DEEPEST:
                    raise BadData(f"groups nested more than {DEEPEST} deep", where=place, fix=FIX)
                yield from self._below(member, where, whole, f"{prefix}{name}/", depth + 1)

    def _walk(self, found: Any, path: str, where: str, *, soft: bool = True) -> Any:
        """The object at a path from a group."""
        import h5py

        for name in filter(None, path.split("/")):
            if not isinstance(found, h5py.Group) or found.get(name, getlink=True) is None:
                raise BadData(f"nothing is here: {path}", where=where, fix=FIX)
            found = self._member(found, name, where, soft=soft)
        return found

    def _member(self, group: Any, name: str, where: str, *, soft: bool = True) -> Any:
        """A member of a group; `soft`: it may be a soft link, whose path has hard links alone."""
        import h5py

        link = group.get(name, getlink=True)
        if isinstance(link, h5py.SoftLink) and soft:
            return self._walk(self._root if link.path.startswith("/") else group, link.path, where, soft=False)
        if not isinstance(link, h5py.HardLink):
            is_soft = isinstance(link, h5py.SoftLink)
            what = "a soft link to a soft link" if is_soft else "an external link, which leads to another file"
            raise UnsafeData(what, where=where, fix="write a copy of what it leads to in its place")
        found = group[name]
        if not isinstance(found, (h5py.Group, h5py.Dataset)):
            raise BadData("neither a group nor a dataset", where=where, fix=FIX)
        return found


# ---- the allow-list of one dataset or attribute ----


def _form_of(dataset: Any, where: str) -> Form:
    """dtype (or TEXT, FRAMES) and shape. Raises BadData, UnsafeData for what is not read."""
    from h5py import h5d

    stored, shape = dataset.id.get_create_plist(), dataset.shape
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
    name = _type_name(dataset.dtype, where)
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


def _attributes_of(found: Any, where: str, passed_over: Collection[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Values by name, and the names of those that are neither numbers nor texts."""
    import h5py

    values: dict[str, Any] = {}
    left_out: list[str] = []
    for name in found.attrs:
        if name in passed_over:
            continue
        attribute = found.attrs.get_id(name)
        size, kind = math.prod(attribute.shape or ()) * attribute.get_type().get_size(), attribute.dtype
        if size > ATTRIBUTE:
            raise BadData(f"an attribute of {size / 1e6:,.0f} MB", where=f"{where}@{name}", fix=FIX)
        is_text = h5py.check_string_dtype(kind) is not None
        if attribute.shape is None or not (is_text or (kind.kind in "biuf" and kind.itemsize <= 8)):
            left_out.append(name)
            continue
        value = np.asarray(found.attrs[name]).tolist()
        values[name] = _texts_in(value) if is_text else value
    return values, tuple(left_out)


def _texts_in(value: Any) -> Any:
    return [_texts_in(one) for one in value] if isinstance(value, list) else _text(value)


def _text(raw: Any) -> str:
    """A text of a file, whatever its bytes are."""
    data = raw if isinstance(raw, bytes) else str(raw).encode("utf-8", "surrogateescape")
    return data.decode("utf-8", "backslashreplace")


def _names(group: Any) -> Iterator[str]:
    """Names of members. Raises UnicodeEncodeError for bytes that are no text."""
    for name in group:
        name.encode()
        yield name


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
