"""Small files of a source in a bucket: asked about once, fetched once, ahead of their reader, in bounded memory."""

from __future__ import annotations

from collections import Counter

import pytest
from fake_bucket import FakeBucket
from offline_cli.files.file_info import FILES_AHEAD
from offline_cli.files.locations import Location, expand, open_location

from offline_cli.errors import StorageError


def bucket_of(count: int, size: int = 1000) -> FakeBucket:
    return FakeBucket.holding({f"b/in/{i:03}": bytes([i % 251]) * size for i in range(count)})


def listed(bucket: FakeBucket) -> list[Location]:
    """The files of a source that is read."""
    [folder] = expand(open_location("b/in", filesystem=bucket))
    files = folder.files()
    bucket.infos.clear()
    return files


def read(place: Location) -> bytes:
    with place.open() as file:
        return file.read()


def gets(bucket: FakeBucket) -> Counter[str]:
    return Counter(path for path, _, _ in bucket.gets)


def test_a_listed_file_is_asked_for_once_however_often_it_is_read() -> None:
    bucket = bucket_of(1)
    [file] = listed(bucket)
    assert (file.exists(), file.is_file(), file.is_dir(), file.size()) == (True, True, False, 1000)
    assert [read(file) for _ in range(3)] == [bytes(1000)] * 3
    assert (bucket.infos, len(bucket.gets)) == ([], 1)


@pytest.mark.parametrize("data", [b"shorter", b"longer than it was" * 100])
def test_a_file_of_another_size_than_listed_is_an_error(data: bytes) -> None:
    bucket = bucket_of(1)
    [file] = listed(bucket)
    bucket.files["b/in/000"] = data
    with pytest.raises(StorageError, match="changed while it was read"):
        read(file)


def test_files_that_are_read_in_order_are_fetched_ahead() -> None:
    bucket = bucket_of(30)
    files = listed(bucket)
    bucket.seconds = 0.02
    assert [read(file)[:1] for file in files] == [bytes([i]) for i in range(30)]
    assert bucket.most_at_once > FILES_AHEAD // 2
    assert set(gets(bucket).values()) == {1}


def test_a_broken_file_is_told_of_when_its_turn_comes() -> None:
    bucket = bucket_of(30)
    files = listed(bucket)

    def fails(path: str, start: int, end: int) -> None:
        if path == "b/in/005":
            raise PermissionError(path)

    bucket.fails = fails
    for file in files[:5]:
        read(file)
    with pytest.raises(StorageError, match="denied"):
        read(files[5])
    assert read(files[6])[:1] == bytes([6])
