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


def sync_bytes(file: str) -> None:
    """Sync the bytes of a file to disk."""
    _sync(file, os.O_RDWR)


def sync_names(folder: str) -> None:
    """Sync the names in a folder to disk."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    try:
        _sync(folder, os.O_RDONLY)
    except PermissionError:  # a folder that may be written to and not read cannot be synced
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
    """The file at `path`, called `shown` in messages. Raises BadData for a pipe, socket or device, OSError."""
    mode = os.stat(path).st_mode  # before anything is opened: that alone sets some devices to work
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown)
    if not stat.S_ISREG(mode):
        fix = "name a file; recordings alone can be piped in: `command | offline-cli convert - --out D`"
        raise BadData("a pipe, socket or device: reading it could block forever", where=shown, fix=fix)
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
        with self._failures("making a temporary file for"):
            self._file = tempfile.TemporaryFile(dir=self._folder)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError):  # what is not written yet is not needed any more
            self._file.close()

    def append(self, data: Any) -> int:
        """Write bytes (or a contiguous array's) at the end; gives where they begin."""
        offset, view = self.size, _bytes_of(data)
        self.size += len(view)
        with self._failures("writing"):
            self._file.seek(offset)
            self._file.write(view)
            self._file.flush()  # others read by its descriptor
        return offset

    def read_into(self, offset: int, target: Any) -> None:
        """Fill `target`, a contiguous array, with the bytes from `offset` on."""
        view = _bytes_of(target)
        with self._failures("reading"):
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
        except OSError as err:
            kind = StorageNotFound if isinstance(err, FileNotFoundError) else StorageError
            said = "no space left" if err.errno in FULL else err.strerror or err
            what = f"{doing} {self._holding} in a temporary file failed after {self.size / 1e6:,.0f} MB: {said}"
            raise kind(what, where=self._folder, fix="name a folder that is there and has space with --temp-dir") from err


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
