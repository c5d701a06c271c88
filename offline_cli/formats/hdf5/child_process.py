"""What runs in the child process: one HDF5 file, opened, looked at and read for the parent (`files.py`).

Requests are JSON lists, answers JSON objects, some of them followed by raw bytes of arrays; nothing is pickled. The child opens
the file, and then takes from itself what it does not need: it can open and write no other file, and its memory has a limit.
Each request has a time limit, after which the system ends the process, whatever libhdf5 is doing.

Refused by name: soft and external links, objects with several names (groups may be endless by them), external storage, virtual
datasets, filters other than HDF5's own and h5py's, datasets of other types than numbers, booleans and texts, and datasets that
unfold to more than `RATIO` times what is stored. Bytes of varying length are read only as JPEG frames, as Minari stores them.
"""

from __future__ import annotations

import io
import json
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from typing import Any, Final

import numpy as np

from offline_cli.formats.hdf5.messages import FRAMES, MESSAGE, SECONDS, TEXT, receive, send

with suppress(ImportError):  # the parent has looked: without it no child is started
    os.environ["HDF5_PLUGIN_PRELOAD"] = "::"  # filters are never loaded from files
    import h5py
    from h5py import h5a, h5d, h5g, h5l, h5o, h5s, h5t

__all__ = ["serve"]

RATIO: Final = 1000  # times the stored bytes that a dataset may unfold to, beyond:
SMALL: Final = 64 << 20  # bytes
DEEPEST: Final = 32  # groups within groups
LOADED: Final = 8 << 20  # bytes of values in one answer to `load`, before the last object
MOST: Final = 100_000  # objects below one that is described
ATTRIBUTE: Final = 16 << 20  # bytes of one
FILTERS: Final = frozenset({1, 2, 3, 4, 5, 6, 32000})  # deflate, shuffle, fletcher32, szip, nbit, scaleoffset; h5py's lzf
WRITE: Final = "write the file again with h5py: plain datasets of numbers in groups"


class _Refused(Exception):
    """What is refused: kind of error, what, where, remedy."""


