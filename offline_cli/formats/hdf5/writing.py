"""HDF5 files that sinks write: made in a temporary file, because HDF5 goes back to what it wrote, then stored as a whole."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadData, StorageError
from offline_cli.formats.hdf5.safe import need_h5py
from offline_cli.formats.sink import ForeignSink, SinkContext, Written, file_check
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import StagedFile
from offline_cli.trees import Tree

__all__ = ["Hdf5Sink", "attribute_of", "check_hdf5", "put"]

LARGEST: Final = 60_000  # bytes of an attribute's array: HDF5 keeps attributes of 64 KiB
check_hdf5: Final = file_check(b"\x89HDF", "an HDF5 file")


class Hdf5Sink(ForeignSink):
    """A sink of one HDF5 file, which gets its name when it is whole. A class derived from it writes into `root`."""

    extra = "hdf5"  # the one that h5py comes with

    def __init__(self, target: Location, context: SinkContext, name: str) -> None:
        super().__init__(target, context, name)
        self._temporary: Any = None
        self.root: Any = None  # h5py.File

    @property
    def place(self) -> Location:
        """Where the file goes."""
        return self.target

    def __enter__(self) -> Self:
        need_h5py(self.place.url, self.extra)
        import h5py

        self._temporary = tempfile.TemporaryFile()
        self.root = h5py.File(self._temporary, "w")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.root is not None:
            with suppress(Exception):  # of a full disk: what is closed here was not committed
                self.root.close()
            self.root = None
        if self._temporary is not None:
            self._temporary.close()

    def store(self) -> Written:
        """Store the file under its name, in a folder that is made if it has to be. Raises StorageError."""
        try:
            self.root.close()
        except (OSError, RuntimeError, ValueError) as error:
            fix = "make room where temporary files are, or set TMPDIR"
            raise StorageError(f"writing HDF5 failed: {error}", where=tempfile.gettempdir(), fix=fix) from error
        self.root = None
        self._temporary.seek(0)
        folder = self.place.parent() or self.place
        folder.make_folder()
        staged = StagedFile(self.place, folder=folder)
        try:
            shutil.copyfileobj(self._temporary, staged, 4 << 20)
            staged.commit()
        except BaseException:
            staged.discard()
            raise
        return Written(self.episodes, self.steps, 1, staged.bytes)


def put(group: Any, name: str, tree: Tree, rows: slice = slice(None), *, tuple_key: str = "{}") -> None:
    """Write the leaves of a tree as datasets, `/` between keys; a part of a Tuple is called `tuple_key` with its number."""
    if isinstance(tree, (dict, tuple)):
        parts = tree if isinstance(tree, dict) else {tuple_key.format(at): part for at, part in enumerate(tree)}
        for key, part in parts.items():
            put(group, f"{name}/{checked_key(str(key), group.name)}", part, rows, tuple_key=tuple_key)
    else:
        group[name] = tree[rows]


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
