"""Filesystems that a program hands over: `pyarrow.fs` and fsspec objects, with paths relative to what they show."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pyarrow import fs as arrow_fs

from offline_cli import convert, inspect, open_dataset, open_location, record
from offline_cli.errors import UsageError
from offline_cli.storage.locations import Location


def arrow_local(folder: Path) -> tuple[Any, str]:
    return arrow_fs.LocalFileSystem(), str(folder)


def arrow_subtree(folder: Path) -> tuple[Any, str]:
    return arrow_fs.SubTreeFileSystem(str(folder.parent), arrow_fs.LocalFileSystem()), folder.name


def arrow_of_fsspec(folder: Path) -> tuple[Any, str]:
    return arrow_fs.PyFileSystem(arrow_fs.FSSpecHandler(fsspec.filesystem("file"))), str(folder)


def fsspec_local(folder: Path) -> tuple[Any, str]:
    return fsspec.filesystem("file"), str(folder)


def fsspec_memory(folder: Path) -> tuple[Any, str]:
    return fsspec.filesystem("memory"), f"{uuid.uuid4().hex}/D"


@pytest.fixture(
    params=[arrow_local, arrow_subtree, arrow_of_fsspec, fsspec_local, fsspec_memory], ids=lambda call: call.__name__
)
def given(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Location]:
    """A folder that does not exist yet, in a filesystem of each kind."""
    make: Callable[[Path], tuple[Any, str]] = request.param
    filesystem, path = make(tmp_path / "D")
    place = open_location(path, filesystem=filesystem)
    yield place
    if place.is_memory and place.exists():
        place.fs.rm(place.path, recursive=True)


def test_a_dataset_is_recorded_read_and_converted_there(given: Location) -> None:
    told = record("CartPole-v1", given.join("one"), policy="random", episodes=3, num_env_runners=0)
    assert open_dataset(given.join("one")).manifest.counts.episodes == 3
    record("CartPole-v1", given.join("two"), policy="random", episodes=2, num_env_runners=0, seed=1)
    both = convert([given.join("one"), given.join("two")], given.join("both"))
    assert both.episodes == 5
    assert inspect([given.join("both")]).steps > told.steps


def test_a_disk_of_this_machine_is_written_by_rename_however_it_is_wrapped(given: Location) -> None:
    assert given.is_local or given.is_memory


def test_other_objects_are_refused() -> None:
    with pytest.raises(UsageError, match="dict"):
        open_location("D", filesystem={})
