"""Setting a file of a dataset aside, into its `quarantine/`; refuses to lose it: what cannot be moved stays where it was."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace

from offline_cli.storage.layout import QUARANTINE
from offline_cli.storage.locations import Location
from offline_cli.storage.syncing import keep_names

__all__ = ["free_place", "keep_moves", "set_aside"]


def free_place(folder: Location, name: str) -> Location:
    """A place in the quarantine of dataset `folder` for a file called `name`, or `name.1`, ...: the first that is free."""
    names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(1)))
    return next(place for name in names if not (place := folder.join(QUARANTINE, name)).exists())


def set_aside(file: Location, folder: Location) -> Location:
    """Move `file` of dataset `folder` into its quarantine; where it is now.

    Object stores know no move: there it is copied, and then removed. `keep_moves` makes it last. Raises StorageError.
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
    """Have the disk keep that `files` of dataset `folder` were set aside: their new names, then that the old ones are gone.

    Raises StorageError.
    """
    if files:
        before = sorted({os.path.dirname(file.path) for file in files})
        keep_names(folder.join(QUARANTINE), *(replace(folder, path=path, url=path) for path in before))
