"""The checkpoints of a run, of which the newest is kept; refuses to take a half-written one for a checkpoint.

    RUN/checkpoints/000000500/tensors.safetensors    weights, optimizer and generators
    RUN/checkpoints/000000500/state.json             counters; written last: a checkpoint with it is whole

No folder is renamed, which object stores cannot do: both files are put under their names whole. The checkpoint before goes only
then, its state.json first. So a kill at any moment leaves the one before or the one after.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from offline_cli.errors import StorageNotFound
from offline_cli.storage.layout import PART_PREFIX
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import write_whole

__all__ = ["STATE", "TENSORS", "Begun", "Checkpoints", "remove_folder"]

CHECKPOINTS: Final = "checkpoints"
TENSORS, STATE = "tensors.safetensors", "state.json"


@dataclass(frozen=True, slots=True)
class Begun:
    """A checkpoint that counts for nothing yet."""

    folder: Location
    older: list[Location]  # what it replaces


class Checkpoints:
    """Those of the run in the folder `run`, which has them in a folder of their own."""

    def __init__(self, run: Location) -> None:
        self._run = run
        self._place = run.join(CHECKPOINTS)

    def newest(self) -> Location | None:
        """The folder of the newest whole checkpoint; None: there is none. Raises StorageError."""
        for folder in reversed(self._folders()):
            if not folder.name.startswith(PART_PREFIX) and folder.join(STATE).is_file():
                return folder
        return None

    def _folders(self) -> list[Location]:
        return sorted(self._place.children(), key=lambda child: child.name)

    def begin(self, update: int, tensors: bytes) -> Begun:
        """Write all of a checkpoint but its state. Raises StorageError."""
        older = self._folders()
        folder = self._place.join(_new_name(update, {other.name for other in older}))
        folder.make_folder()
        write_whole(folder.join(TENSORS), tensors, folder=self._run)
        return Begun(folder, older)

    def commit(self, begun: Begun, state: bytes) -> None:
        """Write its state, then remove all others. Raises StorageError."""
        write_whole(begun.folder.join(STATE), state, folder=self._run)
        for other in begun.older:
            _remove(other)

    def remove_all(self) -> None:
        """Remove them, the newest last, so that a kill on the way leaves that one or none. Raises StorageError."""
        for folder in self._folders():
            _remove(folder)


def _new_name(update: int, taken: set[str]) -> str:
    """A name that sorts after all of `taken` that are of `update` or of fewer updates."""
    name = f"{update:09d}"
    while name in taken:
        name += "a"
    return name


def _remove(folder: Location) -> None:
    """Remove a checkpoint, so that no moment shows half of one."""
    _remove_file(folder.join(STATE))
    remove_folder(folder)


def remove_folder(folder: Location) -> None:
    """Remove a folder with all that is in it; or a file. Raises StorageError."""
    if folder.is_local and folder.is_dir():
        folder.ask("removing it", partial(shutil.rmtree, folder.path))
        return
    with suppress(StorageNotFound):
        for file in folder.files():
            _remove_file(file)
    folder.remove_empty_folder()


def _remove_file(file: Location) -> None:
    """Remove a file that is most likely there, without asking beforehand."""
    with suppress(StorageNotFound):
        file.ask("removing it", partial(file.fs.rm_file, file.path))
