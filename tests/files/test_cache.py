"""The cache of remote files: nothing is fetched twice, and nothing but what the store has now is ever given."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_bucket import FakeBucket
from offline_cli.files import cache
from offline_cli.files.cache import BLOCK, RemoteCache, cache_at
from offline_cli.files.locations import Location, open_location

from offline_cli.errors import StorageError, UsageError

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

    def test_no_name_in_the_folder_tells_an_address(self, place: Location, tmp_path: Path) -> None:
        whole(place)
        names = " ".join(path.relative_to(tmp_path).as_posix() for path in (tmp_path / "cache").rglob("*"))
        assert "bucket" not in names


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


class TestDegrading:
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
