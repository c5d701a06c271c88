"""What a disk of this machine is told to keep, by path: the bytes of a file, the names in a folder. Raises OSError.

A disk that knows no such thing for folders (some network filesystems) says EINVAL or ENOTSUP, and is written to all the same.
Any other failure is one: what comes after may remove what the names are needed for.
"""

from __future__ import annotations

import errno
import os
from typing import Final

__all__ = ["sync_bytes", "sync_names"]

UNKNOWN: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


def sync_bytes(file: str) -> None:
    """Have the disk keep the bytes of a file."""
    handle = os.open(file, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_names(folder: str) -> None:
    """Have the disk keep the names in a folder."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # of folders that may be written to and not read, nobody can ask it
        os.sync()
        return
    try:
        os.fsync(handle)
    except OSError as err:
        if err.errno not in UNKNOWN:
            raise
    finally:
        os.close(handle)
