"""Local files: open regular files only, fsync by path, and temporary files (`--temp-dir`).

Anyone who can put a file into a folder can also put a named pipe or a link to a terminal there, which blocks a reader forever.
Data that is piped in on purpose comes as `-`. A disk that cannot sync a folder (some network filesystems) answers EINVAL or
ENOTSUP, which is ignored; any other failure raises, because the caller may go on to delete the replaced files.
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

SIGNS: Final = ":=?&#{"  # characters of URLs and of possible secrets; a path without them is used as it is
PART_PREFIX: Final = "_part-"  # of incomplete local files
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def sync_bytes(file: str) -> None:
    """Fsync a file."""
    _sync(file, os.O_RDWR)


def sync_names(folder: str) -> None:
    """Fsync a folder, so that renames in it are durable."""
    if os.name != "posix":  # other systems cannot open a folder
        return
    try:
        _sync(folder, os.O_RDONLY)
    except PermissionError:  # a folder without read permission cannot be opened
        os.sync()
    except OSError as err:
        if err.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise


def _sync(path: str, how: int) -> None:
    handle = os.open(path, how)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_plain(path: str, *, shown: str) -> BinaryIO:
    """Open the regular file at `path`, called `shown` in messages. Raises BadData for a pipe, socket or device, OSError."""
    mode = os.stat(path).st_mode  # before opening, which alone activates some devices
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown)
    if not stat.S_ISREG(mode):
        fix = "name a file; to pipe a recording in: `command | offline-cli convert - --out D`"
        raise BadData("not a regular file but a pipe, socket or device, which could block forever", where=shown, fix=fix)
    return open(path, "rb")


def read_plain(path: str, *, shown: str) -> bytes:
    """Read a whole file. Raises as `open_plain` does."""
    with open_plain(path, shown=shown) as file:
        return file.read()


# ---- temporary files ----


class TempFile:
    """A temporary file with appends and random reads, for one thread at a time; a context manager. Raises StorageError."""

    def __init__(self, folder: str | None, *, holding: str = "rows") -> None:
        """`folder`: of the file; None: the system's temporary folder. `with` creates the file. `holding`: a noun for the data,
        for messages.
        """
        self.size = 0  # bytes
        self._folder = folder or tempfile.gettempdir()
        self._holding = holding
        self._file: Any = None

    def __enter__(self) -> Self:
        with self._failures("making a temporary file for"):
            self._file = tempfile.TemporaryFile(dir=self._folder)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError):  # unwritten data is no longer needed
            self._file.close()

    def append(self, data: Any) -> int:
        """Append bytes or a contiguous array; return their offset."""
        offset, view = self.size, _bytes_of(data)
        self.size += len(view)
        with self._failures("writing"):
            self._file.seek(offset)
            self._file.write(view)
            self._file.flush()  # others read through the descriptor
        return offset

    def read_into(self, offset: int, target: Any) -> None:
        """Fill `target`, a contiguous array, with the bytes from `offset` on."""
        view = _bytes_of(target)
        with self._failures("reading"):
            self._file.seek(offset)
            if self._file.readinto(view) < len(view):
                raise OSError(errno.EIO, "the file was truncated")

    def read(self, offset: int, size: int) -> bytearray:
        """`size` bytes from `offset` on."""
        data = bytearray(size)
        self.read_into(offset, data)
        return data

    @contextmanager
    def _failures(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as err:
            kind = StorageNotFound if isinstance(err, FileNotFoundError) else StorageError
            reason = "no space left" if err.errno in FULL else err.strerror or err
            what = f"{doing} {self._holding} in a temporary file failed after {self.size / 1e6:,.0f} MB: {reason}"
            raise kind(what, where=self._folder, fix="give --temp-dir an existing folder with enough space") from err


def checked_folder(folder: str | os.PathLike[str] | None) -> str | None:
    """Check the folder of `--temp-dir` before it is needed; None: the system's.

    Raises StorageNotFound if it does not exist, StorageError if no file can be created in it.
    """
    if folder is None:
        return None
    with TempFile(os.fspath(folder)):
        return os.fspath(folder)


def _bytes_of(data: Any) -> memoryview:
    """The bytes of an array; `cast` alone raises for empty ones."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(bytearray())
