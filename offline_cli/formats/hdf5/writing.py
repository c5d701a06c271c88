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
    """The attribute."""

    observation_space: SpacePart
    action_space: SpacePart
    spaces_inferred: Flag
    action_scale: str = pydantic.Field(pattern="^(env|normalized|unknown)$")
    meanings: MeaningsPart
    environment: EnvironmentRecord | None = None


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
    one = found.environment
    spec = None if one is None else EnvironmentSpec(one.id, one.kwargs, one.wrappers)
    names = ("observation_space", "action_space", "spaces_inferred", "action_scale", "meanings")
    return {**{name: getattr(found, name) for name in names}, "environment": spec}


def environment_of(record: Any, name: str, kwargs: str) -> EnvironmentSpec | None:
    """The environment of a JSON object in a file of others, whose keys `name` and `kwargs` say it; None where it says none."""
    try:
        said = from_json(record)
        found, arguments = said.get(name), said.get(kwargs)
    except (ValueError, TypeError, AttributeError):
        return None
    return (
        EnvironmentSpec(found, arguments if isinstance(arguments, dict) else {}) if found and isinstance(found, str) else None
    )


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
        with suppress(Exception):  # of a full disk: what is closed here was not committed
            self.root.close()
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
        """Write custom data of an episode as attributes; what HDF5 has no type for is left out and counted."""
        self.context.tally.assume("custom-data-not-kept", int(not put_attributes(group, data)))


def put(group: Any, name: str, tree: Tree, rows: slice = slice(None), *, tuple_key: str = "{}") -> None:
    """Write the leaves of a tree as datasets, `/` between keys; `tuple_key`: what a part of a Tuple is called."""
    for path, leaf in named_leaves(name, tree, tuple_key).items():
        group[path] = leaf[rows]


def put_attributes(group: Any, values: Mapping[str, Any]) -> bool:
    """Write numbers, texts and lists of one of these as attributes; whether these were all."""
    is_whole = True
    for name, value in values.items():
        try:
            group.attrs[name] = value
        except (TypeError, ValueError, OverflowError, OSError, RuntimeError):  # no type of HDF5's, or more than 64 KiB
            is_whole = False
    return is_whole
