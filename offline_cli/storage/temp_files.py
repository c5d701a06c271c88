"""Bytes in a temporary file (`--temp-dir`), deleted as soon as it is open (Windows: when it is closed): not even a killed
process leaves bytes behind.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

from offline_cli.errors import StorageError, StorageNotFound

__all__ = ["TempFile", "checked_folder"]

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


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
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def append(self, data: Any) -> int:
        """Write bytes (or a contiguous array's) at the end; gives where they begin."""
        rest, offset = _bytes_of(data), self.size
        self.size += len(rest)
        with self._failures(f"writing {self._holding} to a temporary file"):
            self._file.seek(offset)
            while len(rest):
                rest = rest[self._file.write(rest) :]
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
