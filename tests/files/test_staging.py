"""A staged file is whole under its name, or not there at all."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from offline_cli.errors import StorageError
from offline_cli.files import local_files, staging
from offline_cli.files.locations import Location, open_location
from offline_cli.files.staging import StagedFile, create_only, write_whole

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

    def test_discarding_twice_or_after_commit_does_nothing(self, place: Location, target: Location) -> None:
        file = StagedFile(target, folder=place)
        file.commit()
        file.discard()
        file.discard()
        assert target.exists()

    def test_bytes_and_sha256_are_those_of_the_file(self, place: Location, target: Location) -> None:
        file = StagedFile(target, folder=place)
        for part in (b"ab", memoryview(b"cd"), bytearray(b"")):
            file.write(part)
        file.commit()
        assert (file.bytes, file.tell(), file.sha256) == (4, 4, hashlib.sha256(b"abcd").hexdigest())

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


def test_all_of_a_large_local_file_but_its_last_bytes_is_on_its_way_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[int, int]] = []
    monkeypatch.setattr(staging, "begin_sync", lambda _, first, count: begun.append((first, count)))
    monkeypatch.setattr(staging, "AT_ONCE", 1000)
    place = open_location(tmp_path)
    file = StagedFile(place.join("a"), folder=place)
    for size in (999, 1, 3000, 10, 2000, 5):
        file.write(bytes(size))
    assert begun == [(0, 1000), (1000, 3000), (4000, 2010)]
    file.commit()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has sync_file_range")
def test_a_file_that_is_begun_to_be_written_to_disk_has_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_files._sync_range() is not None
    monkeypatch.setattr(staging, "AT_ONCE", 1 << 16)
    content = os.urandom(1 << 20)
    write_whole(open_location(tmp_path / "a"), content, folder=open_location(tmp_path))
    assert (tmp_path / "a").read_bytes() == content


def test_a_system_that_cannot_begin_it_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "_sync_range", lambda: None)
    monkeypatch.setattr(staging, "AT_ONCE", 1)
    write_whole(open_location(tmp_path / "a"), b"abc", folder=open_location(tmp_path))
    assert (tmp_path / "a").read_bytes() == b"abc"


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    folder = open_location(tmp_path)
    monkeypatch.setattr(staging, "part_name", lambda name: f"_part-{name}")
    (tmp_path / "_part-a").symlink_to(full)
    with pytest.raises(StorageError, match="no space left") as caught:
        write_whole(folder.join("a"), b"x" * 100_000, folder=folder)
    assert caught.value.where == str(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


class RemoteFile:
    """A remote file as fsspec's buffered ones behave: closing sends the rest, commit shows it, discard drops it."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.closed = False

    def write(self, data: Any) -> int:
        self.log.append("write")
        return len(data)

    def close(self) -> None:
        self.closed = True
        self.log.append("close")

    def commit(self) -> None:
        self.log.append("commit")

    def discard(self) -> None:
        self.log.append("discard")


class RemoteSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Opens RemoteFiles and remembers what is done to them."""

    protocol = "remote-for-tests"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.opened: RemoteFile | None = None

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> RemoteFile:
        self.log.append(f"open {mode} autocommit={kwargs['autocommit']}")
        self.opened = RemoteFile(self.log)
        return self.opened


def test_a_remote_file_is_opened_without_autocommit_and_committed_after_it_is_closed() -> None:
    system = RemoteSystem()
    target = Location(system, "bucket/a", "remote://bucket/a")
    write_whole(target, b"abc", folder=target)
    assert system.log == ["open wb autocommit=False", "write", "close", "commit"]


def test_a_discarded_remote_file_is_never_closed_by_us_which_would_upload_it() -> None:
    system = RemoteSystem()
    target = Location(system, "bucket/a", "remote://bucket/a")
    file = StagedFile(target, folder=target)
    file.write(b"abc")
    file.discard()
    assert system.log == ["open wb autocommit=False", "discard"]
    assert system.opened is not None
    assert system.opened.closed


def folders_fail(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Let the disk refuse to keep the names in any folder."""
    real = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(code, os.strerror(code))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.skipif(os.name != "posix", reason="folders are not synced here")
def test_a_name_that_the_disk_cannot_keep_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders_fail(monkeypatch, errno.EIO)
    with pytest.raises(StorageError):
        write_whole(open_location(tmp_path / "a.json"), b"{}", folder=open_location(tmp_path))


@pytest.mark.skipif(os.name != "posix", reason="folders are not synced here")
def test_a_folder_whose_name_the_disk_cannot_keep_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders_fail(monkeypatch, errno.EIO)
    with pytest.raises(StorageError):
        open_location(tmp_path / "new" / "folder").make_folder()


@pytest.mark.skipif(os.name != "posix", reason="folders are not synced here")
def test_a_file_that_is_made_only_where_none_is_goes_again_where_the_disk_cannot_keep_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders_fail(monkeypatch, errno.EIO)
    with pytest.raises(StorageError):
        create_only(open_location(tmp_path / "a.json"), b"{}", folder=open_location(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="folders are not synced here")
def test_where_a_folder_may_be_written_to_and_not_read_all_disks_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = os.open

    def refused(path: str, *args: Any, **options: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr(os, "sync", lambda: asked.append("sync"))
    open_location(tmp_path / "new").make_folder()
    assert asked == ["sync"]
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_disk_that_syncs_no_folders_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    folders_fail(monkeypatch, code)
    write_whole(open_location(tmp_path / "a.json"), b"{}", folder=open_location(tmp_path))
    assert (tmp_path / "a.json").read_bytes() == b"{}"
