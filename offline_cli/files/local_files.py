"""Files of this machine: opening, syncing and temporary ones; and what a dangling link is.

* `open_plain`, `read_plain`: regular files only. Whoever can put a file into a folder can put a named pipe there, or a link to
  a terminal, which blocks its reader forever. Data that is piped in on purpose comes as `-`.
* `sync_bytes`, `sync_names`: sync to disk, by path: the bytes of a file, the names in a folder. A disk that cannot sync a
  folder (some network filesystems) answers EINVAL or ENOTSUP, and is written to all the same. Any other failure raises OSError,
  because the caller may go on to remove what the names replace.
* `begin_sync`: the disk works beside the writer, and the sync at the end waits for the last bytes alone.
* `TempFile`: bytes in a temporary file. The file is deleted as soon as it is open (Windows: when it is closed), so that not
  even a killed process leaves bytes behind.
* `files_below`, `matching_names`: listings, and the common kind of pattern, of 100,000 files; fsspec asks more of each of them.
* `dangling_link`: a link whose target is missing, which a listing shows and no program can open.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

from offline_cli.errors import BadData, StorageError, StorageNotFound

__all__ = [
    "PART_PREFIX",
    "SIGNS",
    "TempFile",
    "begin_sync",
    "checked_folder",
    "dangling_link",
    "files_below",
    "matching_names",
    "not_found",
    "open_plain",
    "read_plain",
    "read_start",
    "sync_bytes",
    "sync_names",
]

SIGNS: Final = ":=?&#{"  # of a URL, and of what may hold a secret; a plain path has none
PART_PREFIX: Final = "_part-"  # of a local file that is not whole yet

UNKNOWN: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})

KINDS: Final = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
OPTION: Final = "--temp-dir"
BEGIN_WRITING: Final = 2  # Linux's SYNC_FILE_RANGE_WRITE


def not_found(path: str | os.PathLike[str], what: str, *, where: str, fix: str) -> StorageNotFound:
    """The error of a missing place: `what`, unless it or a folder above is a link without its target."""
    return dangling_link(path) or StorageNotFound(what, where=where, fix=fix)


def dangling_link(path: str | os.PathLike[str], *, shown: str = "") -> StorageNotFound | None:
    """The error that names the link at or above a local path whose target does not exist, and that target; None without one.

    `shown`: the same path as the user wrote it, where that is another spelling.
    """
    spelt = os.fspath(path)
    same = bool(shown) and os.path.abspath(shown) == os.path.abspath(spelt)
    link = next((place for place in _with_parents(shown if same else spelt) if os.path.islink(place)), None)
    if link is None or os.path.exists(link):
        return None
    what = f"{link} is a link, and its target {os.readlink(link)} does not exist"
    return StorageNotFound(what, where=link, fix="bring the target back, or point the link at what is there")


def _with_parents(path: str) -> Iterator[str]:
    """`path`, and each folder above it as it is spelt."""
    while path and path != os.path.dirname(path):
        yield path
        path = os.path.dirname(path)


def sync_bytes(file: str) -> None:
    """Sync the bytes of a file to disk."""
    handle = os.open(file, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@functools.cache
def _sync_range() -> Any:
    """Linux's sync_file_range(file, first byte, bytes, flags); None: this system has none."""
    import ctypes

    try:
        found = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None
    except OSError:  # an interpreter that loads no libraries
        return None
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return found


def begin_sync(handle: int, first: int, count: int) -> None:
    """Have the system begin to write `count` bytes of an open file to disk, from byte `first` on: a hint, no promise.

    What fails is reported by the fsync that has to follow.
    """
    if (sync_range := _sync_range()) is not None:
        sync_range(handle, first, count, BEGIN_WRITING)


