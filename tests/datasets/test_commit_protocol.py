"""What stands on storage at every moment of a writing, and after every way it can end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from offline_cli.datasets.dataset import Dataset, holds_dataset
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import OutputExists, Uncommitted
from offline_cli.storage.locations import Location, open_location
from offline_cli.tally import Reject

Make = Callable[..., EpisodeBatch]
Write = Callable[..., Manifest]
WriterFor = Callable[..., DatasetWriter]
Paths = Callable[[Location], list[str]]


class Crash(Exception):
    """Stands for anything that ends a writing."""


def put(location: Location, data: bytes = b"theirs") -> None:
    location.fs.makedirs(location.path.rpartition("/")[0], exist_ok=True)
    location.fs.pipe_file(location.path, data)


def snapshot(location: Location) -> dict[str, bytes]:
    return {file.path: file.read_bytes() for file in location.files()} if location.exists() else {}


class TestOrder:
    """Note, shards, manifest, end of the old, end of the note."""

    def test_while_writing_there_is_a_note_and_complete_shards_only(
        self, place: Location, format: str, make_batch: Make, writer_for: WriterFor, paths_of: Paths
    ) -> None:
        with writer_for(place, format=format, max_rows_per_file=1) as writer:
            assert paths_of(place) == ["_writing.json"]
            for number in range(3):
                writer.write(make_batch((1, 1), first_id=2 * number))
            complete = [path for path in paths_of(place) if path.startswith("data/")]
            assert len(complete) == 5
            assert "manifest.json" not in paths_of(place)
            writer.commit()
        assert [path for path in paths_of(place) if not path.startswith("data/")] == ["README.md", "manifest.json"]

    def test_a_dataset_being_written_is_uncommitted_for_readers(self, place: Location, writer_for: WriterFor) -> None:
        with writer_for(place) as writer:
            assert holds_dataset(place)
            with pytest.raises(Uncommitted) as caught:
                Dataset.open(place)
            writer.commit()
        assert caught.value.exit_code == 3
        assert caught.value.details["holder"]["pid"] == os.getpid()
        assert caught.value.details["holder"]["host"] == socket.gethostname()
        assert "wait" in caught.value.fix
        assert "--resume" not in caught.value.fix


class TestEarlyEnds:
    """Leaving without a commit."""

    def test_a_failure_before_the_first_complete_shard_leaves_no_trace(
        self, place: Location, format: str, make_batch: Make, writer_for: WriterFor
    ) -> None:
        deep = place.join("new", "D")
        with pytest.raises(Crash), writer_for(deep, format=format) as writer:
            writer.write(make_batch())
            writer.quarantine([Reject("a", "bad-data", "x", b"")])
            raise Crash
        assert not place.exists()


class TestExistingTargets:
    """Nothing existing is touched unasked."""

    @pytest.mark.parametrize("name", ["theirs.txt", "data/theirs.parquet", "sub/folder/theirs"])
    def test_a_folder_with_foreign_files_is_not_written_into(
        self, place: Location, name: str, make_batch: Make, write_dataset: Write
    ) -> None:
        put(place.join(name))
        before = snapshot(place)
        for resume in (False, True):
            with pytest.raises(OutputExists):
                write_dataset(place, make_batch(), resume=resume)
        assert snapshot(place) == before

    def test_an_unfinished_dataset_asks_for_resume_or_overwrite(
        self, place: Location, make_batch: Make, writer_for: WriterFor, write_dataset: Write
    ) -> None:
        with pytest.raises(Crash), writer_for(place, max_rows_per_file=1) as writer:
            writer.write(make_batch((1, 1, 1)))
            raise Crash
        with pytest.raises(OutputExists) as caught:
            write_dataset(place, make_batch())
        assert "--resume" in caught.value.fix
        assert "--overwrite" in caught.value.fix


class TestOverwrite:
    """The old dataset goes only when the new one is whole."""

    def test_an_early_failure_gives_the_old_dataset_back(
        self, place: Location, make_batch: Make, write_dataset: Write, writer_for: WriterFor
    ) -> None:
        write_dataset(place, make_batch())
        before = snapshot(place)
        with pytest.raises(Crash), writer_for(place, overwrite=True) as writer:
            writer.write(make_batch(seed=1))
            raise Crash
        assert snapshot(place) == before
        assert Dataset.open(place).manifest.counts.episodes == 3


def test_a_half_written_local_file_of_a_killed_writer_is_removed_by_the_next(
    tmp_path: Path, make_batch: Make, writer_for: WriterFor, paths_of: Paths
) -> None:
    folder = open_location(tmp_path / "D")
    with pytest.raises(Crash), writer_for(folder, max_rows_per_file=1) as writer:
        writer.write(make_batch((1, 1)))
        raise Crash
    put(folder.join("_part-0123abcd-shard-01234567-000001.parquet"), b"PAR1half")
    with writer_for(folder, max_rows_per_file=1, resume=True) as writer:
        assert not [path for path in paths_of(folder) if path.startswith("_part-")]
        writer.commit()


@pytest.mark.skipif(os.name != "posix", reason="folders are not synced here")
@pytest.mark.parametrize("how", ["new", "overwrite"])
def test_everything_is_on_the_disk_before_the_manifest_and_the_manifest_before_anything_goes(
    how: str, tmp_path: Path, make_batch: Make, writer_for: WriterFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, options = open_location(tmp_path / "D"), {"max_rows_per_file": 1, "overwrite": how == "overwrite"}
    if how == "overwrite":
        with writer_for(folder, max_rows_per_file=1) as writer:
            writer.write(make_batch((1, 1), seed=1, first_id=10))
            writer.commit()
    old = {str(path) for path in (tmp_path / "D").glob("data/*")}
    synced, unsynced, removed = set[int](), set[str](), list[str]()  # inodes; folders with names that may be lost
    real_sync, real_replace, real_remove = os.fsync, os.replace, os.remove

    def fsync(handle: int) -> None:
        real_sync(handle)
        synced.add(os.fstat(handle).st_ino)
        unsynced.difference_update([name for name in unsynced if os.stat(name).st_ino == os.fstat(handle).st_ino])

    def replace(source: str, target: str) -> None:
        assert os.stat(source).st_ino in synced, f"{target} has a name, but its bytes may be lost"
        assert not (target.endswith("manifest.json") and unsynced), f"the manifest is written before {unsynced} are durable"
        real_replace(source, target)
        unsynced.add(os.path.dirname(target))

    def remove(path: str) -> None:
        assert not (path in old and unsynced), f"{path} goes before the new manifest is durable"
        real_remove(path)
        removed.append(path)

    for name, call in (("fsync", fsync), ("replace", replace), ("remove", remove), ("unlink", remove)):
        monkeypatch.setattr(os, name, call)
    with writer_for(folder, **options) as writer:
        writer.write(make_batch((1, 1, 1)))
        writer.commit()
    assert not unsynced
    assert old <= set(removed)
