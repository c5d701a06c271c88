"""An HDF5 file as the parent sees it: questions to a child process, whose answers are checked as any bytes from outside.

The child (`child_process.py`) is forked from a template that has h5py loaded, in milliseconds after the first one. What ends it
(a crash of libhdf5, the time limit of a request) is bad data, exit code 3. A file that is not of this machine is copied to a
temporary file first: HDF5 jumps around in its files.

Small groups in the form that h5py gives them are read here (`plain_file.py`); the child is started for all else.
"""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import signal
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice, pairwise
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.engines.template_process import Child
from offline_cli.errors import BadData, MissingPackage, OfflineCliError, UnsafeData
from offline_cli.files.failures import storage_failures
from offline_cli.files.local_files import open_plain
from offline_cli.files.locations import Location
from offline_cli.formats.hdf5.messages import FRAMES, LOADED, SECONDS, TEXT, filled, receive, send
from offline_cli.formats.hdf5.nodes import Alike, Form, Node
from offline_cli.formats.hdf5.plain_alike import FEWEST
from offline_cli.formats.hdf5.plain_file import PlainFile
from offline_cli.formats.hdf5.plain_messages import Unlike
from offline_cli.scopes import Scope

__all__ = ["ROOM", "Hdf5File", "need_h5py"]

ROOM: Final = 512 << 20  # bytes of memory that the child may take, beside itself
BLOCK: Final = 256 << 20  # bytes of arrays in one answer
AT_ONCE: Final = 64  # objects in one answer
COMPARED: Final = 4096  # groups that may be read as alike at once
TRIES: Final = 3  # so often are most of some not alike, and groups of this file are not compared again
GRACE: Final = 10.0  # seconds more than the child has itself
COPIED: Final = 4 << 20  # bytes at a time
CHILD: Final = "offline_cli.formats.hdf5.child_process"
FIX: Final = "write the file again, or leave it out"


def need_h5py(where: str, extra: str = "hdf5") -> None:
    """Raise MissingPackage where h5py is not installed."""
    if importlib.util.find_spec("h5py") is None:
        fix = f"pip install 'offline-cli[{extra}]'"
        raise MissingPackage("HDF5 files need the package h5py, which is not installed", where=where, fix=fix)


