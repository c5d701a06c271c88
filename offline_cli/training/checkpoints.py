"""The checkpoints of a run, of which the newest is kept; refuses to take a half-written one for a checkpoint.

    RUN/checkpoints/000000500/tensors.safetensors    weights, optimizer and generators
    RUN/checkpoints/000000500/state.json             counters; written last: a checkpoint with it is whole

No folder is renamed, which object stores cannot do: both files are put under their names whole. The checkpoint before goes only
then, its state.json first. So a kill at any moment leaves the one before or the one after, and so does a power cut: the names
of the new one are on the disk before the old one goes.

A folder of any other name, a copy that somebody made, is no checkpoint and stays. Of a checkpoint the two files are removed,
and then the folder if nothing else is in it; links are left as they are.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from offline_cli.errors import StorageNotFound
from offline_cli.policies.run_checkpoints import CHECKPOINTS, STATE, TENSORS, checkpoint_folders, newest_checkpoint
from offline_cli.storage.locations import Location
from offline_cli.storage.moving import keep_names
from offline_cli.storage.own_files import is_link
from offline_cli.storage.staging import write_whole

__all__ = ["Begun", "Checkpoints"]


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
        return newest_checkpoint(self._run)

    def begin(self, update: int, tensors: bytes) -> Begun:
        """Write all of a checkpoint but its state. Raises StorageError."""
        older = checkpoint_folders(self._run)
        folder = self._place.join(_new_name(update, {other.name for other in self._place.children()}))
        folder.make_folder()
        write_whole(folder.join(TENSORS), tensors, folder=self._run)
        return Begun(folder, older)

    def commit(self, begun: Begun, state: bytes) -> None:
        """Write its state, then remove all others. Raises StorageError."""
        write_whole(begun.folder.join(STATE), state, folder=self._run)
        keep_names(self._place, self._run)
        for other in begun.older:
            _remove(other, STATE)
            _remove(other, TENSORS)
            other.remove_empty_folder()
        if begun.older:
            keep_names(self._place)

    def remove_all(self) -> None:
        """Remove them, the newest last, so that a kill on the way leaves that one or none, and a power cut none without its
        tensors. Raises StorageError.
        """
        gone = checkpoint_folders(self._run)
        for name in (STATE, TENSORS):
            for folder in gone:
                _remove(folder, name)
            keep_names(*gone)
        for folder in gone:
            folder.remove_empty_folder()
        if gone:
            keep_names(self._place)


def _new_name(update: int, taken: set[str]) -> str:
    """A name that sorts after all of `taken` that are of `update` or of fewer updates."""
    name = f"{update:09d}"
    while name in taken:
        name += "a"
    return name


def _remove(folder: Location, name: str) -> None:
    """Remove a file that is most likely there, without asking beforehand."""
    file = folder.join(name)
    if not is_link(file):
        with suppress(StorageNotFound):
            file.ask("removing it", partial(file.fs.rm_file, file.path))
