"""Files of this machine: opening regular ones alone, syncing by path, and bytes that wait in a temporary file (`--temp-dir`).

Whoever can put a file into a folder can put a named pipe there, or a link to a terminal, which blocks its reader forever. Data
that is piped in on purpose comes as `-`. A disk that cannot sync a folder (some network filesystems) answers EINVAL or ENOTSUP,
and is written to all the same; any other failure raises, because the caller may go on to remove what the names replace.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

from offline_cli.errors import BadData, StorageError, StorageNotFound

SIGNS: Final = ":=?&#{"  # of a URL, and of what may hold a secret; a plain path has none
PART_PREFIX: Final = "_part-"  # of a local file that is not whole yet
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
UNKNOWN: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
KINDS: Final = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))


def sync_bytes(file: str) -> None:
    """Sync the bytes of a file to disk."""
    handle = os.open(file, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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


def open_plain(path: str, *, shown: str) -> BinaryIO:
    """The file at `path`, called `shown` in messages. Raises BadData for anything but a regular file, OSError."""
    mode = os.stat(path).st_mode  # before anything is opened: that alone sets some devices to work
    kind = next((name for is_kind, name in KINDS if is_kind(mode)), None)
    if kind is not None:
        fix = "name a file; recordings alone can be piped in: `command | offline-cli convert - --out D`"
        raise BadData(f"{kind}, not a file: reading it could block forever", where=shown, fix=fix)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown)
    return open(path, "rb")


def read_plain(path: str, *, shown: str) -> bytes:
    """All bytes of the file. Raises as `open_plain` does."""
    with open_plain(path, shown=shown) as file:
        return file.read()


# ---- temporary files ----


class TempFile:
    """Bytes that are appended and read at any place, by one thread at a time; a context manager. Raises StorageError."""

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
            self._file = tempfile.TemporaryFile(dir=self._folder)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError):  # what is not written yet is not needed any more
            self._file.close()

    def append(self, data: Any) -> int:
        """Write bytes (or a contiguous array's) at the end; gives where they begin."""
        offset, view = self.size, _bytes_of(data)
        self.size += len(view)
        with self._failures(f"writing {self._holding} to a temporary file"):
            self._file.seek(offset)
            self._file.write(view)
            self._file.flush()  # others read by its descriptor
        return offset

    def read_into(self, offset: int, target: Any) -> None:
        """Fill `target`, a contiguous array, with the bytes from `offset` on."""
        view = _bytes_of(target)
        with self._failures(f"reading {self._holding} of a temporary file"):
            self._file.seek(offset)
            if self._file.readinto(view) < len(view):
                raise OSError(errno.EIO, "it has become shorter")

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
            raise StorageNotFound(what, where=self._folder, fix="make it, or name another with --temp-dir") from err
        except OSError as err:
            what, room = f"{doing} failed: {err.strerror or err}", "that can be written to"
            if err.errno in FULL:
                what, room = f"{doing} failed after {self.size / 1e6:,.0f} MB: no space left", "with more space"
            raise StorageError(what, where=self._folder, fix=f"name a folder {room} with --temp-dir") from err


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
