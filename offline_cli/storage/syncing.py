"""What is kept before anything depends on it, wherever it is: bytes of a file, names in folders.

Disks of this machine are asked to (`fsync.py`); other storage keeps what it has answered for.
"""

from __future__ import annotations

from functools import partial

from offline_cli.storage.fsync import sync_bytes, sync_names
from offline_cli.storage.locations import Location

__all__ = ["keep_bytes", "keep_names"]


def keep_bytes(file: Location) -> None:
    """Have the disk keep the bytes of a file. Raises StorageError."""
    if file.is_local:
        file.ask("writing", partial(sync_bytes, file.path))


def keep_names(*folders: Location) -> None:
    """Have the disk keep the names in folders, in this order; one that is not there has none. Raises StorageError."""
    for folder in folders:
        if folder.is_local and folder.exists():
            folder.ask("writing", partial(sync_names, folder.path))
