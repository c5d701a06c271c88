"""HDF5 files that sinks write: made in a temporary file, because HDF5 goes back to what it wrote, then stored as a whole."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import StorageError
from offline_cli.formats.hdf5.safe import need_h5py
from offline_cli.formats.leaf_names import named_leaves
from offline_cli.formats.sink import ForeignSink, SinkContext, Written, file_check
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import StagedFile
from offline_cli.trees import Tree

__all__ = ["Hdf5Sink", "attributes_of", "check_hdf5", "put"]

LARGEST: Final = 60_000  # bytes of an attribute's array: HDF5 keeps attributes of 64 KiB
check_hdf5: Final = file_check(b"\x89HDF", "an HDF5 file")


class Hdf5Sink(ForeignSink):
    """A sink of one HDF5 file, which gets its name when it is whole. A class derived from it writes into `root`."""

    extra = "hdf5"  # the one that h5py comes with

    def __init__(self, target: Location, context: SinkContext, name: str) -> None:
        super().__init__(target, context, name)
        dtypes = self.said_by_source().get("dtypes")
        self.dtypes: Mapping[str, Any] = dtypes if isinstance(dtypes, Mapping) else {}  # of rewards and flags, by name
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

    def attributes_of(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Custom data of an episode that HDF5 keeps as attributes; other data is counted."""
        found = attributes_of(data)
        self.context.tally.assume("custom-data-not-kept", int(len(found) < len(data)))
        return found


def put(group: Any, name: str, tree: Tree, rows: slice = slice(None), *, tuple_key: str = "{}") -> None:
    """Write the leaves of a tree as datasets, `/` between keys; `tuple_key`: what a part of a Tuple is called."""
    for path, leaf in named_leaves(name, tree, tuple_key).items():
        group[path] = leaf[rows]


def attributes_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that HDF5 keeps as attributes: numbers, texts and lists of one of these."""
    found = {name: _attribute(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def _attribute(value: Any) -> Any:
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