def serve(parent: socket.socket, handle: int) -> None:
    """Answer the parent's requests about the file `handle` until it closes the socket. The first request is `open`."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with parent, suppress(OSError, EOFError):
        file: _Answers | None = None
        while True:
            signal.alarm(0)
            request = json.loads(receive(parent))
            signal.alarm(SECONDS)
            if file is None:
                file = _Answers(_opened(parent, handle, int(request[1]), has_name=bool(request[2])))
            else:
                _answer(parent, partial(file, request))


def _answer(parent: socket.socket, call: Callable[[], tuple[dict[str, Any], list[Any]]]) -> None:
    try:
        answer, arrays = call()
        data = json.dumps(answer).encode()
        if len(data) > MESSAGE:
            raise _Refused("bad", f"names and attributes of {len(data) / 1e6:.0f} MB", "", WRITE)
    except _Refused as refused:
        answer, arrays = {"refused": list(refused.args)}, []
    except MemoryError:
        answer, arrays = {"refused": ["memory", "", "", ""]}, []
    except Exception as error:  # noqa: BLE001  whatever h5py raises for damaged bytes; its words are for the message
        words = f"{type(error).__name__}: {error}"[:500].encode("ascii", "backslashreplace").decode()
        kind = "memory" if "allocat" in words else "bad"
        answer, arrays = {"refused": [kind, f"HDF5 cannot read it ({words})", "", WRITE]}, []
    send(parent, json.dumps(answer).encode())
    for array in arrays:
        view = memoryview(array)
        if view.nbytes:
            parent.sendall(view.cast("B"))


# ---- the file ----


def _opened(parent: socket.socket, handle: int, room: int, *, has_name: bool) -> Any:
    """The open file; a first answer says whether it is one. Afterwards the process can open nothing else.

    HDF5 asks for the path of a file that it opens itself; one without a name is read through Python, which is slower.
    """
    path = f"/dev/fd/{handle}" if sys.platform == "darwin" else f"/proc/self/fd/{handle}"
    found: list[Any] = []

    def call() -> tuple[dict[str, Any], list[Any]]:
        _limit_memory(room)
        try:
            if has_name:
                found.append(h5py.File(path, "r", driver="sec2", locking=False))
            else:
                found.append(h5py.File(os.fdopen(handle, "rb"), "r"))
        except OSError as error:
            words = str(error).replace(path, "the file")[:300].encode("ascii", "backslashreplace").decode()
            raise _Refused("bad", f"not an HDF5 file, or a damaged one ({words})", "", "copy or write it again") from error
        _limit_files()
        return {}, []

    _answer(parent, call)
    if not found:
        raise EOFError
    return found[0]


def _warm_up() -> None:
    """Import what h5py, numpy and Pillow import on first use; done once, in the template of all children."""
    from PIL import Image

    frame = io.BytesIO()
    Image.new("RGB", (8, 8)).save(frame, "JPEG")
    with Image.open(frame, formats=("JPEG",)) as picture:
        picture.load()
    with h5py.File("memory", "w", driver="core", backing_store=False) as file:
        file["a"] = np.zeros(3, np.bool_)
        file.attrs["b"] = "text"
        assert file["a"].id.dtype == np.bool_
        assert str(file.attrs["b"]) == "text"


def _limit_memory(room: int) -> None:
    with suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm", encoding="ascii") as taken:
            now = int(taken.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + room, now + room))


def _limit_files() -> None:
    with suppress(ImportError, OSError, ValueError):
        import resource

        for what in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NOFILE):
            resource.setrlimit(what, (0, 0))


class _Answers:
    """The requests: `members`, `describe`, `load`, `rows`, `texts`, `frames`; paths of objects have `/` between names."""

    def __init__(self, file: Any) -> None:
        self._root = file.id if isinstance(file.id, h5g.GroupID) else h5g.open(file.id, b"/")
        self._open: dict[str, Any] = {}  # datasets that were described last, by path

    def __call__(self, request: list[Any]) -> tuple[dict[str, Any], list[Any]]:
        name, *arguments = request
        asked: Callable[..., tuple[dict[str, Any], list[Any]]] = getattr(self, f"_{name}")
        return asked(*arguments)

    def _members(self, path: str) -> tuple[dict[str, Any], list[Any]]:
        """Names of a group's members, in its order, and which of them are groups is not looked at."""
        group = self._group(path)
        return {"names": [_text(name) for name in group]}, []

    def _describe(self, paths: list[str], whole: bool) -> tuple[dict[str, Any], list[Any]]:
        """Of each object: its attributes, and all datasets below it; without `whole`, only its direct members."""
        self._open = {}
        return {"nodes": [self._node(path, whole, set()) for path in paths]}, []

    def _load(self, paths: list[str], passed_over: list[str]) -> tuple[dict[str, Any], list[Any]]:
        """The same of the first of the objects, with the values of their datasets of numbers, but for large ones.

        Attributes that are `passed_over` are not read. An answer has about LOADED bytes: the rest is to be asked for again.
        """
        self._open = {}
        nodes, arrays, held = list[dict[str, Any]](), list[Any](), 0
        for path in paths:
            node = self._node(path, True, set(passed_over))
            for name, form in node["datasets"].items():
                size = 0 if form[0] in (TEXT, FRAMES) else np.dtype(form[0]).itemsize * math.prod(form[1])
                form.append(form[0] not in (TEXT, FRAMES) and size <= LOADED)
                if form[2]:
                    place = f"{path}/{name}" if name else path
                    arrays.append(_all_of(self._open[place], form[0], form[1]))
                    held += size
            nodes.append(node)
            if held > LOADED:
                break
        return {"nodes": nodes}, [b"".join(array.tobytes() for array in arrays)] if arrays else []

    def _rows(self, asked: list[tuple[str, int, int]]) -> tuple[dict[str, Any], list[Any]]:
        """Arrays of rows [first, stop) of datasets; of one without rows, all of it."""
        arrays = [_rows_of(self._dataset(path), path, first, stop) for path, first, stop in asked]
        return {"arrays": [[array.dtype.str, list(array.shape)] for array in arrays]}, arrays

    def _texts(self, path: str) -> tuple[dict[str, Any], list[Any]]:
        """All texts of a dataset."""
        dataset = self._dataset(path)
        if math.prod(dataset.shape) > MOST:
            raise _Refused("bad", f"{math.prod(dataset.shape):,} texts", path, WRITE)
        values = np.empty(dataset.shape, dataset.dtype)
        dataset.read(h5s.ALL, h5s.ALL, values, mtype=h5t.py_create(dataset.dtype))
        return {"texts": [_text(value) for value in values.reshape(-1).tolist()]}, []

    def _frames(self, path: str, first: int, stop: int) -> tuple[dict[str, Any], list[Any]]:
        """JPEG frames, decoded."""
        from PIL import Image

        dataset = h5py.Dataset(self._dataset(path))
        frames = []
        for data in dataset[first:stop]:
            with Image.open(io.BytesIO(np.asarray(data, np.uint8).tobytes()), formats=("JPEG",)) as picture:
                if picture.width * picture.height > SMALL:
                    raise _Refused("bad", f"a frame of {picture.width} x {picture.height} pixels", path, WRITE)
                frames.append(np.asarray(picture, np.uint8))
            if frames[-1].shape != frames[0].shape or frames[0].nbytes * len(dataset) > SMALL * RATIO:
                raise _Refused("bad", "JPEG frames of several sizes, or of too many bytes", path, WRITE)
        whole = np.stack(frames)
        return {"arrays": [[whole.dtype.str, list(whole.shape)]]}, [whole]

    # ---- objects ----

    def _group(self, path: str) -> Any:
        found = self._object(path)
        if not isinstance(found, h5g.GroupID):
            raise _Refused("bad", "not a group", path, WRITE)
        return found

    def _dataset(self, path: str) -> Any:
        found = self._open.get(path) or self._object(path)
        if not isinstance(found, h5d.DatasetID):
            raise _Refused("bad", "not a dataset", path, WRITE)
        if path not in self._open:
            _form(found, path)
        return found

    def _object(self, path: str) -> Any:
        found, so_far = self._root, ""
        for name in filter(None, path.split("/")):
            so_far = f"{so_far}/{name}"
            if not isinstance(found, h5g.GroupID) or not found.links.exists(name.encode()):
                raise _Refused("bad", "nothing is here", so_far, WRITE)
            found = _member(found, name.encode(), so_far)
        return found

    def _node(self, path: str, whole: bool, passed_over: set[str]) -> dict[str, Any]:
        found = self._object(path)
        datasets: dict[str, Any] = {}
        groups: list[str] = []
        if isinstance(found, h5d.DatasetID):
            datasets[""] = self._form_of(found, path)
        else:
            for name, member, place in self._below(found, path, "", 0 if whole else DEEPEST):
                if isinstance(member, h5d.DatasetID):
                    datasets[name] = self._form_of(member, place)
                else:
                    groups.append(name)
        attributes, left_out = _attributes(found, path, passed_over)
        return {"attributes": attributes, "left_out": left_out, "datasets": datasets, "groups": groups}

    def _form_of(self, dataset: Any, path: str) -> list[Any]:
        self._open[path] = dataset
        return _form(dataset, path)

    def _below(self, group: Any, path: str, prefix: str, depth: int) -> Iterator[tuple[str, Any, str]]:
        """Name below the first group, object and path of all members, those of groups after these."""
        for count, raw in enumerate(group):
            if count >= MOST or len(self._open) >= MOST:
                raise _Refused("bad", f"more than {MOST:,} objects in one group", path, WRITE)
            text = _text(raw)
            place, name = f"{path}/{text}", f"{prefix}{text}"
            member = _member(group, raw, place)
            yield name, member, place
            if isinstance(member, h5g.GroupID) and depth < DEEPEST:
                if depth + 1 == DEEPEST:
                    raise _Refused("bad", f"groups nested more than {DEEPEST} deep", place, WRITE)
                yield from self._below(member, place, f"{name}/", depth + 1)


