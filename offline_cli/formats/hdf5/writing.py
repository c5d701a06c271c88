"""HDF5 files that sinks write, and our metadata in them.

A file is made in a temporary one, because HDF5 goes back to what it wrote, then stored as a whole. D4RL's, robomimic's and
d3rlpy's layouts have no place for spaces, environment and action scale: these are one JSON attribute, which others ignore.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass as model

from offline_cli.datasets.manifest import STRICT, Environment, Flag, MeaningsPart, SpacePart
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadData, StorageError
from offline_cli.formats.hdf5.safe import need_h5py
from offline_cli.formats.leaf_names import named_leaves
from offline_cli.formats.sink import ForeignSink, SinkContext, Written, file_check
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import StagedFile
from offline_cli.trees import Tree

__all__ = ["OURS", "Hdf5Sink", "attributes_of", "check_hdf5", "put", "read_metadata"]

OURS: Final = "offline_cli"  # the attribute with our metadata
LARGEST: Final = 60_000  # bytes of an attribute's array: HDF5 keeps attributes of 64 KiB
check_hdf5: Final = file_check(b"\x89HDF", "an HDF5 file")


@model(frozen=True, kw_only=True, config=STRICT)
class _Metadata:
    """The attribute."""

    observation_space: SpacePart
    action_space: SpacePart
    spaces_inferred: Flag
    action_scale: str = pydantic.Field(pattern="^(env|normalized|unknown)$")
    meanings: MeaningsPart
    environment: Environment | None = None


def read_metadata(attributes: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Arguments of a `SourceInfo` from the attribute; empty without it. Raises BadData for one of another form."""
    text = attributes.get(OURS)
    if not isinstance(text, str):
        return {}
    try:
        found = pydantic.TypeAdapter(_Metadata).validate_json(text)
    except pydantic.ValidationError as error:
        fix = "remove the attribute, and say what you know: --env, --action-scale"
        what = f"not what this program writes: {str(error.errors(include_url=False)[0]['msg'])[:200]}"
        raise BadData(what, where=f"{url} attribute {OURS}", fix=fix) from error
    known = {name: getattr(found, name) for name in ("observation_space", "action_space", "spaces_inferred", "action_scale")}
    environment = found.environment
    spec = None if environment is None else EnvironmentSpec(environment.id, environment.kwargs, environment.wrappers)
    return {**known, "meanings": found.meanings, "environment": spec}


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

    def put_metadata(self, group: Any, action_scale: str | None = None) -> None:
        """Write our attribute; `action_scale`: of the actions as they are written, where that is another one."""
        context = self.context
        found = _Metadata(
            observation_space=context.observation_space,
            action_space=context.action_space,
            spaces_inferred=context.spaces_inferred,
            action_scale=action_scale or context.action_scale,
            meanings=context.meanings,
            environment=context.environment,
        )
        group.attrs[OURS] = pydantic.TypeAdapter(_Metadata).dump_json(found).decode()

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
        if array.nbytes <= LARGEST and array.dtype.kind in "biuf":
            return array
        return list(value) if array.nbytes <= LARGEST and all(isinstance(one, str) for one in value) else None
    return None
