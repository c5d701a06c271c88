"""The newest whole checkpoint of a run, for those that read it while a trainer may replace it."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from offline_cli.errors import StorageNotFound
from offline_cli.storage.locations import Location
from offline_cli.storage.own_files import is_link

__all__ = ["CHECKPOINT", "CHECKPOINTS", "STATE", "TENSORS", "checkpoint_bytes", "checkpoint_folders", "newest_checkpoint"]

CHECKPOINTS: Final = "checkpoints"
TENSORS, STATE = "tensors.safetensors", "state.json"
CHECKPOINT: Final = re.compile(r"(?P<update>[0-9]{9,18})a*", re.ASCII)
READS: Final = 5  # of a checkpoint that a trainer replaces meanwhile, before it counts as none


def checkpoint_folders(run: Location) -> list[Location]:
    """The folders in the run that have names of checkpoints, in their order. Raises StorageError."""
    found = (child for child in run.join(CHECKPOINTS).children() if CHECKPOINT.fullmatch(child.name) and not is_link(child))
    return sorted(found, key=lambda child: child.name)


def newest_checkpoint(run: Location) -> Location | None:
    """The folder of the newest whole checkpoint; None: there is none. Raises StorageError."""
    return next((folder for folder in reversed(checkpoint_folders(run)) if folder.join(STATE).is_file()), None)


def checkpoint_bytes(run: Location) -> tuple[int, bytes] | None:
    """Update and tensors of the newest whole checkpoint, which may give way to a newer one while it is read.

    None: there is none. Raises StorageError.
    """
    for _ in range(READS):
        folder = newest_checkpoint(run)
        if folder is None:
            return None
        match = CHECKPOINT.fullmatch(folder.name)
        assert match is not None, "a checkpoint's name"
        with suppress(StorageNotFound):  # a newer one has just taken its place
            return int(match["update"]), folder.join(TENSORS).read_bytes()
    return None
