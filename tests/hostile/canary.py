"""Watches a process for what reading data must never do: run anything, connect anywhere, touch a file that is not its own.

Python itself tells of each such act before it happens (audit events). Those that nothing here has a right to end in a
`CanaryDied`, which no reader catches, and are remembered even where something does. There is no way to take an audit hook away,
so a canary belongs into a process of its own.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Collection
from pathlib import Path
from typing import Any

__all__ = ["Canary", "CanaryDied"]

RUNS = (
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.kill",
    "pickle.find_class",
    "pty.spawn",
    "shelve",
    "socket.bind",
    "socket.connect",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "socket.sendto",
    "subprocess.",
    "urllib.",
    "webbrowser.",
)
"""Events, or how their names begin, that are never right."""
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.symlink", "os.link", "os.truncate")
CODE = ("exec", "import", "ctypes.dlopen")  # to parse code runs none of it: messages quote an assertion's own line
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SYSTEM = (
    "/proc/self",
    "/sys/fs/cgroup",
    "/sys/devices/system",
    "/dev/null",
    "/dev/urandom",
    "/dev/shm",
    "/proc/",
    "/etc/localtime",
    "/usr/share/zoneinfo",
)


class CanaryDied(BaseException):
    """Something was about to happen that reading data never does."""


class Canary:
    """Armed by `arm`, from then on it raises CanaryDied, and lists what was tried in `deaths`."""

    def __init__(self, *, readable: Collection[str | os.PathLike[str]] = (), writable: Collection[str | os.PathLike[str]] = ()):
        """Folders that may be read (beside Python's own and the system's figures of itself), and written to."""
        mine = (*sysconfig.get_paths().values(), sys.base_prefix, sys.prefix, Path(__file__).parents[2])
        self.writable = tuple(os.path.realpath(path) for path in writable)
        self.readable = (*(os.path.realpath(path) for path in (*readable, *mine)), *SYSTEM, *self.writable)
        self.deaths: list[str] = []
        self.armed = self.strict = False
        sys.addaudithook(self._hear)

    def arm(self, *, strict: bool = False) -> None:
        """Begin to watch. `strict`: code is no longer loaded either; everything that is needed has been."""
        self.armed, self.strict = True, strict

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        what = self._wrong(event, args)
        if what:
            self.armed = False  # making a message may open files itself
            self.deaths.append(what)
            self.armed = True
            raise CanaryDied(what)

    def _wrong(self, event: str, args: tuple[Any, ...]) -> str:
        if event == "open":
            return self._wrong_file(*args)
        if event == "os.kill" and args[1] == 0:  # asks whether a process is there
            return ""
        if event.startswith(RUNS) or (self.strict and event in CODE):
            return f"{event} {args!r:.200}"
        if event in CHANGES:
            folders = [arg for arg in args if type(arg) is int and arg >= 0] if event in ("os.remove", "os.rmdir") else []
            changed = args[1:] if event == "os.symlink" else args  # what a link points to stays as it is
            paths = [_itself(_below(folders, arg)) for arg in changed if isinstance(arg, (str, bytes, os.PathLike))]
            outside = [path for path in paths if not _below_any(path, self.writable)]
            return f"{event} of {outside[0]!r}" if outside else ""
        return ""

    def _wrong_file(self, path: Any, mode: Any, flags: Any) -> str:
        if isinstance(path, int) or path is None:
            return ""
        writes = bool((flags or 0) & WRITING) or (isinstance(mode, str) and not set(mode).isdisjoint("wax+"))
        if _within(path, self.writable if writes else self.readable):
            return ""
        return f"{'writing' if writes else 'reading'} {path!r}"


def _itself(path: Any) -> str:
    """The path of a link, not of what it points to: that is what these calls change."""
    folder, name = os.path.split(os.fsdecode(path))
    return os.path.join(os.path.realpath(folder), name)


def _below(folders: list[int], path: Any) -> Any:
    """A path by an open folder: shutil removes a tree that way."""
    return os.path.join(os.readlink(f"/proc/self/fd/{folders[-1]}"), os.fsdecode(path)) if folders else path


def _within(path: Any, folders: Collection[str]) -> bool:
    return _below_any(os.path.realpath(os.fsdecode(path)), folders)


def _below_any(name: str, folders: Collection[str]) -> bool:
    return any(name == folder or name.startswith(folder.rstrip("/") + "/") for folder in folders)
