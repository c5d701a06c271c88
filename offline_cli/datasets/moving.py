"""Moves files within a dataset, and syncs names before anything depends on them.

* `keep_names` and the like: disks of this machine are synced (`local_files.py`); other storage is durable once it has answered.
* `set_aside`: into `quarantine/`; what cannot be moved stays where it was.
* `retire`: shards that a new manifest has replaced leave `data/`, because other tools read all of it, and stay in `_replaced/`
  until the next write, for readers with the older manifest. Local disks and memory:// rename in one step. Object stores would
  copy every shard while the lease is held, and charge for both: there replaced shards are removed, and a reader with the older
  manifest fails. It never reads other episodes: no name is reused (`target_folder.py`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from offline_cli.datasets.layout import DATA, QUARANTINE, REPLACED, SHARD_PATH
from offline_cli.datasets.own_dataset import begins_as
from offline_cli.files.local_files import sync_bytes, sync_names
from offline_cli.files.locations import Location

__all__ = [
    "forget_replaced",
    "free_place",
    "keep_bytes",
    "keep_moves",
    "keep_names",
    "replaced_files",
    "replaced_place",
    "retire",
    "set_aside",
]


def keep_bytes(file: Location) -> None:
    """Sync the bytes of a file to disk. Raises StorageError."""
    if file.is_local:
        file.ask("writing", partial(sync_bytes, file.path))


def keep_names(*folders: Location) -> None:
    """Sync the names in folders to disk, in this order; a missing folder is skipped. Raises StorageError."""
    for folder in folders:
        if folder.is_local and folder.exists():
            folder.ask("writing", partial(sync_names, folder.path))


def free_place(folder: Location, name: str) -> Location:
    """A place in the quarantine of dataset `folder` for a file called `name`, or `name.1`, ...: the first that is free."""
    names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(1)))
    return next(place for name in names if not (place := folder.join(QUARANTINE, name)).exists())


def set_aside(file: Location, folder: Location) -> Location:
    """Move `file` of dataset `folder` into its quarantine; where it is now.

    Object stores know no move: there it is copied, and then removed. `keep_moves` syncs it. Raises StorageError.
    """
    folder.join(QUARANTINE).make_folder()
    target = free_place(folder, file.name)
    if file.is_local:
        file.ask("setting it aside", lambda: os.rename(file.path, target.path))
    else:
        file.ask("setting it aside", lambda: file.fs.cp_file(file.path, target.path))
        file.remove()
    return target


def keep_moves(files: Sequence[Location], folder: Location) -> None:
    """Sync to disk that `files` of dataset `folder` were set aside: their new names, then that the old ones are gone.

    Raises StorageError.
    """
    if files:
        before = sorted({os.path.dirname(file.path) for file in files})
        keep_names(folder.join(QUARANTINE), *(replace(folder, path=path, url=path) for path in before))


def replaced_place(folder: Location, shard: Location) -> Location | None:
    """Where `shard` of dataset `folder` is once another has replaced it; None where such are not kept."""
    return folder.join(REPLACED, shard.name) if _keeps(folder) else None


def replaced_files(folder: Location) -> list[Location]:
    """The shards that are kept of the dataset before; other files in `_replaced/` belong to the user."""
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
