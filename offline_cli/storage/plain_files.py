"""Files of this machine, opened to be read; refuses pipes, sockets and devices, which may keep their reader waiting for ever.

Whoever can put a file into a folder can put a named pipe there, or a link to a terminal. What is piped in on purpose comes
as `-`.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, Final

from offline_cli.errors import BadData

__all__ = ["open_plain", "read_plain", "read_start"]

KINDS: Final = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_plain(path: str, *, shown: str) -> BinaryIO:
    """The file at `path`, called `shown` in messages. Raises BadData for what is no file of bytes, OSError."""
    _refuse(os.stat(path).st_mode, shown)  # before anything is opened: that alone sets some devices to work
    handle = open(path, "rb", opener=_without_waiting)  # noqa: SIM115  its user closes it
    try:
        _refuse(os.fstat(handle.fileno()).st_mode, shown)  # what was opened, if somebody has exchanged it since
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
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # of a pipe, waits for nobody; of a file, changes nothing


def _refuse(mode: int, shown: str) -> None:
    kind = next((name for is_kind, name in KINDS if is_kind(mode)), None)
    if kind is not None:
        fix = "name a file; recordings alone can be piped in: `command | offline-cli convert - --out D`"
        raise BadData(f"{kind}, not a file: it could be waited for for ever", where=shown, fix=fix)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown)
