"""Shards that a new manifest has replaced: kept in `_replaced/` until the next write, for readers with the older manifest.

They leave `data/`, because other tools read all of it. A disk, and the memory of this process, give a file another name in one
step. Object stores would copy every shard while the lock is held, and charge for both: there replaced shards are removed, and a
reader with the older manifest ends with an error. It never meets other episodes: no name comes back (`target_folder.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial

from offline_cli.storage.layout import DATA, REPLACED, SHARD_PATH
from offline_cli.storage.locations import Location
from offline_cli.storage.own_files import begins_as
from offline_cli.storage.syncing import keep_names

__all__ = ["forget_replaced", "replaced_files", "replaced_place", "retire"]


def replaced_place(folder: Location, shard: Location) -> Location | None:
    """Where `shard` of dataset `folder` is once another has replaced it; None where such are not kept."""
    return folder.join(REPLACED, shard.name) if _keeps(folder) else None


def replaced_files(folder: Location) -> list[Location]:
    """The shards that are kept of the dataset before; other files in `_replaced/` are somebody's."""
    kept = folder.join(REPLACED).children() if _keeps(folder) else []
    return [file for file in kept if SHARD_PATH.fullmatch(f"{DATA}/{file.name}") and begins_as(file, file.name)]


def retire(shards: Iterable[Location], folder: Location) -> None:
    """Have `shards` leave `data/`; on a disk, for good once this returns. Raises StorageError."""
    kept = folder.join(REPLACED)
    moved = False
    for shard in shards:
        target = replaced_place(folder, shard)
        if target is None or target.exists():
            shard.remove()
            continue
        kept.make_folder()
        _rename(shard, target)
        moved = True
    if moved:
        keep_names(folder, kept, folder.join(DATA))


def _rename(shard: Location, target: Location) -> None:
    if shard.is_local:
        shard.ask("setting it aside", partial(os.rename, shard.path, target.path))
    else:
        shard.ask("setting it aside", partial(shard.fs.cp_file, shard.path, target.path))
        shard.remove()


def forget_replaced(kept: Iterable[Location], folder: Location) -> None:
    """Remove the shards that were `kept` of dataset `folder`: another write begins. Raises StorageError."""
    for file in kept:
        file.remove()
    folder.join(REPLACED).remove_empty_folder()


def _keeps(folder: Location) -> bool:
    """Whether a file gets another name here in one step."""
    return folder.is_local or folder.is_memory
