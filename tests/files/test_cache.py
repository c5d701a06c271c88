"""The cache of remote files: nothing is fetched twice, and nothing but what the store has now is ever given."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_bucket import FakeBucket

from offline_cli.errors import StorageError, UsageError
from offline_cli.files import cache
from offline_cli.files.cache import BLOCK, RemoteCache, cache_at
from offline_cli.files.locations import Location, open_location
from offline_cli.parquet.trust import fingerprint

DATA = np.random.default_rng(0).bytes(20 * BLOCK + 12345)
OTHER = bytes(reversed(DATA))


@pytest.fixture
def bucket() -> FakeBucket:
    return FakeBucket.holding({"bucket/a": DATA, "bucket/small": b"few bytes"})


@pytest.fixture
def place(bucket: FakeBucket, tmp_path: Path) -> Location:
    """A file of 20 blocks and a bit, read through a new cache."""
    return at(bucket, tmp_path)


def at(bucket: FakeBucket, tmp_path: Path, path: str = "bucket/a", size: int = 1 << 30) -> Location:
    """A file read through a cache that no other test, and no earlier call with another size, has opened."""
    place = open_location(path, filesystem=bucket)
    return Location(place.fs, place.path, place.url, place.patience, RemoteCache(tmp_path / "cache", size))


def whole(place: Location) -> bytes:
    with place.open() as file:
        return file.read()


def blocks(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "cache" / "blocks").rglob("*") if path.is_file())


def unfinished(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache" / "unfinished").iterdir())


class TestKeeping:
    def test_what_was_read_is_not_fetched_again(self, place: Location, bucket: FakeBucket) -> None:
        assert whole(place) == DATA
        assert bucket.bytes_given == len(DATA)
        bucket.gets.clear()
        assert whole(place) == DATA
        assert bucket.gets == []

    def test_another_process_finds_it(self, place: Location, bucket: FakeBucket, tmp_path: Path) -> None:
        whole(place)
        bucket.gets.clear()
        assert whole(at(bucket, tmp_path)) == DATA
        assert bucket.gets == []

    def test_only_the_blocks_that_are_missing_are_fetched(self, place: Location, bucket: FakeBucket, tmp_path: Path) -> None:
        with place.open() as file:
            file.seek(5 * BLOCK + 7)
            assert file.read(100) == DATA[5 * BLOCK + 7 :][:100]
        assert bucket.gets == [("bucket/a", 5 * BLOCK, 6 * BLOCK)]
        assert len(blocks(tmp_path)) == 1
        assert whole(place) == DATA
        assert bucket.bytes_given == len(DATA)

    def test_a_small_file_and_an_empty_one_are_read_as_well(self, bucket: FakeBucket, tmp_path: Path) -> None:
        bucket.files["bucket/empty"] = b""
        for _ in range(2):
            assert whole(at(bucket, tmp_path, "bucket/small")) == b"few bytes"
            assert whole(at(bucket, tmp_path, "bucket/empty")) == b""
        assert bucket.bytes_given == len(b"few bytes")

    def test_no_name_in_the_folder_tells_an_address(self, place: Location, tmp_path: Path) -> None:
        whole(place)
        names = " ".join(path.relative_to(tmp_path).as_posix() for path in (tmp_path / "cache").rglob("*"))
        assert "bucket" not in names

    def test_what_commands_steer_by_is_read_from_its_storage(self, place: Location, bucket: FakeBucket, tmp_path: Path) -> None:
        assert place.read_bytes() == DATA
        fingerprint(place)
        assert bucket.bytes_given == 2 * len(DATA)
        assert blocks(tmp_path) == []


class TestVersions:
    def test_a_file_that_changed_is_fetched_anew(self, place: Location, bucket: FakeBucket) -> None:
        whole(place)
        bucket.files["bucket/a"] = OTHER
        assert whole(place) == OTHER
        bucket.files["bucket/a"] = DATA
        bucket.gets.clear()
        assert whole(place) == DATA
        assert bucket.gets == []

    def test_a_file_that_changes_while_it_is_read_is_an_error_and_not_kept(
        self, place: Location, bucket: FakeBucket, tmp_path: Path
    ) -> None:
        file = place.open()
        file.read(BLOCK)
        bucket.files["bucket/a"] = OTHER
        with pytest.raises(StorageError, match="changed while it was read") as caught:
            file.close()
        assert caught.value.where == "s3://bucket/a"
        assert blocks(tmp_path) == unfinished(tmp_path) == []

    def test_files_of_one_name_at_two_endpoints_are_two(self, tmp_path: Path) -> None:
        one, other = (
            FakeBucket.holding({"b/a": b"1"}, endpoint="http://one"),
            FakeBucket.holding({"b/a": b"1"}, endpoint="http://other"),
        )
        for bucket in (one, other):
            assert whole(at(bucket, tmp_path, "b/a")) == b"1"
            assert len(bucket.gets) == 1

    def test_a_store_without_etags_is_read_and_not_kept(self, tmp_path: Path) -> None:
        bucket = FakeBucket.holding({"b/a": DATA}, tags=False)
        assert whole(at(bucket, tmp_path, "b/a")) == DATA
        assert blocks(tmp_path) == []


class TestDamage:
    @pytest.mark.parametrize("damage", ["a bit", "cut", "empty", "longer", "a folder's worth of nothing"])
    def test_a_damaged_block_is_noticed_and_fetched_anew(
        self, place: Location, bucket: FakeBucket, tmp_path: Path, damage: str
    ) -> None:
        whole(place)
        victim = blocks(tmp_path)[3]
        data = bytearray(victim.read_bytes())
        data[1000] ^= 4
        kinds = {"a bit": bytes(data), "cut": data[:1000], "empty": b"", "longer": data + b"x"}
        victim.write_bytes(kinds.get(damage, bytes(len(data))))
        bucket.gets.clear()
        assert whole(place) == DATA
        assert [end - start <= BLOCK for _, start, end in bucket.gets] == [True]
        bucket.gets.clear()
        assert whole(place) == DATA
        assert bucket.gets == []

    def test_a_download_that_is_cut_keeps_nothing_and_names_the_file(
        self, place: Location, bucket: FakeBucket, tmp_path: Path
    ) -> None:
        def cut(path: str, start: int, end: int) -> None:
            if start >= 4 * BLOCK:
                raise ConnectionResetError

        bucket.fails = cut
        with pytest.raises(StorageError) as caught, place.open() as file:
            file.read()
        assert caught.value.where == "s3://bucket/a"
        assert blocks(tmp_path) == unfinished(tmp_path) == []

    def test_fewer_bytes_than_asked_for_are_an_error(self, place: Location, bucket: FakeBucket, tmp_path: Path) -> None:
        file = place.open()
        bucket.files["bucket/a"] = DATA[: BLOCK // 2]
        with pytest.raises(StorageError, match="were asked for"), file:
            file.read()
        assert blocks(tmp_path) == []

    def test_an_early_end_keeps_what_was_read(self, place: Location, bucket: FakeBucket, tmp_path: Path) -> None:
        def some() -> Any:
            with place.open() as file:
                yield file.read(10)

        reading = some()
        next(reading)
        reading.close()
        assert len(blocks(tmp_path)) == 1


class TestRoom:
    def test_the_least_recently_used_goes_first(self, tmp_path: Path) -> None:
        files = {f"b/{name}": np.random.default_rng(i).bytes(4 * BLOCK) for i, name in enumerate("abc")}
        bucket = FakeBucket.holding(files)

        def read(name: str) -> None:
            assert whole(at(bucket, tmp_path, f"b/{name}", size=10 * BLOCK)) == files[f"b/{name}"]

        read("a")
        for path in blocks(tmp_path):
            os.utime(path, (0, 1000))
        read("b")
        for path in blocks(tmp_path):
            os.utime(path, (0, 2000 if path.stat().st_mtime > 5000 else 1000))
        read("a")  # used again
        read("c")
        bucket.gets.clear()
        read("a")
        assert bucket.gets == []
        read("b")
        assert bucket.gets != []

    def test_the_bound_holds(self, tmp_path: Path) -> None:
        bucket = FakeBucket.holding({f"b/{i}": np.random.default_rng(i).bytes(3 * BLOCK) for i in range(8)})
        for i in range(8):
            whole(at(bucket, tmp_path, f"b/{i}", size=10 * BLOCK))
            assert sum(path.stat().st_size for path in blocks(tmp_path)) <= 10 * BLOCK
        assert len(blocks(tmp_path)) >= 6

    def test_a_block_that_goes_while_its_file_is_read_is_fetched_anew(
        self, place: Location, bucket: FakeBucket, tmp_path: Path
    ) -> None:
        whole(place)
        with place.open() as file:
            head = file.read(BLOCK)
            for path in blocks(tmp_path):
                path.unlink()
            assert head + file.read() == DATA

    def test_what_a_dead_process_left_is_removed(self, place: Location, tmp_path: Path) -> None:
        left = tmp_path / "cache" / "unfinished" / "1-2-3"
        left.write_bytes(b"half a block")
        os.utime(left, (0, time.time() - 7200))
        fresh = tmp_path / "cache" / "unfinished" / "4-5-6"
        fresh.write_bytes(b"somebody's")
        whole(place)
        assert unfinished(tmp_path) == [fresh]


class TestDegrading:
    def test_what_is_no_block_stays_however_little_room_there_is(self, bucket: FakeBucket, tmp_path: Path) -> None:
        root = tmp_path / "cache" / "blocks"
        own = [
            root / "notes.txt",
            root / "2024" / "summer" / "1",
            root / "ab" / ("c" * 62) / "7",
            root / "ab" / ("c" * 62) / "a",
        ]
        own += [tmp_path / "cache" / "unfinished" / "letter", tmp_path / "elsewhere" / ("d" * 62) / "1"]
        for number, file in enumerate(own):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"mine" * 100 + (b"ocb1\0\0\0\0" if number == len(own) - 1 else b""))
            os.utime(file, (0, 0))
        (root / "dd").symlink_to(tmp_path / "elsewhere")
        whole(at(bucket, tmp_path, size=4 * BLOCK))
        assert [file for file in own if not file.read_bytes().startswith(b"mine")] == []

    def test_a_full_disk_is_a_warning_and_reading_goes_on(
        self, place: Location, bucket: FakeBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
    ) -> None:
        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(cache, "_write_all", full)
        with caplog.at_level(logging.WARNING):
            assert whole(place) == DATA
            assert whole(place) == DATA
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["warning"]
        assert "No space left" in caplog.text
        assert bucket.bytes_given == 2 * len(DATA)
        assert blocks(tmp_path) == unfinished(tmp_path) == []

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_folder_that_may_only_be_read_still_gives_what_it_has(
        self, place: Location, bucket: FakeBucket, tmp_path: Path
    ) -> None:
        whole(place)
        folders = [tmp_path / "cache", *(path for path in (tmp_path / "cache").rglob("*") if path.is_dir())]
        for folder in folders:
            folder.chmod(0o500)
        bucket.gets.clear()
        try:
            assert whole(at(bucket, tmp_path)) == DATA
        finally:
            for folder in folders:
                folder.chmod(0o700)
        assert bucket.gets == []


class TestOptions:
    def test_storage_options_name_the_folder_and_its_size(self, bucket: FakeBucket, tmp_path: Path) -> None:
        options = {"cache": tmp_path / "mine", "cache_size": 5 << 20}
        place = open_location("bucket/small", options, filesystem=bucket)
        assert whole(place) == b"few bytes"
        assert place.cache is cache_at(str(tmp_path / "mine"), 5 << 20)
        assert place.join("x").cache is place.cache

    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ({"cache": "s3://bucket/cache"}, "not a local folder"),
            ({"cache": ""}, "not a local folder"),
            ({"cache": "c", "cache_size": 0}, "not a number of bytes"),
            ({"cache": "c", "cache_size": "10GiB"}, "not a number of bytes"),
        ],
    )
    def test_what_can_be_no_cache_is_refused(self, options: dict[str, Any], word: str) -> None:
        with pytest.raises(UsageError, match=word):
            open_location("anywhere", options)

    def test_a_file_in_the_place_of_the_folder_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(StorageError) as caught:
            open_location("anywhere", {"cache": str(tmp_path / "file")})
        assert caught.value.where == str(tmp_path / "file")


def _read_often(folder: str, times: int) -> None:
    files = {f"b/{i}": np.random.default_rng(i).bytes(3 * BLOCK + i) for i in range(4)}
    bucket = FakeBucket.holding(files)
    shared = RemoteCache(Path(folder), 8 * BLOCK)
    for turn in range(times):
        path = f"b/{(turn + os.getpid()) % 4}"
        place = open_location(path, filesystem=bucket)
        assert whole(Location(place.fs, place.path, place.url, place.patience, shared)) == files[path]


@pytest.mark.nightly
def test_processes_that_share_a_folder_and_evict_from_it_read_the_right_bytes(tmp_path: Path) -> None:
    """With room for two of the four files that they all read, each in its own order."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_read_often, args=(str(tmp_path / "cache"), 40)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert unfinished(tmp_path) == []
    assert sum(path.stat().st_size for path in blocks(tmp_path)) <= 3 * 8 * BLOCK
