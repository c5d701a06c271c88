"""Every call that changes files or names below a folder, in order: what `power_cuts.py` makes images of.

`RecordedDisk` puts itself, in this process, before the calls of `os` and `open` with which files are made, written, synced,
renamed, linked, cut and removed. What goes past them (a library's own files, a child process) is not seen, and found out by
`power_cuts.recorded`: the calls, done again, do not give the folder that is there.
"""

from __future__ import annotations

import builtins
import io
import os
import stat
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock

Tree = dict[str, bytes | None]  # what is below a folder, by path: the bytes of a file, None for a folder


@dataclass(frozen=True, eq=False)
class Names:
    """Names that a call gives or takes away, which reach the disk together or not at all."""

    edits: tuple[tuple[int, str, int | None], ...]  # folder, name, and what it names from then on; None: nothing
    needs: Names | None = (
        None  # of the other folder that a file was moved to; unless this one is synced first, it comes with it
    )


@dataclass(frozen=True)
class Bytes:
    """Bytes written into a file."""

    file: int
    at: int
    data: bytes


@dataclass(frozen=True)
class Length:
    """A file cut off."""

    file: int
    length: int


@dataclass(frozen=True)
class Sync:
    """fsync of a file or a folder."""

    node: int


Call = Names | Bytes | Length | Sync


@dataclass
class Log:
    """What was there, all of it kept, and what was called since. Node 0 is the folder itself."""

    folders: dict[int, dict[str, int]] = field(default_factory=dict)  # at the beginning
    files: dict[int, bytes] = field(default_factory=dict)
    made: set[int] = field(default_factory=set)  # folders made since
    calls: list[Call] = field(default_factory=list)


