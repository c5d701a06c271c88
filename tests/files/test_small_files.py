"""Small files of a source in a bucket: asked about once, fetched once, ahead of their reader, in bounded memory."""

from __future__ import annotations

import gc
import pickle
import threading
from collections import Counter
from pathlib import Path

import pytest
from fake_bucket import FakeBucket

from offline_cli.errors import StorageError
from offline_cli.files import file_info, locations
from offline_cli.files.file_info import FILES_AHEAD
from offline_cli.files.locations import Location, expand, open_location
from offline_cli.files.remote_files import SMALL_FILE

MIB = 1 << 20


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


def test_a_file_that_is_named_is_asked_about_once() -> None:
    bucket = bucket_of(1)
    [file] = expand(open_location("b/in/000", filesystem=bucket))
    [again] = expand([file])
    assert (again.is_dir(), again.size(), read(again)) == (False, 1000, bytes(1000))
    assert (len(bucket.infos), len(bucket.gets)) == (1, 1)


def test_a_file_that_is_no_source_is_asked_about_each_time() -> None:
    bucket = bucket_of(1)
    file = open_location("b/in/000", filesystem=bucket)
    assert read(file) == bytes(1000)
    bucket.files["b/in/000"] = b"new"
    assert (read(file), file.size()) == (b"new", 3)


def test_what_is_below_a_source_is_asked_about_each_time() -> None:
    bucket = bucket_of(1)
    [folder] = expand(open_location("b/in", filesystem=bucket))
    assert not folder.join("later").exists()
    bucket.files["b/in/later"] = b"new"
    assert read(folder.join("later")) == b"new"


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


def test_one_file_that_is_looked_into_has_no_other_fetched() -> None:
    bucket = bucket_of(30)
    files = listed(bucket)
    read(files[0])
    read(files[20])
    read(files[7])
    assert len(bucket.gets) == 3


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


def test_what_has_no_room_is_fetched_again_ahead_of_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_info, "_room", file_info._Room())
    bucket = bucket_of(60, SMALL_FILE)
    files = listed(bucket)
    for _ in range(2):
        for i, file in enumerate(files):
            assert read(file)[:1] == bytes([i])
            assert read(file)[-1:] == bytes([i]), "as long as it is read, it is kept"
    counts = list(gets(bucket).values())
    assert counts[:32] == [1] * 32
    assert set(counts[32:]) == {2}


def test_other_files_make_room_for_those_that_are_read_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_info, "_room", file_info._Room())
    first, second = bucket_of(32, SMALL_FILE), bucket_of(32, SMALL_FILE)
    held = [(bucket, listed(bucket)) for bucket in (first, second)]
    for bucket, files in held:
        for _ in range(2):
            for file in files:
                read(file)
        assert set(gets(bucket).values()) == {1}


def test_bytes_go_with_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    room = file_info._Room()
    monkeypatch.setattr(file_info, "_room", room)
    files = listed(bucket_of(5))
    for file in files:
        read(file)
    assert room._first.left == file_info.KEPT - 5000
    del files, file
    gc.collect()
    assert room._first.left == file_info.KEPT


def test_threads_that_read_one_file_fetch_it_once() -> None:
    bucket = bucket_of(1)
    bucket.seconds = 0.05
    [file] = listed(bucket)
    threads = [threading.Thread(target=read, args=(file,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(bucket.gets) == 1


def test_a_larger_file_is_read_by_ranges_and_is_the_one_that_was_listed() -> None:
    bucket = bucket_of(1, 3 * MIB)
    [file] = listed(bucket)
    with pytest.raises(StorageError, match="another version is there"), file.open() as opened:
        opened.read(1000)
        opened.seek(2 * MIB)
        opened.read(1000)
        bucket.files["b/in/000"] = b"x" * (3 * MIB)


def test_a_place_is_handed_to_another_process_with_what_is_known_and_without_its_bytes() -> None:
    bucket = bucket_of(1)
    [file] = listed(bucket)
    read(file)
    assert file.known is not None
    there = pickle.loads(pickle.dumps(file.known))
    assert there.found == file.known.found
    assert len(pickle.dumps(file.known)) < 500


@pytest.mark.parametrize(("deeper", "asked"), [(False, 0), (True, 1)])
def test_a_folder_is_listed_once_where_it_holds_no_folder(deeper: bool, asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = bucket_of(3)
    if deeper:
        bucket.files["b/in/more/000"] = b"x"
    [folder] = expand(open_location("b/in", filesystem=bucket))
    folder.children()
    finds: list[str] = []
    find = bucket.find
    monkeypatch.setattr(bucket, "find", lambda path, **said: finds.append(path) or find(path, **said))
    files = folder.files()
    assert (len(finds), len(files)) == (asked, 3 + deeper)
    bucket.infos.clear()
    assert (read(files[1]), files[1].size(), bucket.infos) == (bytes([1]) * 1000, 1000, [])


def test_a_small_file_of_this_machine_is_opened_once_by_the_readers_of_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "000").write_bytes(b"before")
    [folder] = expand(tmp_path)
    [file] = folder.files()
    assert file.start(3) == (b"bef", 6)
    monkeypatch.setattr(locations, "read_start", None)
    monkeypatch.setattr(locations, "open_plain", None)
    assert [read(file), *file.start(100)] == [b"before", b"before", 6]


def test_a_larger_file_of_this_machine_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "000").write_bytes(bytes(SMALL_FILE + 1))
    [file] = expand(tmp_path / "000")
    assert len(read(file)) == SMALL_FILE + 1
    (tmp_path / "000").write_bytes(b"x" * (SMALL_FILE + 1))
    assert read(file)[:1] == b"x"


def test_a_cache_keeps_what_is_fetched_and_is_asked_first(tmp_path: Path) -> None:
    bucket = bucket_of(20)
    for _ in range(2):
        [folder] = expand(open_location("b/in", {"cache": tmp_path / "cache"}, filesystem=bucket))
        assert [read(file)[:1] for file in folder.files()] == [bytes([i]) for i in range(20)]
    assert set(gets(bucket).values()) == {1}