def _member(group: Any, name: bytes, place: str) -> Any:
    link = group.links.get_info(name)
    if link.type != h5l.TYPE_HARD:
        kind = "an external link" if link.type == h5l.TYPE_EXTERNAL else "a soft link"
        raise _Refused("unsafe", f"{kind}, which may lead elsewhere", place, "write a copy of what it leads to in its place")
    found = h5o.open(group, name)
    if not isinstance(found, (h5g.GroupID, h5d.DatasetID)):
        raise _Refused("bad", "neither a group nor a dataset", place, WRITE)
    if isinstance(found, h5g.GroupID) and h5o.get_info(found).rc > 1:
        raise _Refused("unsafe", "a group with several names (hard links)", place, "write a copy under each name")
    return found


def _form(dataset: Any, path: str) -> list[Any]:
    """dtype (or TEXT, FRAMES) and shape. Raises _Refused."""
    space = dataset.get_space()
    if space.get_simple_extent_type() == h5s.NULL:
        raise _Refused("bad", "a dataset without a value", path, WRITE)
    shape = list(space.get_simple_extent_dims())
    kind = dataset.get_type()
    name, size = _type_name(kind, path), kind.get_size()
    stored = dataset.get_create_plist()
    if stored.get_layout() == h5d.VIRTUAL:
        raise _Refused("unsafe", "a virtual dataset, whose values are in other files", path, WRITE)
    if stored.get_external_count():
        raise _Refused("unsafe", "external storage: its values are in another file", path, WRITE)
    for number in range(stored.get_nfilters()):
        code = stored.get_filter(number)[0]
        if code not in FILTERS:
            raise _Refused("unsafe", f"filter {code} is not one of HDF5's own, and is not loaded", path, WRITE)
    nbytes = math.prod(shape) * size
    if nbytes > max(SMALL, RATIO * dataset.get_storage_size()):
        what = f"{nbytes / 1e6:,.0f} MB of values in {dataset.get_storage_size():,} stored bytes"
        raise _Refused("bad", what, path, "write the file again without compression")
    if stored.get_layout() == h5d.CHUNKED and math.prod(stored.get_chunk()) * size > 16 * SMALL:
        raise _Refused("bad", "a chunk of more than a gibibyte", path, "write the file again with smaller chunks")
    return [name, shape]


