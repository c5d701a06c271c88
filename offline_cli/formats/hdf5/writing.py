"""Write HDF5 files, and our metadata in them.

HDF5 seeks while writing, so a temporary file is written first and then stored atomically. The layouts of D4RL, robomimic and
d3rlpy cannot hold spaces, environment and action scale: these are stored in one JSON attribute, which other programs ignore.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import pydantic
from pydantic.dataclasses import dataclass as model

from offline_cli.datasets.manifest import STRICT, EnvironmentRecord, Flag, MeaningsPart, SpacePart
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadData, StorageError
from offline_cli.formats.hdf5.safe import need_h5py
from offline_cli.formats.sink import ForeignSink, SinkContext, Written, file_check, named_leaves
from offline_cli.schema_files import from_json
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import StagedFile
from offline_cli.trees import Tree

OURS: Final = "offline_cli"  # the attribute with our metadata
check_hdf5: Final = file_check(b"\x89HDF", "an HDF5 file")


@model(frozen=True, kw_only=True, config=STRICT)
class _Metadata:
    """Content of the attribute."""

    observation_space: SpacePart
    action_space: SpacePart
    spaces_inferred: Flag
    action_scale: str = pydantic.Field(pattern="^(env|normalized|unknown)$")
    meanings: MeaningsPart
    environment: EnvironmentRecord | None = None


def read_metadata(attributes: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Arguments of a `SourceInfo` from the attribute; empty if it is missing. Raises BadData if it is invalid."""
    text = attributes.get(OURS)
    if not isinstance(text, str):
        return {}
    try:
        found = pydantic.TypeAdapter(_Metadata).validate_json(text)
    except pydantic.ValidationError as error:
        fix = "remove the attribute, and give --env and --action-scale instead"
        what = f"invalid metadata: {str(error.errors(include_url=False)[0]['msg'])[:200]}"
        raise BadData(what, where=f"{url} attribute {OURS}", fix=fix) from error
    one = found.environment
    spec = None if one is None else EnvironmentSpec(one.id, one.kwargs, one.wrappers)
    names = ("observation_space", "action_space", "spaces_inferred", "action_scale", "meanings")
    return {**{name: getattr(found, name) for name in names}, "environment": spec}


def environment_of(record: Any, name: str, kwargs: str) -> EnvironmentSpec | None:
    """The environment described by the keys `name` and `kwargs` of a JSON object; None if there is none."""
    try:
        said = from_json(record)
        found, arguments = said.get(name), said.get(kwargs)
    except (ValueError, TypeError, AttributeError):
        return None
    return (
        EnvironmentSpec(found, arguments if isinstance(arguments, dict) else {}) if found and isinstance(found, str) else None
    )


class Hdf5Sink(ForeignSink):
    """Base class of sinks that write one HDF5 file, atomically. Subclasses write into `root`."""

    extra = "hdf5"  # the extra that installs h5py

    def __init__(self, target: Location, context: SinkContext, name: str) -> None:
        super().__init__(target, context, name)
        self._temporary: Any = None
        self.root: Any = None  # h5py.File

    @property
    def place(self) -> Location:
        """The location of the file."""
        return self.target

    def __enter__(self) -> Self:
        need_h5py(self.place.url, self.extra)
        import h5py

        self._temporary = tempfile.TemporaryFile()
        self.root = h5py.File(self._temporary, "w")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(Exception):  # a full disk, for example: nothing was committed
            self.root.close()
        self._temporary.close()

    def put_metadata(self, group: Any, action_scale: str | None = None) -> None:
        """Write our attribute. `action_scale`: of the actions written, if it differs from the context's."""
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
        """Store the file at `place`, creating its folder if needed. Raises StorageError."""
        try:
            self.root.close()
        except (OSError, RuntimeError, ValueError) as error:
            fix = "free space in the temporary folder, or set TMPDIR"
            raise StorageError(f"writing HDF5 failed: {error}", where=tempfile.gettempdir(), fix=fix) from error
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

    def put_attributes(self, group: Any, data: Mapping[str, Any]) -> None:
        """Write custom data of an episode as attributes; values without an HDF5 type are dropped and counted."""
        self.context.tally.assume("custom-data-not-kept", int(not put_attributes(group, data)))


def put(group: Any, name: str, tree: Tree, rows: slice = slice(None), *, tuple_key: str = "{}") -> None:
    """Write the leaves of a tree as datasets, keys joined by `/`. `tuple_key`: name template for parts of a Tuple."""
    for path, leaf in named_leaves(name, tree, tuple_key).items():
        group[path] = leaf[rows]


def put_attributes(group: Any, values: Mapping[str, Any]) -> bool:
    """Write numbers, strings and lists of these as attributes. Returns whether all values were written."""
    is_whole = True
    for name, value in values.items():
        try:
            group.attrs[name] = value
        except (TypeError, ValueError, OverflowError, OSError, RuntimeError):  # no HDF5 type, or larger than 64 KiB
            is_whole = False
    return is_whole
