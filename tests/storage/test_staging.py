"""A staged file is whole under its name, or not there at all."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from offline_cli.errors import StorageError
from offline_cli.storage import staging
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.staging import StagedFile, write_whole

Paths = Callable[[Location], list[str]]


class TestStages:
    """What holds on disk and in memory alike."""

    @pytest.fixture
    def target(self, place: Location) -> Location:
        place.join("data").make_folder()
        return place.join("data", "a.parquet")

    def test_nothing_is_under_the_name_before_commit(self, place: Location, target: Location) -> None:
        file = StagedFile(target, folder=place)
        file.write(b"abc")
        assert not target.exists()
        assert place.join("data").children() == []
        file.commit()
        assert target.read_bytes() == b"abc"

    def test_a_discarded_file_leaves_nothing(self, place: Location, target: Location, paths_of: Paths) -> None:
        file = StagedFile(target, folder=place)
        file.write(b"abc")
        file.discard()
        assert paths_of(place) == []

    def test_a_file_that_is_there_stays_until_the_new_one_is_whole(self, place: Location, target: Location) -> None:
        write_whole(target, b"old", folder=place)
        file = StagedFile(target, folder=place)
        file.write(b"new")
        assert target.read_bytes() == b"old"
        file.commit()
        assert target.read_bytes() == b"new"


def test_a_local_file_waits_in_the_dataset_folder_not_in_data(tmp_path: Path) -> None:
    folder = open_location(tmp_path / "D")
    folder.join("data").make_folder()
    file = StagedFile(folder.join("data/a"), folder=folder)
    other = StagedFile(folder.join("data/a"), folder=folder)  # of a writer that wakes up: it must not write into the first's
    names = [path.name for path in (tmp_path / "D").iterdir() if path.is_file()]
    assert len(names) == 2
    assert all(re.fullmatch(r"_part-[0-9a-f]{8}-a", name) for name in names)
    other.discard()
    file.discard()


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    folder = open_location(tmp_path)
    monkeypatch.setattr(staging, "part_name", lambda name: f"_part-{name}")
    (tmp_path / "_part-a").symlink_to(full)
    with pytest.raises(StorageError) as caught:
        write_whole(folder.join("a"), b"x" * 100_000, folder=folder)
    assert caught.value.where == str(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