class RecordedDisk:
    """The calls below `root` within a `with`, in `log`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = Log()
        self._nodes: dict[tuple[int, int], int] = {}  # device and inode
        self._count = 0
        self._mutex = threading.RLock()
        self._patches = ExitStack()
        self._take(root)

    def _take(self, path: Path) -> int:
        node = self._node(os.lstat(path))
        if path.is_dir():
            self.log.folders[node] = {}
            for child in sorted(path.iterdir()):
                self.log.folders[node][child.name] = self._take(child)
        else:
            self.log.files[node] = path.read_bytes()
        return node

    def _node(self, status: os.stat_result) -> int:
        key = status.st_dev, status.st_ino
        if key not in self._nodes:
            self._nodes[key] = self._count
            self._count += 1
        return self._nodes[key]

    # ---- the calls ----

    def __enter__(self) -> Self:
        wrapped: dict[str, Callable[..., Any]] = {
            "open": self._os_open,
            "fsync": self._fsync,
            "truncate": self._truncate,
            "mkdir": self._mkdir,
            "link": self._link,
            **dict.fromkeys(("unlink", "remove", "rmdir"), self._unlink),
            **dict.fromkeys(("rename", "replace"), self._rename),
        }
        for name, wrapper in wrapped.items():
            self._patch(os, name, wrapper)
        for module in (builtins, io):
            self._patch(module, "open", self._open)
        return self

    def _patch(self, module: Any, name: str, wrapper: Callable[..., Any]) -> None:
        real = getattr(module, name)

        def patched(*args: Any, **kwargs: Any) -> Any:
            with self._mutex:
                return wrapper(real, *args, **kwargs)

        self._patches.enter_context(mock.patch.object(module, name, patched))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._patches.close()

    def _place(self, path: Any) -> tuple[int, str] | None:
        """Folder and name of a path; None where it is not below the root."""
        if isinstance(path, int):
            return None
        above, name = os.path.split(os.path.abspath(os.fspath(path)))
        try:
            status = os.stat(above)
        except OSError:
            return None
        folder = self._nodes.get((status.st_dev, status.st_ino))
        return None if folder is None else (folder, name)

    def _name(self, *edits: tuple[int, str, int | None], needs: Names | None = None) -> Names:
        names = Names(edits, needs)
        self.log.calls.append(names)
        return names

    def _opened(self, real: Callable[..., Any], path: Any, *, truncates: bool) -> tuple[Any, int | None]:
        """What `real()` opens, and its node where it is below the root."""
        place = self._place(path)
        is_new = place is not None and not os.path.lexists(path)
        handle = real()
        if place is None:
            return handle, None
        node = self._node(os.lstat(path))
        if is_new:
            self._name((*place, node))
        elif truncates:
            self.log.calls.append(Length(node, 0))
        return handle, node

    def _open(self, real: Callable[..., Any], file: Any, mode: str = "r", buffering: int = -1, *text: Any, **more: Any) -> Any:
        if self._place(file) is None or not set(mode) & set("wax+"):
            return real(file, mode, buffering, *text, **more)
        assert "b" in mode, "only files of bytes are recorded"
        raw, node = self._opened(lambda: _RecordedFile(self, file, mode.replace("b", "")), file, truncates="w" in mode)
        raw.node = node
        if buffering == 0:
            return raw
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

    def _os_open(self, real: Callable[..., Any], path: Any, flags: int, *args: Any, **more: Any) -> Any:
        assert more.get("dir_fd") is None, "only whole paths are recorded"
        if not flags & (os.O_CREAT | os.O_TRUNC):
            return real(path, flags, *args, **more)
        return self._opened(lambda: real(path, flags, *args, **more), path, truncates=bool(flags & os.O_TRUNC))[0]

    def _fsync(self, real: Callable[..., Any], handle: Any) -> None:
        real(handle)
        status = os.fstat(handle if isinstance(handle, int) else handle.fileno())
        node = self._nodes.get((status.st_dev, status.st_ino))
        if node is not None:
            self.log.calls.append(Sync(node))

    def _truncate(self, real: Callable[..., Any], path: Any, length: int) -> None:
        real(path, length)
        if self._place(path) is not None:
            self.log.calls.append(Length(self._node(os.stat(path)), length))

    def _mkdir(self, real: Callable[..., Any], path: Any, *args: Any, **more: Any) -> None:
        real(path, *args, **more)
        place = self._place(path)
        if place is not None:
            node = self._node(os.lstat(path))
            self.log.made.add(node)
            self._name((*place, node))

    def _link(self, real: Callable[..., Any], path: Any, other: Any, **more: Any) -> None:
        real(path, other, **more)
        place = self._place(other)
        if place is not None:
            self._name((*place, self._node(os.lstat(other))))

    def _unlink(self, real: Callable[..., Any], path: Any, **more: Any) -> None:
        assert more.get("dir_fd") is None, "only whole paths are recorded"
        place, status = self._place(path), os.lstat(path) if os.path.lexists(path) else None
        real(path, **more)
        if place is not None and status is not None:
            self._name((*place, None))
            if status.st_nlink == 1 or stat.S_ISDIR(status.st_mode):
                self._nodes.pop((status.st_dev, status.st_ino), None)  # the next file may get this number

    def _rename(self, real: Callable[..., Any], path: Any, other: Any, **more: Any) -> None:
        before, replaced = self._place(path), os.lstat(other) if os.path.lexists(other) else None
        real(path, other, **more)
        after = self._place(other)
        assert (before is None) == (after is None), "a file came from elsewhere, or went there"
        if before is None or after is None:
            return
        node = self._node(os.lstat(other))
        if replaced is not None and replaced.st_nlink == 1:
            self._nodes.pop((replaced.st_dev, replaced.st_ino), None)
        if before[0] == after[0]:
            self._name((*after, node), (*before, None))
        else:
            self._name((*before, None), needs=self._name((*after, node)))


class _RecordedFile(io.FileIO):
    """A file whose bytes are recorded as they reach the system."""

    def __init__(self, disk: RecordedDisk, path: Any, mode: str) -> None:
        super().__init__(path, mode)
        self._disk = disk
        self.node: int | None = None

    def write(self, data: Any) -> int:
        with self._disk._mutex:
            count = super().write(data)
            assert count is not None
            assert self.node is not None
            whole = bytes(memoryview(data).cast("B")[:count])
            self._disk.log.calls.append(Bytes(self.node, self.tell() - count, whole))
            return count
