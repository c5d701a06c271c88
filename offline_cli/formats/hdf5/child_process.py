"""What runs in the child process: one HDF5 file, opened, looked at and read for the parent (`files.py`).

Requests are JSON lists, answers JSON objects, some of them followed by raw bytes of arrays; nothing is pickled. The child opens
the file, and then takes from itself what it does not need: it can open and write no other file, and its memory has a limit.
Each request has a time limit, after which the system ends the process, whatever libhdf5 is doing.
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
from functools import partial
from typing import Any

import numpy as np

from offline_cli.formats.hdf5.messages import (
    DEEPEST,
    FRAMES,
    LOADED,
    MESSAGE,
    OBJECTS,
    SECONDS,
    TEXT,
    plain_text,
    receive,
    send,
)
from offline_cli.formats.hdf5.objects import (
    RATIO,
    SMALL,
    WRITE,
    Refused,
    all_of,
    attributes_of,
    form_of,
    opened_member,
    rows_of,
)

with suppress(ImportError):
    import h5py
    from h5py import h5d, h5g, h5s, h5t

__all__ = ["serve"]


def serve(parent: socket.socket, handle: int) -> None:
    """Answer the parent's requests about the file `handle` until it closes the socket. The first request is `open`."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with parent, suppress(OSError, EOFError):
        file: _Answers | None = None
        seconds = SECONDS
        while True:
            signal.alarm(0)
            request = json.loads(receive(parent))
            seconds = int(request[3]) if file is None else seconds
            signal.alarm(seconds)
            if file is None:
                file = _Answers(_opened(parent, handle, int(request[1]), has_name=bool(request[2])))
            else:
                _answer(parent, partial(file, request))


def _answer(parent: socket.socket, call: Callable[[], tuple[dict[str, Any], list[Any]]]) -> None:
    try:
        answer, arrays = call()
        data = json.dumps(answer).encode()
        if len(data) > MESSAGE:
            raise Refused("bad", f"names and attributes of {len(data) / 1e6:.0f} MB", "", WRITE)
    except Refused as refused:
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
            raise Refused("bad", f"not an HDF5 file, or a damaged one ({words})", "", "copy or write it again") from error
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
        return {"names": [plain_text(name) for name in group]}, []

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
                    arrays.append(all_of(self._open[place], form[0], form[1]))
                    held += size
            nodes.append(node)
            if held > LOADED:
                break
        return {"nodes": nodes}, [b"".join(array.tobytes() for array in arrays)] if arrays else []

    def _rows(self, asked: list[tuple[str, int, int]]) -> tuple[dict[str, Any], list[Any]]:
        """Arrays of rows [first, stop) of datasets; of one without rows, all of it."""
        arrays = [rows_of(self._dataset(path), path, first, stop) for path, first, stop in asked]
        return {"arrays": [[array.dtype.str, list(array.shape)] for array in arrays]}, arrays

    def _texts(self, path: str) -> tuple[dict[str, Any], list[Any]]:
        """All texts of a dataset."""
        dataset = self._dataset(path)
        if math.prod(dataset.shape) > OBJECTS:
            raise Refused("bad", f"{math.prod(dataset.shape):,} texts", path, WRITE)
        values = np.empty(dataset.shape, dataset.dtype)
        dataset.read(h5s.ALL, h5s.ALL, values, mtype=h5t.py_create(dataset.dtype))
        return {"texts": [plain_text(value) for value in values.reshape(-1).tolist()]}, []

    def _frames(self, path: str, first: int, stop: int) -> tuple[dict[str, Any], list[Any]]:
        """JPEG frames, decoded."""
        from PIL import Image

        dataset = h5py.Dataset(self._dataset(path))
        frames = []
        for data in dataset[first:stop]:
            with Image.open(io.BytesIO(np.asarray(data, np.uint8).tobytes()), formats=("JPEG",)) as picture:
                if picture.width * picture.height > SMALL:
                    raise Refused("bad", f"a frame of {picture.width} x {picture.height} pixels", path, WRITE)
                frames.append(np.asarray(picture, np.uint8))
            if frames[-1].shape != frames[0].shape or frames[0].nbytes * len(dataset) > SMALL * RATIO:
                raise Refused("bad", "JPEG frames of several sizes, or of too many bytes", path, WRITE)
        whole = np.stack(frames)
        return {"arrays": [[whole.dtype.str, list(whole.shape)]]}, [whole]

    # ---- objects ----

    def _group(self, path: str) -> Any:
        found = self._object(path)
        if not isinstance(found, h5g.GroupID):
            raise Refused("bad", "not a group", path, WRITE)
        return found

    def _dataset(self, path: str) -> Any:
        found = self._open.get(path) or self._object(path)
        if not isinstance(found, h5d.DatasetID):
            raise Refused("bad", "not a dataset", path, WRITE)
        if path not in self._open:
            form_of(found, path)
        return found

    def _object(self, path: str) -> Any:
        found, so_far = self._root, ""
        for name in filter(None, path.split("/")):
            so_far = f"{so_far}/{name}"
            if not isinstance(found, h5g.GroupID) or not found.links.exists(name.encode()):
                raise Refused("bad", "nothing is here", so_far, WRITE)
            found = opened_member(found, name.encode(), so_far)
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
        attributes, left_out = attributes_of(found, path, passed_over)
        return {"attributes": attributes, "left_out": left_out, "datasets": datasets, "groups": groups}

    def _form_of(self, dataset: Any, path: str) -> list[Any]:
        self._open[path] = dataset
        return form_of(dataset, path)

    def _below(self, group: Any, path: str, prefix: str, depth: int) -> Iterator[tuple[str, Any, str]]:
        """Name below the first group, object and path of all members, those of groups after these."""
        for count, raw in enumerate(group):
            if count >= OBJECTS or len(self._open) >= OBJECTS:
                raise Refused("bad", f"more than {OBJECTS:,} objects in one group", path, WRITE)
            text = plain_text(raw)
            place, name = f"{path}/{text}", f"{prefix}{text}"
            member = opened_member(group, raw, place)
            yield name, member, place
            if isinstance(member, h5g.GroupID) and depth < DEEPEST:
                if depth + 1 == DEEPEST:
                    raise Refused("bad", f"groups nested more than {DEEPEST} deep", place, WRITE)
                yield from self._below(member, place, f"{name}/", depth + 1)


if "h5py" in sys.modules:
    _warm_up()
