"""Files of this machine: opening and syncing.

* `open_plain`, `read_plain`: regular files only. Whoever can put a file into a folder can put a named pipe there, or a link to
  a terminal, which blocks its reader forever. Data that is piped in on purpose comes as `-`.
* `sync_bytes`, `sync_names`: sync to disk, by path: the bytes of a file, the names in a folder. A disk that cannot sync a
  folder (some network filesystems) answers EINVAL or ENOTSUP, and is written to all the same. Any other failure raises OSError,
  because the caller may go on to remove what the names replace.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, Final

from offline_cli.errors import BadData

__all__ = ["PART_PREFIX", "SIGNS", "open_plain", "read_plain", "sync_bytes", "sync_names"]

SIGNS: Final = ":=?&#{"  # of a URL, and of what may hold a secret; a plain path has none
PART_PREFIX: Final = "_part-"  # of a local file that is not whole yet
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
