"""HDF5 files that sinks write: made in a temporary file, because HDF5 goes back to what it wrote, then stored as a whole.

What a sink has in common with the others is here too: `EpisodeSink` counts, keeps rows that were set aside out, and names what
a format has no place for.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, OutputExists, StorageError
from offline_cli.formats.hdf5.safe import need_h5py
from offline_cli.formats.sink import SinkContext, Written, refuse_existing
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import StagedFile
from offline_cli.tally import Reject, Tally

__all__ = ["EpisodeSink", "Hdf5Output", "attribute_of", "check_file", "checked_key", "count_left_out", "said_by_source"]

COPIED: Final = 4 << 20  # bytes at a time
LARGEST: Final = 60_000  # bytes of an attribute's array: HDF5 keeps attributes of 64 KiB
MAGIC: Final = b"\x89HDF"


class Hdf5Output:
    """One file at `target`, which gets its name when it is whole; a context manager. Raises StorageError, MissingPackage."""

    def __init__(self, target: Location, *, extra: str = "hdf5") -> None:
        """`extra`: the one that h5py comes with."""
        need_h5py(target.url, extra)
        self._target, self._folder = target, target.parent() or target
        self._temporary: Any = None
        self.root: Any = None  # h5py.File
        self.bytes = 0  # once it is committed

    def __enter__(self) -> Self:
        import h5py

        self._temporary = tempfile.TemporaryFile()
        self.root = h5py.File(self._temporary, "w")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.root is not None:
            with suppress(Exception):  # of a full disk: what is closed here was not committed
                self.root.close()
            self.root = None
        self._temporary.close()

    def commit(self) -> None:
        """Store the file under its name, in a folder that is made if it has to be."""
        try:
            self.root.close()
        except (OSError, RuntimeError, ValueError) as error:
            fix = "make room where temporary files are, or set TMPDIR"
            raise StorageError(f"writing HDF5 failed: {error}", where=tempfile.gettempdir(), fix=fix) from error
        self.root = None
        self._temporary.seek(0)
        self._folder.make_folder()
        staged = StagedFile(self._target, folder=self._folder)
        try:
            shutil.copyfileobj(self._temporary, staged, COPIED)
            staged.commit()
        except BaseException:
            staged.discard()
            raise
        self.bytes = staged.bytes


class EpisodeSink:
    """What sinks of foreign formats share: their file, counts and what is refused. A class derived from it writes.

    `extra`: the one that h5py comes with.
    """

    ids_written: frozenset[str] = frozenset()  # nothing is resumed

    extra = "hdf5"

    def __init__(self, target: Location, context: SinkContext, name: str) -> None:
        self.target, self.context, self.name = target, context, name
        self.episodes = self.steps = 0
        self._open = ExitStack()
        self._file: Hdf5Output

    @property
    def place(self) -> Location:
        """Where the file goes."""
        return self.target

    def __enter__(self) -> Self:
        self._file = self._open.enter_context(Hdf5Output(self.place, extra=self.extra))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()

    def count(self, batch: EpisodeBatch) -> None:
        """Count what was written."""
        self.episodes, self.steps = self.episodes + len(batch), self.steps + batch.num_steps

    def rehearse(self, batch: EpisodeBatch) -> None:
        """See `Sink`."""

    def quarantine(self, rejects: list[Reject]) -> None:
        """See `Sink`. Raises BadData: these formats have no place for rows."""
        if rejects:
            what = f"rows were set aside, and {self.name} has no place for them"
            raise BadData(what, where=f"--to {self.name}", fix="--on-error skip, or --to episodes")

    def written(self, files: int, nbytes: int) -> Written:
        """What `commit` gives."""
        return Written(self.episodes, self.steps, files, nbytes)


def check_file(target: Location, *, overwrite: bool, resume: bool) -> None:
    """Raise OutputExists where something is at `target`, unless it is an HDF5 file that is to be replaced."""
    if overwrite and target.exists():
        if target.is_dir() or target.start(4)[0] != MAGIC:
            raise OutputExists("this is no HDF5 file", where=target.url, fix="give another --out, or remove it yourself")
        return
    refuse_existing(target, overwrite=False, resume=False)


def said_by_source(context: SinkContext, name: str) -> Mapping[str, Any]:
    """What a source of the same format said of the whole (`SourceInfo.declared`); empty without one."""
    declared = context.provenance.get("declared", ())
    return next((one for one in declared if isinstance(one, Mapping) and one.get("format") == name), {})


def count_left_out(
    batch: EpisodeBatch, tally: Tally, *, infos: bool = True, data: bool = True, extra: bool = False, finals: bool = True
) -> None:
    """Count, and name, what a format has no place for, of those that are said; `finals`: it holds last observations."""
    if batch.clock is not None:
        tally.assume("clock-not-kept", int((~np.isnan(batch.clock)).any(axis=1).sum()))
    if batch.multi_agent_ids is not None:
        tally.assume("multi-agent-id-not-kept", sum(name is not None for name in batch.multi_agent_ids))
    if infos and batch.infos is not None:
        tally.drop_column("infos", "the format has no place for infos")
    if data and batch.custom_data is not None:
        needless = () if finals else (Columns.FINAL_OBS_ASSUMED,)
        tally.assume("custom-data-not-kept", sum(not set(one).issubset(needless) for one in batch.custom_data))
    for name in batch.extra if extra else ():
        tally.drop_column(name, "the format has no place for extra model outputs")


def checked_key(key: str, where: str) -> str:
    """A key of a Dict that can name a group. Raises BadData."""
    if "/" in key or key in ("", "."):
        fix = "rename the key in the recordings, or choose another --to"
        raise BadData(f"a key that is no name of an HDF5 group: {key!r}", where=where, fix=fix)
    return key


def attribute_of(value: Any) -> Any:
    """A value as HDF5 keeps it in an attribute, numbers, texts and lists of one of these; None where it does not."""
    if isinstance(value, (bool, int, float, str, np.generic)):
        return None if isinstance(value, int) and not -(2**63) <= value < 2**64 else value
    if isinstance(value, (list, tuple, np.ndarray)) and len(value):
        try:
            array: NDArray[Any] = np.asarray(value)
        except ValueError:
            return None
        if array.nbytes > LARGEST:
            return None
        return array if array.dtype.kind in "biuf" else list(value) if all(isinstance(one, str) for one in value) else None
    return None