class Hdf5File:
    """One open file; a context manager, which starts and ends the child. Raises BadData, UnsafeData, StorageError."""

    def __init__(self, file: Location, *, room: int = ROOM) -> None:
        """`room`: bytes of memory for the child."""
        self.url = file.url
        self._file, self._room = file, room
        self._scope = Scope()
        self._data: BinaryIO | None = None
        self._plain: PlainFile | None = None
        self._child: Child | None = None
        self._tries = TRIES

    def __enter__(self) -> Self:
        need_h5py(self.url)
        try:
            self._data = self._scope.enter(self._opened())
            with suppress(Unlike):
                self._plain = self._scope.enter(PlainFile(self._data.fileno()))
            if self._plain is None:
                self._start()
        except BaseException:
            self.close()
            raise
        return self

    def _start(self) -> None:
        assert self._data is not None, "outside of its with"
        self._child = child = Child(CHILD, self._data.fileno(), seconds=SECONDS + GRACE).__enter__()
        try:
            self._ask("open", self._room, self._file.is_local, SECONDS)
        except BaseException:
            self._child = None  # the next question says the same again
            child.end()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the child, whatever it is doing."""
        child, self._child = self._child, None
        if child is not None:
            child.end()
        self._data = self._plain = None
        self._scope.close()

    def _opened(self) -> BinaryIO:
        if self._file.is_local:
            with storage_failures(self.url, "opening it"):
                return open_plain(self._file.path, shown=self.url)
        with storage_failures(self.url, "reading it"):
            copy: Any = tempfile.TemporaryFile()  # noqa: SIM115  its user closes it
            with self._file.open() as stored:
                shutil.copyfileobj(stored, copy, COPIED)
            copy.flush()
            return copy  # type: ignore[no-any-return]

    # ---- questions ----

    def members(self, path: str = "") -> list[str]:
        """Names in a group, in its order."""
        if self._plain is not None:
            with suppress(Unlike):
                return self._plain.members(path)
        return self._texts_in(self._ask("members", path).get("names"))

    def describe(self, paths: Sequence[str], *, whole: bool = True) -> list[Node]:
        """Each object with all that is below it, or, without `whole`, with its direct members."""
        nodes = self._ask("describe", list(paths), whole).get("nodes")
        if not isinstance(nodes, list) or len(nodes) != len(paths):
            raise self._nonsense()
        return [self._node(node) for node in nodes]

    def load(self, paths: Sequence[str], *, passed_over: Collection[str] = ()) -> Iterator[Node]:
        """Each object with all that is below it, and the values of its datasets of numbers, but for large ones.

        `passed_over`: names of attributes that are not wanted.
        """
        first = 0
        while first < len(paths):
            asked = list(paths[first : first + AT_ONCE])
            if (plain := self._plain_nodes(asked, passed_over)) is not None:
                yield from plain
                first += len(plain)
                continue
            nodes = self._ask("load", asked, sorted(passed_over)).get("nodes")
            if not isinstance(nodes, list) or not 0 < len(nodes) <= len(asked):
                raise self._nonsense()
            yield from self._loaded(nodes)
            first += len(nodes)

    def alike(self, paths: Sequence[str], *, passed_over: Collection[str] = ()) -> Iterator[Alike | Sequence[str]]:
        """The groups, all in one group, in their order: those of one form together, and paths of those that are to `load`."""
        first = 0
        while first < len(paths):
            found = None
            if self._plain is not None and self._tries:
                with suppress(Unlike):
                    found = self._plain.alike(paths[first : first + COMPARED], passed_over)
            fits = np.zeros(min(AT_ONCE, len(paths) - first), np.bool_) if found is None else _long_runs(found[1])
            if 2 * np.count_nonzero(fits) > len(fits):
                self._tries = min(TRIES, self._tries + (len(fits) > AT_ONCE))
            else:
                self._tries = max(0, self._tries - 1)
            for start, stop in _runs(fits):
                if found is not None and fits[start]:
                    done = int(np.count_nonzero(found[1][:start]))
                    yield found[0].part(done, done + stop - start)
                else:
                    yield paths[first + start : first + stop]
            first += len(fits)

    def _plain_nodes(self, paths: Sequence[str], passed_over: Collection[str]) -> list[Node] | None:
        """The first of them, about LOADED bytes of values, as far as they are plain; None: the first is not."""
        if self._plain is None:
            return None
        nodes, held = list[Node](), 0
        with suppress(Unlike):
            for path in paths:
                nodes.append(self._plain.node(path, passed_over))
                held += sum(value.nbytes for value in nodes[-1].values.values())
                if held > LOADED:
                    break
        return nodes or None

    @cached_property
    def top(self) -> Node:
        """The root, with its direct members."""
        return self.describe([""], whole=False)[0]

    def rows(self, asked: Sequence[tuple[str, int, int]], forms: Sequence[Form]) -> list[NDArray[Any]]:
        """Rows [first, stop) of each dataset; `forms`: of the datasets, as `describe` told."""
        wanted = [_array_form(form, first, stop) for (_, first, stop), form in zip(asked, forms, strict=True)]
        found: list[NDArray[Any]] = []
        for first, last in _answers(wanted):
            found += self._arrays(self._ask("rows", list(asked[first:last])), wanted[first:last])
        return found

    def texts(self, path: str) -> list[str]:
        """All texts of a dataset."""
        return self._texts_in(self._ask("texts", path).get("texts"))

    def frames(self, path: str, first: int, stop: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """JPEG frames [first, stop), decoded, each of the shape."""
        each = max(1, BLOCK // max(1, math.prod(shape)))
        parts = []
        for start in range(first, stop, each):
            end = min(stop, start + each)
            parts += self._arrays(self._ask("frames", path, start, end), [("|u1", (end - start, *shape))])
        return np.concatenate(parts) if parts else np.empty((0, *shape), np.uint8)

    # ---- answers ----

    def _ask(self, *request: Any) -> dict[str, Any]:
        if self._child is None:
            self._start()
        assert self._child is not None
        try:
            send(self._child.socket, json.dumps(request).encode())
            answer = receive(self._child.socket)
        except (OSError, EOFError, ValueError) as error:
            raise self._gone() from error
        try:
            return self._checked(json.loads(answer))
        except ValueError as error:
            raise self._nonsense() from error

    def _loaded(self, nodes: list[Any]) -> list[Node]:
        """The nodes of an answer, with the values that follow it."""
        try:
            found = [self._node(node) for node in nodes]
            loaded = [[name for name, form in node["datasets"].items() if form[2]] for node in nodes]
        except (TypeError, KeyError, IndexError, AttributeError) as error:
            raise self._nonsense() from error
        wanted = [node.datasets[name] for node, names in zip(found, loaded, strict=True) for name in names]
        sizes = [np.dtype(kind).itemsize * math.prod(shape) for kind, shape in wanted]
        if sum(sizes) > BLOCK:
            raise self._nonsense()
        data, ends = self._filled(np.empty(sum(sizes), np.uint8)), np.cumsum(sizes).tolist()
        parts = (data[end - size : end] for size, end in zip(sizes, ends, strict=True))
        arrays = (_typed(part, kind, shape) for part, (kind, shape) in zip(parts, wanted, strict=True))
        return [
            replace(node, values=dict(zip(names, islice(arrays, len(names)), strict=True)))
            for node, names in zip(found, loaded, strict=True)
        ]

    def _filled(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        assert self._child is not None
        if data.nbytes:
            try:
                filled(self._child.socket, data)
            except (OSError, EOFError) as error:
                raise self._gone() from error
        return data

    def _arrays(self, answer: Mapping[str, Any], wanted: Sequence[Form]) -> list[NDArray[Any]]:
        """The arrays after an answer, which have to be those that were asked for."""
        said = answer.get("arrays")
        if said != [[kind, list(shape)] for kind, shape in wanted]:
            raise BadData(f"arrays {str(said)[:200]} where {str(wanted)[:200]} were wanted", where=self.url, fix=FIX)
        sizes = [np.dtype(kind).itemsize * math.prod(shape) for kind, shape in wanted]
        return [_typed(self._filled(np.empty(size, np.uint8)), *form) for size, form in zip(sizes, wanted, strict=True)]

    def _checked(self, answer: Any) -> dict[str, Any]:
        """The answer. Raises what it says."""
        if not isinstance(answer, dict):
            raise self._nonsense()
        refused = answer.get("refused")
        if refused is None:
            return answer
        kind, what, place, fix = self._texts_in(refused, count=4)
        where = f"{self.url}{' ' if place else ''}{place}"
        if kind == "memory":
            what = f"HDF5 asks for more than {self._room >> 20} MiB of memory to read this"
            raise BadData(what, where=where, fix="write the file again with smaller chunks and fewer attributes")
        raise (UnsafeData if kind == "unsafe" else BadData)(what, where=where, fix=fix)

    def _gone(self) -> OfflineCliError:
        """The error for a child that has ended."""
        code = None if self._child is None else self._child.end()
        if code is None or code in (-signal.SIGALRM, -signal.SIGKILL):
            what = f"HDF5 took more than {SECONDS} seconds for one question about this file, or was killed"
        else:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
            what = f"the HDF5 library crashed on this file ({name})"
        return BadData(what, where=self.url, fix=FIX)

    def _nonsense(self) -> BadData:
        return BadData("the process that reads HDF5 gave no sensible answer about this file", where=self.url, fix=FIX)

    def _texts_in(self, found: Any, count: int | None = None) -> list[str]:
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found) or count not in (None, len(found)):
            raise self._nonsense()
        return found

    def _node(self, node: Any) -> Node:
        try:
            datasets = {str(name): self._form(*form[:2]) for name, form in node["datasets"].items()}
            left_out, groups = self._texts_in(node["left_out"]), self._texts_in(node["groups"])
            return Node(dict(node["attributes"]), tuple(left_out), datasets, tuple(groups))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise self._nonsense() from error

    def _form(self, kind: Any, shape: Any) -> Form:
        sides = tuple(int(side) for side in shape)
        if kind not in (TEXT, FRAMES) and (np.dtype(str(kind)).kind not in "biuf" or np.dtype(str(kind)).itemsize > 8):
            raise ValueError(kind)
        if any(side < 0 for side in sides):
            raise ValueError(shape)
        return str(kind), sides


def _runs(fits: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """[start, stop) of those that follow each other and all fit, or none does."""
    return pairwise([0, *(np.flatnonzero(np.diff(fits)) + 1).tolist(), len(fits)])


def _long_runs(fits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Without runs of so few that it does not pay to make a batch of each."""
    kept = fits.copy()
    for start, stop in _runs(fits):
        kept[start:stop] &= stop - start >= min(FEWEST, len(fits))
    return kept


def _typed(data: NDArray[np.uint8], kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Bytes as an array; those of booleans are 0 or 1, whatever the file has."""
    values: NDArray[Any] = data.astype(np.bool_) if kind == "|b1" else data.view(kind)
    return values.reshape(shape)


def _array_form(form: Form, first: int, stop: int) -> Form:
    kind, shape = form
    return (kind, (stop - first, *shape[1:])) if shape else form


def _answers(wanted: Sequence[Form]) -> list[tuple[int, int]]:
    """Arrays [first, last) that come in one answer each, of at most BLOCK bytes, or one array."""
    cuts, held = [0], 0
    for number, (kind, shape) in enumerate(wanted):
        size = np.dtype(kind).itemsize * math.prod(shape)
        if held and held + size > BLOCK:
            cuts.append(number)
            held = 0
        held += size
    cuts.append(len(wanted))
    return [(first, last) for first, last in pairwise(cuts) if last > first]
