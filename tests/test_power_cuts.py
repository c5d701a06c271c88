"""What the images of a power cut hold: less than was written, unless it was synced, and never what nobody wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from power_cuts import PowerCut, power_cuts, recorded
from recorded_disk import Log

pytestmark = pytest.mark.skipif(os.name != "posix", reason="folders are not synced here")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder with a file and an empty folder in it, all of it kept."""
    place = tmp_path / "disk"
    (place / "sub").mkdir(parents=True)
    (place / "old").write_bytes(b"old!")
    return place


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def at_the_end(log: Log) -> list[PowerCut]:
    return [cut for cut in power_cuts(log) if cut.is_after_the_end]


def test_bytes_that_are_not_synced_are_lost_or_cut_or_zeros_or_there(disk: Path) -> None:
    def write() -> None:
        (disk / "new").write_bytes(b"12345678")
        sync(disk)

    assert {cut.tree["new"] for cut in at_the_end(recorded(disk, write))} == {b"", b"1234", bytes(8), b"12345678"}


def test_what_is_appended_is_lost_after_what_was_synced(disk: Path) -> None:
    def append() -> None:
        with (disk / "old").open("ab") as file:
            file.write(b"new!")

    found = {cut.tree["old"] for cut in at_the_end(recorded(disk, append))}
    assert found == {b"old!", b"old!ne", b"old!" + bytes(4), b"old!new!"}


def test_a_name_that_is_not_synced_is_there_or_not_and_so_is_one_that_was_removed(disk: Path) -> None:
    def exchange() -> None:
        (disk / "new").write_bytes(b"")
        (disk / "old").unlink()

    assert {"new" in cut.tree for cut in at_the_end(recorded(disk, exchange))} == {False, True}
    found = {frozenset(cut.tree) - {"sub"} for cut in at_the_end(recorded(disk, lambda: (disk / "new").rename(disk / "old")))}
    assert found == {frozenset({"new"}), frozenset({"old"})}


def test_removals_may_overtake_new_names(disk: Path) -> None:
    def exchange() -> None:
        (disk / "new").write_bytes(b"")
        (disk / "old").unlink()

    assert {"sub"} in [set(cut.tree) for cut in at_the_end(recorded(disk, exchange))]


def test_a_file_that_is_moved_between_folders_has_a_name_in_every_image(disk: Path) -> None:
    log = recorded(disk, lambda: os.rename(disk / "old", disk / "sub" / "old"))
    both = {"sub", "old", "sub/old"}
    assert {frozenset(cut.tree) for cut in power_cuts(log)} == {
        frozenset(both - {"sub/old"}),
        frozenset(both - {"old"}),
        frozenset(both),
    }


def test_a_file_that_is_moved_has_no_name_where_only_the_folder_that_it_left_is_synced(disk: Path) -> None:
    def move() -> None:
        os.rename(disk / "old", disk / "sub" / "old")
        sync(disk)

    assert {frozenset(cut.tree) for cut in at_the_end(recorded(disk, move))} == {
        frozenset({"sub"}),
        frozenset({"sub", "sub/old"}),
    }


def test_what_is_in_a_folder_is_there_where_the_folder_is(disk: Path) -> None:
    def make() -> None:
        (disk / "made").mkdir()
        (disk / "made" / "file").write_bytes(b"1")
        sync(disk / "made" / "file")
        sync(disk / "made")

    found = [set(cut.tree) - {"old", "sub"} for cut in at_the_end(recorded(disk, make))]
    assert sorted(found, key=len) == [set(), {"made", "made/file"}]


def test_what_is_synced_is_in_the_only_image(disk: Path) -> None:
    def write() -> None:
        (disk / "part").write_bytes(b"1")
        sync(disk / "part")
        os.replace(disk / "part", disk / "old")
        sync(disk)

    assert [cut.tree for cut in at_the_end(recorded(disk, write))] == [{"old": b"1", "sub": None}]


def test_an_image_is_put_into_a_folder(disk: Path, tmp_path: Path) -> None:
    (cut,) = at_the_end(recorded(disk, lambda: None))
    image = cut.put(tmp_path / "image")
    assert sorted(path.name for path in image.iterdir()) == ["old", "sub"]
    assert (image / "old").read_bytes() == b"old!"


def test_what_goes_past_the_recording_is_found_out(disk: Path) -> None:
    def write() -> None:
        with pa.OSFile(str(disk / "new"), "wb") as file:
            file.write(b"1")

    with pytest.raises(AssertionError):
        recorded(disk, write)
