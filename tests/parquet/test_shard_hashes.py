"""Shards that are not those that were written, though all but their sha256 says so: whoever reads one to its end is told."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_bucket import FakeBucket
from gymnasium import spaces

from offline_cli import convert, train_bc, validate
from offline_cli.datasets import reading
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.reading import ShardReader
from offline_cli.datasets.row_formats import row_format
from offline_cli.datasets.shard_sequence import adopt
from offline_cli.datasets.statistics import StatisticsBuilder
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.files.locations import Location, open_location
from offline_cli.files.remote_files import FIRST_AHEAD
from offline_cli.parquet import trust
from offline_cli.parquet.trust import Hashing, fingerprint
from offline_cli.tally import Tally

Make = Callable[..., EpisodeBatch]
Write = Callable[..., Manifest]


def same_size(make_batch: Make, steps: int, count: int = 9) -> list[EpisodeBatch]:
    """Episodes whose shards differ in content, and next to nothing in size: checksums take more bytes or fewer."""
    first = make_batch((steps,))
    return [replace(first, ids=(f"episode-{number}",), obs=first.obs + np.float32(number / 4)) for number in range(count)]


def twins(manifest: Manifest) -> tuple[int, int]:
    """The numbers of the first two shards of the same size."""
    sizes = [shard.bytes for shard in manifest.shards]
    second = next(number for number, size in enumerate(sizes) if size in sizes[:number])
    return sizes.index(sizes[second]), second


@pytest.fixture(params=[4, 20_000], ids=["small", "beyond what is hashed at once"])
def steps(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def alike(place: Location, make_batch: Make, write_dataset: Write, format: str, steps: int) -> Manifest:
    """A dataset of uncompressed shards."""
    rows = 1 if format == "episodes" else steps
    batches = same_size(make_batch, steps)
    return write_dataset(place, *batches, format=format, compression="none", max_rows_per_file=rows)


def swap(place: Location, manifest: Manifest) -> list[str]:
    """Have two shards of the same size change places; their URLs."""
    left, right = (place.join(manifest.shards[number].path) for number in twins(manifest))
    before = left.read_bytes(), right.read_bytes()
    right.fs.pipe_file(right.path, before[0])
    left.fs.pipe_file(left.path, before[1])
    return [left.url, right.url]


def test_reading_ends_with_an_error_that_names_the_first_of_two_shards_that_changed_places(
    place: Location, alike: Manifest
) -> None:
    urls = swap(place, alike)
    with pytest.raises(BadData, match="sha256") as caught:
        list(Dataset.open(place).batches())
    assert caught.value.exit_code == 3
    assert caught.value.where == urls[0]
    assert "validate" in caught.value.fix
    assert "repair" in caught.value.fix


def test_shards_in_their_places_are_read(place: Location, alike: Manifest) -> None:
    assert sum(len(batch) for batch in Dataset.open(place).batches()) == 9


def test_some_columns_alone_are_compared_too(place: Location, alike: Manifest) -> None:
    swap(place, alike)
    with pytest.raises(BadData, match="sha256"):
        list(Dataset.open(place).batches(columns=[]))


def test_validate_finds_both_shards_without_deep(place: Location, alike: Manifest) -> None:
    urls = swap(place, alike)
    for deep in (False, True):
        found = [problem for problem in validate(place, deep=deep).problems if problem.code == "shard-hash"]
        assert [(problem.severity, problem.count) for problem in found] == [("error", 2)]
        assert list(found[0].details["places"]) == urls


def test_validate_compares_every_hash(place: Location, alike: Manifest) -> None:
    assert validate(place).hashes_unchecked == 0
    assert validate(place).problems == validate(place, deep=True).problems


def assert_fetched_about_once(bucket: FakeBucket, manifest: Manifest) -> None:
    """All bytes of all shards, and next to nothing twice."""
    fetched = sorted((path, start, end) for path, start, end in bucket.gets)
    total = sum(shard.bytes for shard in manifest.shards)
    assert total <= sum(end - start for _, start, end in fetched) <= total + 5 * FIRST_AHEAD
    for shard in manifest.shards:
        covered = 0
        for path, start, end in fetched:
            if path.endswith(shard.path) and start <= covered:
                covered = max(covered, end)
        assert covered == shard.bytes


class TestCommands:
    """Whoever reads the dataset to its end."""

    @pytest.fixture
    def swapped(self, tmp_path: Path, make_batch: Make, write_dataset: Write, format: str) -> Path:
        place = open_location(tmp_path / "S")
        batches = same_size(make_batch, 50)
        rows = 1 if format == "episodes" else 50
        manifest = write_dataset(place, *batches, format=format, compression="none", max_rows_per_file=rows)
        swap(place, manifest)
        return tmp_path / "S"

    def test_convert_commits_nothing(self, swapped: Path, tmp_path: Path) -> None:
        with pytest.raises(BadData, match="sha256"):
            convert(str(swapped), str(tmp_path / "D"))
        assert not (tmp_path / "D" / "manifest.json").exists()

    @pytest.mark.parametrize("streaming", [False, True])
    def test_training_ends(self, swapped: Path, tmp_path: Path, streaming: bool) -> None:
        options: dict[str, Any] = {"streaming": True, "memory_limit": "8GiB"} if streaming else {}
        with pytest.raises(BadData, match="sha256"):
            train_bc(str(swapped), str(tmp_path / "R"), updates=1, **options)
        assert not (tmp_path / "R" / "policy.safetensors").exists()


def is_done(hashing: Hashing) -> bool:
    assert hashing._whole is not None
    return hashing._whole.done()


class TestHashing:
    """The hash of a file that somebody else reads."""

    @pytest.mark.parametrize("size", [0, 1, trust.BESIDE, trust.BESIDE + 1, 2 * trust.CHUNK + 3])
    def test_it_is_that_of_the_file(self, place: Location, size: int) -> None:
        file = place.join("f")
        place.make_folder()
        file.fs.pipe_file(file.path, bytes(range(251)) * (size // 251 + 1))
        content = file.read_bytes()[:size]
        file.fs.pipe_file(file.path, content)
        with file.open() as stream, Hashing(stream, file) as found:
            stream.read(size // 2)
            assert (size, found.digest()) == fingerprint(file)

    def test_a_file_that_is_removed_meanwhile_is_the_one_that_was_opened(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"a" * (trust.BESIDE + 1))
        expected = fingerprint(open_location(tmp_path / "f"))[1]
        with open_location(tmp_path / "f").open() as stream, Hashing(stream, open_location(tmp_path / "f")) as found:
            (tmp_path / "f").unlink()
            assert found.digest() == expected

    @pytest.mark.nightly
    def test_it_waits_while_several_threads_decode_and_goes_on_afterwards(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(trust, "PATIENCE", 60.0)
        (tmp_path / "f").write_bytes(b"a" * (8 * trust.BUFFER))
        file = open_location(tmp_path / "f")
        with file.open() as stream, Hashing(stream, file) as found:
            with found.giving_way():
                time.sleep(0.3)
                assert not is_done(found)
            assert found.digest() == fingerprint(file)[1]

    def test_it_does_not_wait_long(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "f").write_bytes(b"a" * (2 * trust.BUFFER))
        file = open_location(tmp_path / "f")
        with file.open() as stream, Hashing(stream, file) as found, found.giving_way():
            assert found.digest() == fingerprint(file)[1]

    def test_its_end_within_decoding_is_the_end_of_its_thread(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trust, "PATIENCE", 60.0)
        (tmp_path / "f").write_bytes(b"a" * (8 * trust.BUFFER))
        file = open_location(tmp_path / "f")
        with ExitStack() as way, file.open() as stream, Hashing(stream, file) as found:
            way.enter_context(found.giving_way())
        until = time.monotonic() + 10
        while not is_done(found):
            assert time.monotonic() < until
            time.sleep(0.01)

    def test_a_file_that_cannot_be_read_is_a_storage_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from offline_cli.errors import StorageError

        def fail(*_: Any) -> int:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr("offline_cli.parquet.trust.os.preadv", fail)
        (tmp_path / "f").write_bytes(b"a" * (trust.BESIDE + 1))
        file = open_location(tmp_path / "f")
        with file.open() as stream, Hashing(stream, file) as found, pytest.raises(StorageError, match="Input/output"):
            found.digest()


class TestBuckets:
    """Whose bytes come once, and are hashed on their way."""

    @pytest.fixture(params=[50, 40_000], ids=["small", "of several parts"])
    def stored(
        self, tmp_path: Path, make_batch: Make, write_dataset: Write, format: str, request: pytest.FixtureRequest
    ) -> tuple[FakeBucket, Manifest]:
        """A dataset of uncompressed shards."""
        place = open_location(tmp_path / "D")
        space = spaces.Box(-1, 1, (60,), np.float32)
        batches = same_size(partial(make_batch, observation_space=space), request.param, count=5)
        rows = 1 if format == "episodes" else request.param
        manifest = write_dataset(
            place, *batches, format=format, compression="none", max_rows_per_file=rows, observation_space=space
        )
        files = {f"bucket{file.path.removeprefix(str(tmp_path))}": file.read_bytes() for file in place.files()}
        return FakeBucket.holding(files), manifest

    def test_every_byte_is_fetched_about_once(self, stored: tuple[FakeBucket, Manifest]) -> None:
        bucket, manifest = stored
        dataset = Dataset.open(open_location("bucket/D", filesystem=bucket))
        bucket.gets.clear()
        assert sum(len(batch) for batch in dataset.batches()) == 5
        assert_fetched_about_once(bucket, manifest)

    def test_a_writing_that_is_resumed_looks_at_every_shard_once(self, stored: tuple[FakeBucket, Manifest]) -> None:
        bucket, manifest = stored
        assert manifest.observation_space is not None
        assert manifest.action_space is not None
        spaces_ = manifest.observation_space, manifest.action_space
        reader, rows = ShardReader(manifest.format, *spaces_), row_format(manifest.format, *spaces_, Tally())
        places = [open_location(f"bucket/D/{shard.path}", filesystem=bucket) for shard in manifest.shards]
        bucket.gets.clear()
        assert [adopt(place, reader, rows, StatisticsBuilder()).shard for place in places] == list(manifest.shards)
        assert_fetched_about_once(bucket, manifest)

    def test_two_shards_that_changed_places_are_named(self, stored: tuple[FakeBucket, Manifest]) -> None:
        bucket, manifest = stored
        first, second = (f"bucket/D/{manifest.shards[number].path}" for number in twins(manifest))
        bucket.files[first], bucket.files[second] = bucket.files[second], bucket.files[first]
        place = open_location("bucket/D", filesystem=bucket)
        with pytest.raises(BadData, match="sha256") as caught:
            list(Dataset.open(place).batches())
        assert caught.value.where == f"s3://{first}"
        (found,) = (problem for problem in validate(place).problems if problem.code == "shard-hash")
        assert list(found.details["places"]) == [f"s3://{first}", f"s3://{second}"]


def test_a_dataset_is_read_while_the_interpreter_ends(
    tmp_path: Path, write_dataset: Callable[..., Any], make_batch: Any
) -> None:
    write_dataset(open_location(str(tmp_path / "D")), make_batch())
    code = """if True:
        import atexit, sys
        from offline_cli import open_dataset
        from offline_cli.parquet import trust
        trust.SMALL = trust.BESIDE = 0  # a thread hashes files of any size
        atexit.register(lambda: print(sum(map(len, open_dataset(sys.argv[1]).batches()))))
    """
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "D")], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n", done.stderr


def test_a_broken_remote_shard_is_looked_at_once_before_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []

    def parsed(stream: Any, place: Any) -> Any:
        looked.append(stream)
        raise BadData("cut", where="s3://bucket/shard", fix="none")

    monkeypatch.setattr(reading, "parsed", parsed)
    stream: Future[Any] = Future()
    stream.set_result(io.BytesIO())
    coming = reading._Coming(open_location("memory://shard"), stream)
    assert all(coming.advance(lambda _: None) for _ in range(3))
    with pytest.raises(BadData, match="cut"):
        coming.__enter__()
    assert len(looked) == 1
    assert stream.result().closed


@pytest.mark.parametrize("beside", [0, 1 << 30])
@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("format", ["episodes", "columns"])
def test_a_shard_that_differs_is_found_however_it_is_hashed(
    format: str,
    beside: int,
    held: bool,
    tmp_path: Path,
    write_dataset: Callable[..., Any],
    make_batch: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From memory or from the file, by a thread or at the end: two bytes of text that no checksum of Parquet covers."""
    write_dataset(open_location(str(tmp_path / "D")), make_batch(), format=format)
    (shard,) = (tmp_path / "D" / "data").iterdir()
    for name, value in (("SMALL", 0), ("BESIDE", beside), ("WHOLE", 8 << 20 if held else 0)):
        monkeypatch.setattr(trust, name, value)
    assert sum(len(batch) for batch in Dataset.open(tmp_path / "D").batches()) == 3
    data = shard.read_bytes()
    shard.write_bytes(data.replace(b"parquet-cpp-arrow", b"parquet-cpp-Arrow"))
    with pytest.raises(BadData, match="sha256"):
        list(Dataset.open(tmp_path / "D").batches())