def _type_name(kind: Any, path: str) -> str:
    known = _standard_types().get((kind.get_class(), kind.get_size()), ())
    for standard, name in known:
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
    raise _Refused("unsafe", f"values of the type {words}: only numbers, booleans and texts are read", path, WRITE)


@cache
def _standard_types() -> dict[tuple[int, int], list[tuple[Any, str]]]:
    """Types that files of this machine's byte order have, by class and size: names of their dtypes."""
    names = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8")
    found: dict[tuple[int, int], list[tuple[Any, str]]] = {}
    for name in names:
        kind = _memory_type(name)
        found.setdefault((kind.get_class(), kind.get_size()), []).append((kind, name))
    return found


@cache
def _memory_type(name: str) -> Any:
    return h5t.py_create(np.dtype(name))


def _all_of(dataset: Any, kind: str, shape: list[int]) -> Any:
    values = np.empty(shape, kind)
    if values.size:
        dataset.read(h5s.ALL, h5s.ALL, values, mtype=_memory_type(kind))
    return values


def _rows_of(dataset: Any, path: str, first: int, stop: int) -> Any:
    shape = tuple(dataset.shape)
    kind = _type_name(dataset.get_type(), path)
    if kind in (TEXT, FRAMES):
        raise _Refused("bad", "texts where numbers are wanted", path, WRITE)
    if not shape:
        return _all_of(dataset, kind, [])
    if not 0 <= first <= stop <= shape[0]:
        raise _Refused("bad", f"rows {first} to {stop} of {shape[0]}", path, WRITE)
    rows = np.empty((stop - first, *shape[1:]), kind)
    if rows.size:
        chosen = dataset.get_space()
        chosen.select_hyperslab((first, *(0 for _ in shape[1:])), rows.shape)
        dataset.read(h5s.create_simple(rows.shape), chosen, rows)
    return rows


def _attributes(found: Any, path: str, passed_over: set[str]) -> tuple[dict[str, Any], list[str]]:
    """Values by name, and the names of those that are neither numbers nor texts."""
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
            raise _Refused("bad", f"an attribute of {size / 1e6:,.0f} MB", f"{path}@{name}", WRITE)
        is_text = isinstance(kind, h5t.TypeStringID)
        is_number = isinstance(kind, (h5t.TypeIntegerID, h5t.TypeFloatID, h5t.TypeEnumID)) and kind.get_size() <= 8
        if attribute.get_space().get_simple_extent_type() == h5s.NULL or not (is_text or is_number):
            left_out.append(name)
            continue
        array = np.empty(attribute.shape, attribute.dtype)
        attribute.read(array, mtype=h5t.py_create(attribute.dtype))
        plain = array.tolist()
        values[name] = _texts_in(plain) if is_text else plain
    return values, left_out


def _texts_in(value: Any) -> Any:
    return [_texts_in(one) for one in value] if isinstance(value, list) else _text(value)


def _text(raw: Any) -> str:
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else str(raw)


if "h5py" in sys.modules:
    _warm_up()
