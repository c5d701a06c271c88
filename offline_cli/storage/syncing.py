"""What a disk of this machine is told to keep before anything depends on it: bytes of a file, names in folders.

Other storage keeps what it has answered for. A disk that knows no such thing for folders (some network filesystems) says EINVAL
or ENOTSUP; any other failure is one, and raises StorageError: what comes after may remove what the names are needed for.
"""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import Final

from offline_cli.storage.locations import Location

__all__ = ["keep_bytes", "keep_names", "sync_names"]

UNKNOWN: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


def keep_bytes(file: Location) -> None:
    """Have the disk keep the bytes of a file. Raises StorageError."""
    if file.is_local:
        file.ask("writing", partial(_sync, file.path, os.O_RDWR))


def keep_names(*folders: Location) -> None:
    """Have the disk keep the names in folders, in this order. Raises StorageError."""
    for folder in folders:
        if folder.is_local:
            folder.ask("writing", partial(sync_names, folder.path))


def sync_names(folder: str) -> None:
    """Have the disk keep the names in the local `folder`. Raises OSError."""
    if os.name == "posix":  # elsewhere a folder cannot be opened
        _sync(folder, os.O_RDONLY)


def _sync(path: str, how: int) -> None:
    handle = os.open(path, how)
    try:
        os.fsync(handle)
    except OSError as err:
        if how != os.O_RDONLY or err.errno not in UNKNOWN:
            raise
    finally:
        os.close(handle)