def test_a_small_shard_that_is_overwritten_after_it_was_hashed_is_not_decoded(
    tmp_path: Path, write_dataset: Callable[..., Any], make_batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is decoded are the bytes that were hashed."""
    write_dataset(open_location(str(tmp_path / "D")), make_batch())
    (shard,) = (tmp_path / "D" / "data").iterdir()
    real = trust.Trust.is_true_at_once

    def hashed(self: Any, *given: Any) -> bool:
        found = real(self, *given)
        with shard.open("r+b") as file:
            file.write(bytes(shard.stat().st_size))
        return found

    monkeypatch.setattr(trust.Trust, "is_true_at_once", hashed)
    assert sum(len(batch) for batch in Dataset.open(tmp_path / "D").batches()) == 3


def test_a_shard_that_is_opened_a_second_time_is_hashed_from_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reading may have ended in the middle."""
    monkeypatch.setattr(trust, "BESIDE", 0)
    (tmp_path / "a.parquet").write_bytes(bytes(64 << 20))
    place, trusted = open_location(tmp_path / "a.parquet"), trust.Trust(hashlib.sha256(bytes(64 << 20)).hexdigest())
    with place.open() as stream, trusted.beside(stream, place):
        pass
    with place.open() as stream, trusted.beside(stream, place):
        assert trusted.is_true_of(place)