def sync_names(folder: str) -> None:
    """Sync the names in a folder to disk."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that may be written to and not read cannot be synced
        os.sync()
        return
    try:
        os.fsync(handle)
    except OSError as err:
        if err.errno not in UNKNOWN:
            raise
    finally:
        os.close(handle)


def files_below(folder: str) -> list[str] | None:
    """The paths of all that is below a folder and is no folder, links not followed; None: it cannot be listed, or is none."""
    found, left = list[str](), [folder.rstrip("/") if os.name == "posix" else ""]
    try:
        while left and left[0]:
            with os.scandir(here := left.pop()) as entries:
                for entry in entries:
                    (left if entry.is_dir(follow_symlinks=False) else found).append(f"{here}/{entry.name}")
    except OSError:
        return None
    return None if left else found


def matching_names(path: str) -> list[str] | None:
    """The paths that match where the last part alone is a pattern, as fsspec has it; None: not such a pattern, or folder.

    fsspec asks for each name what is there.
    """
    folder, _, pattern = path.rpartition("/")
    if os.name != "posix" or not pattern or "**" in pattern or any(sign in folder for sign in "*?["):
        return None
    from fsspec.utils import glob_translate  # `inspect` of a manifest does without fsspec

    matches = re.compile(glob_translate(pattern)).match
    try:
        return sorted(f"{folder}/{name}" for name in os.listdir(folder or "/") if matches(name))
    except OSError:
        return None


def open_plain(path: str, *, shown: str) -> BinaryIO:
    """The file at `path`, called `shown` in messages. Raises BadData for anything but a regular file, OSError."""
    _refuse(os.stat(path).st_mode, shown)  # before anything is opened: that alone sets some devices to work
    handle = open(path, "rb", opener=_without_waiting)  # noqa: SIM115  its user closes it
    try:
        _refuse(os.fstat(handle.fileno()).st_mode, shown)  # what was opened, if it was replaced since
    except BaseException:
        handle.close()
        raise
    return handle


def read_plain(path: str, *, shown: str) -> bytes:
    """All bytes of the file. Raises as `open_plain` does."""
    with open_plain(path, shown=shown) as file:
        return file.read()


def read_start(path: str, most: int, *, shown: str) -> tuple[bytes, int]:
    """The first `most` bytes of the file and how many it has. Raises as `open_plain` does.

    No Python file is made of it: small files come by the hundred thousand.
    """
    _refuse(os.stat(path).st_mode, shown)
    handle = _without_waiting(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        found = os.fstat(handle)
        _refuse(found.st_mode, shown)
        return os.read(handle, min(most, found.st_size + 1)), found.st_size
    finally:
        os.close(handle)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # does not block on a pipe; changes nothing for a file


def _refuse(mode: int, shown: str) -> None:
    kind = next((name for is_kind, name in KINDS if is_kind(mode)), None)
    if kind is not None:
        fix = "name a file; recordings alone can be piped in: `command | offline-cli convert - --out D`"
        raise BadData(f"{kind}, not a file: reading it could block forever", where=shown, fix=fix)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown)


class TempFile:
    """Bytes that are appended and read at any place; a context manager. Raises StorageError throughout.

    One thread may use it at a time.
    """

    def __init__(self, folder: str | None, *, holding: str = "rows") -> None:
        """`folder`: where the file is made; None: the system's place for temporary files. Nothing is made before `with`.
        `holding`: what the bytes are, for messages.
        """
        self.size = 0  # bytes
        self._folder = folder or tempfile.gettempdir()
        self._holding = holding
        self._file: Any = None

    def __enter__(self) -> Self:
        with self._failures("making a temporary file"):
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def append(self, data: Any) -> int:
        """Write bytes (or a contiguous array's) at the end; gives where they begin."""
        rest, offset = _bytes_of(data), self.size
        with self._failures(f"writing {self._holding} to a temporary file"):
            self._file.seek(offset)
            while len(rest):
                rest = rest[self._file.write(rest) :]
        self.size = offset + memoryview(data).nbytes
        return offset

    def read_into(self, offset: int, target: Any) -> None:
        """Fill `target`, a contiguous array, with the bytes from `offset` on."""
        rest = _bytes_of(target)
        with self._failures(f"reading {self._holding} of a temporary file"):
            self._file.seek(offset)
            while len(rest):
                count = self._file.readinto(rest)
                if not count:
                    raise OSError(errno.EIO, "it has become shorter")
                rest = rest[count:]

    def read(self, offset: int, size: int) -> bytearray:
        """`size` bytes from `offset` on."""
        data = bytearray(size)
        self.read_into(offset, data)
        return data

    @contextmanager
    def _failures(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as err:
            what = f"the folder for temporary files does not exist: {self._folder}"
            raise StorageNotFound(what, where=self._folder, fix=f"make it, or name another with {OPTION}") from err
        except OSError as err:
            if err.errno in FULL:
                what = f"{doing} failed after {self.size / 1e6:,.0f} MB: no space left"
                fix = f"name a folder with more space with {OPTION} (the {self._holding} take about their size in memory)"
                raise StorageError(what, where=self._folder, fix=fix) from err
            fix = f"name a folder that can be written to with {OPTION}"
            raise StorageError(f"{doing} failed: {err.strerror or err}", where=self._folder, fix=fix) from err


def checked_folder(folder: str | os.PathLike[str] | None) -> str | None:
    """The folder of `--temp-dir` as text, checked before it is needed; None: the system's.

    Raises StorageNotFound where it does not exist, StorageError where no file can be made in it.
    """
    if folder is None:
        return None
    with TempFile(os.fspath(folder)):
        return os.fspath(folder)


def _bytes_of(data: Any) -> memoryview:
    """Of an array without elements: none, for which `cast` raises."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(bytearray())
