"""Reading remote files ahead: several parts at once, bounded, in order, and no more than what is needed."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_bucket import FakeBucket
from gymnasium import spaces

from offline_cli.converting.reading import read_episodes
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, StorageError
from offline_cli.files import prefetch
from offline_cli.files.locations import Location, open_location
from offline_cli.files.prefetch import PART, WINDOW, parts_of
from offline_cli.files.remote_files import FIRST_AHEAD, expect, ready
from offline_cli.files.timeouts import Patience, ReadingPool, Stopped, ended_by
from offline_cli.formats.parquet_files import chunks
from offline_cli.parquet.safety import file_ranges
from offline_cli.tally import Rejects

pytestmark = pytest.mark.nightly

MIB = 1 << 20
DATA = np.random.default_rng(0).bytes(100 * MIB)


@pytest.fixture
def bucket() -> FakeBucket:
    return FakeBucket.holding({"bucket/a": DATA})


def place(bucket: FakeBucket, path: str = "bucket/a") -> Location:
    return open_location(path, filesystem=bucket)


class TestParts:
    def test_neighbours_are_joined_and_large_gaps_are_left_out(self) -> None:
        ranges = [(50, 60), (0, 10), (12, 20), (20, 21)]
        parts = parts_of(ranges, 100, lambda start, end: None, hole=4)  # type: ignore[arg-type,return-value]
        assert [(part.start, part.end) for part in parts] == [(0, 21), (50, 60)]

    def test_parts_lie_within_the_file_at_the_places_asked_for(self) -> None:
        ranges = [(1, 2), (30, 1 << 60), (1 << 50, 1 << 60)]
        parts = parts_of(ranges, 95, lambda start, end: None, hole=0, align=10)  # type: ignore[arg-type,return-value]
        assert [(part.start, part.end) for part in parts] == [(0, 10), (30, 95)]

    def test_none_is_larger_than_a_request_may_be(self) -> None:
        parts = parts_of([(5, 10 * PART)], 1 << 40, lambda start, end: None, hole=0)  # type: ignore[arg-type,return-value]
        assert max(part.end - part.start for part in parts) == PART
        assert parts[0].start == 5
        assert parts[-1].end == 10 * PART


class TestOneFile:
    def test_what_is_expected_comes_several_parts_at_once(self, bucket: FakeBucket) -> None:
        bucket.seconds = 0.3
        with place(bucket).open() as file:
            expect(file, lambda: [(0, len(DATA))])
            assert file.read() == DATA
        assert 4 <= bucket.most_at_once <= prefetch.MOST
        assert bucket.bytes_given == len(DATA)

    def test_only_what_is_expected_comes(self, bucket: FakeBucket) -> None:
        wanted = [(MIB, 2 * MIB), (50 * MIB, 51 * MIB), (51 * MIB + 1000, 52 * MIB)]
        with place(bucket).open() as file:
            expect(file, lambda: wanted)
            for start, end in wanted:
                ready(file, lambda start=start, end=end: [(start, end)])
                file.seek(start)
                assert file.read(end - start) == DATA[start:end]
        assert sorted(bucket.gets) == [("bucket/a", MIB, 2 * MIB), ("bucket/a", 50 * MIB, 52 * MIB)]

    def test_what_nobody_has_read_yet_is_bounded(self, bucket: FakeBucket) -> None:
        with place(bucket).open() as file:
            expect(file, lambda: [(0, len(DATA))])
            for start in range(0, len(DATA), MIB):
                ready(file, lambda start=start: [(start, start + MIB)])
                file.seek(start)
                assert file.read(MIB) == DATA[start : start + MIB]
                assert bucket.bytes_given <= start + WINDOW + PART
        assert bucket.bytes_given == len(DATA)

    def test_a_long_file_read_from_its_head_comes_ahead_too(self, bucket: FakeBucket) -> None:
        bucket.seconds = 0.2
        with place(bucket).open() as file:
            assert b"".join(iter(lambda: file.read(100_000), b"")) == DATA
        assert bucket.most_at_once >= 3
        assert bucket.bytes_given == len(DATA)

    def test_reading_on_elsewhere_gives_up_what_was_ahead(self, bucket: FakeBucket) -> None:
        with place(bucket).open() as file:
            file.read(30 * MIB)
            file.seek(3)
            assert file.read(5) == DATA[3:8]
            asked = bucket.bytes_given
            file.seek(70 * MIB)
            assert file.read(5) == DATA[70 * MIB :][:5]
            time.sleep(0.2)
            assert bucket.bytes_given - asked <= 2 * FIRST_AHEAD

    def test_after_the_end_nothing_more_is_asked_for(self, bucket: FakeBucket) -> None:
        bucket.seconds = 0.1
        with place(bucket).open() as file:
            expect(file, lambda: [(0, len(DATA))])
            file.read(10)
        asked = len(bucket.gets)
        time.sleep(0.4)
        assert len(bucket.gets) <= asked
        assert len(bucket.gets) <= prefetch.MOST

    def test_slow_answers_call_for_fewer_at_once(self, bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(prefetch, "SLOW", 0.02)
        bucket.seconds = 0.1
        with place(bucket).open() as file:
            expect(file, lambda: [(0, len(DATA))])
            assert file.read() == DATA
        assert bucket.most_at_once <= prefetch.FIRST + 1

    def test_a_part_that_fails_is_an_error_when_it_is_read_and_names_the_file(self, bucket: FakeBucket) -> None:
        def fails(path: str, start: int, end: int) -> None:
            if start >= 40 * MIB:
                raise ConnectionResetError

        bucket.fails = fails
        with pytest.raises(StorageError) as caught, place(bucket).open() as file:
            expect(file, lambda: [(0, len(DATA))])
            assert file.read(40 * MIB) == DATA[: 40 * MIB]
            file.read(MIB)
        assert caught.value.where == "s3://bucket/a"

    def test_the_time_limit_holds_for_each_part(self, bucket: FakeBucket) -> None:
        hang = threading.Event()
        bucket.fails = lambda path, start, end: None if start < 10 * MIB else bool(hang.wait(30)) and None
        where = Location(bucket, "bucket/a", "s3://bucket/a", Patience(1.5))
        began = time.monotonic()
        with pytest.raises(StorageError, match=r"timed out after 1\.5 s"), where.open() as file:
            expect(file, lambda: [(0, len(DATA))])
            file.read()
        hang.set()
        assert time.monotonic() - began < 10


def recorded(bucket: FakeBucket, folder: Path, *, format: str, shards: int, extra: int = 0) -> Dataset:
    """A dataset of `shards` shards of 10 episodes, written to `folder`, as it is in the bucket; `extra` numbers more a step."""
    with DatasetWriter(
        open_location(folder),
        format=format,
        observation_space=spaces.Box(-np.inf, np.inf, (8,), np.float32),
        action_space=spaces.Discrete(2),
        action_scale="env",
        max_rows_per_file=10 if format == "episodes" else 10_000,
    ) as writer:
        for shard in range(shards):
            writer.write(episodes(shard, extra))
        writer.commit()
    for path in folder.rglob("*"):
        if path.is_file():
            bucket.files[f"bucket/D/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    return Dataset.open(open_location("bucket/D", filesystem=bucket))


def episodes(seed: int, extra: int) -> EpisodeBatch:
    rng = np.random.default_rng(seed)
    return EpisodeBatch(
        ids=tuple(f"{seed}-{i}" for i in range(10)),
        starts=np.arange(11) * 1000,
        obs=rng.normal(size=(10_010, 8)).astype(np.float32),
        actions=rng.integers(0, 2, 10_000),
        rewards=np.ones(10_000),
        terminated=np.ones(10, bool),
        truncated=np.zeros(10, bool),
        extra={"embedding": rng.normal(size=(10_000, extra))} if extra else {},
    )


@pytest.mark.parametrize("format", ["episodes", "columns"])
class TestDatasets:
    def test_episodes_come_in_their_order_however_late_a_shard_comes(
        self, bucket: FakeBucket, tmp_path: Path, format: str
    ) -> None:
        dataset = recorded(bucket, tmp_path / "D", format=format, shards=6)
        wanted = [id_ for batch in Dataset.open(tmp_path / "D").batches() for id_ in batch.ids]
        first = dataset.manifest.shards[1].path
        bucket.fails = lambda path, start, end: time.sleep(0.3 if path.endswith(first) else 0.01)
        assert [id_ for batch in dataset.batches() for id_ in batch.ids] == wanted
        assert len(wanted) == 60
        assert bucket.most_at_once > 1

    def test_a_broken_shard_is_told_of_when_its_turn_comes(self, bucket: FakeBucket, tmp_path: Path, format: str) -> None:
        dataset = recorded(bucket, tmp_path / "D", format=format, shards=5)
        broken = f"bucket/D/{dataset.manifest.shards[3].path}"
        bucket.files[broken] = bytes(len(bucket.files[broken]))
        seen: list[str] = []
        with pytest.raises(BadData) as caught:
            for batch in dataset.batches():
                seen.append(batch.ids[0])
        assert caught.value.where == f"s3://{broken}"
        assert [id_ for id_ in seen if id_.endswith("-0")] == ["0-0", "1-0", "2-0"]

    def test_a_shard_that_is_missing_or_of_another_size_is_named(self, bucket: FakeBucket, tmp_path: Path, format: str) -> None:
        dataset = recorded(bucket, tmp_path / "D", format=format, shards=3)
        last = f"bucket/D/{dataset.manifest.shards[2].path}"
        bucket.files[last] += b"x"
        with pytest.raises(BadData, match="its manifest says"):
            list(dataset.batches())
        del bucket.files[last]
        with pytest.raises(BadData, match="missing"):
            list(dataset.batches())

    def test_who_looks_at_the_first_episodes_alone_fetches_one_shard(
        self, bucket: FakeBucket, tmp_path: Path, format: str
    ) -> None:
        dataset = recorded(bucket, tmp_path / "D", format=format, shards=9, extra=64)
        bucket.gets.clear()
        reading = dataset.batches()
        next(reading)
        reading.close()
        time.sleep(0.2)
        asked = len(bucket.gets)
        time.sleep(0.2)
        assert len(bucket.gets) == asked
        assert bucket.bytes_given <= 2.5 * sum(shard.bytes for shard in dataset.manifest.shards) / 9 + 9 * 2 * FIRST_AHEAD


class TestAFileThatIsReplaced:
    """By one of the same size, and read without a cache."""

    def test_while_it_is_read_is_an_error_when_it_is_closed(self, bucket: FakeBucket) -> None:
        file = place(bucket).open()
        file.read(2 * MIB)
        bucket.files["bucket/a"] = DATA[::-1]
        assert file.read(MIB) != DATA[2 * MIB : 3 * MIB]
        with pytest.raises(StorageError, match="changed while it was read") as caught:
            file.close()
        assert (caught.value.where, caught.value.exit_code) == ("s3://bucket/a", 5)

    def test_once_it_has_been_read_is_no_error(self, bucket: FakeBucket) -> None:
        with place(bucket).open() as file:
            file.read(2 * MIB)
        bucket.files["bucket/a"] = DATA[::-1]

    def test_is_not_asked_about_after_another_error(self, bucket: FakeBucket) -> None:
        with pytest.raises(KeyboardInterrupt), place(bucket).open() as file:
            file.read(2 * MIB)
            bucket.files["bucket/a"] = DATA[::-1]
            bucket.infos.clear()
            raise KeyboardInterrupt
        assert bucket.infos == []

    def test_that_came_in_one_answer_costs_no_other(self) -> None:
        bucket = FakeBucket.holding({"bucket/small": b"few bytes"})
        with place(bucket, "bucket/small").open() as file:
            assert file.read() == b"few bytes"
        assert bucket.infos == ["bucket/small"]

    def test_that_nobody_closes_is_dropped_without_a_request(self, bucket: FakeBucket) -> None:
        file = place(bucket).open()
        file.read(2 * MIB)
        bucket.infos.clear()
        del file
        assert bucket.infos == []


def test_columns_that_nobody_wants_are_not_fetched(bucket: FakeBucket, tmp_path: Path) -> None:
    dataset = recorded(bucket, tmp_path / "D", format="columns", shards=3, extra=256)
    total = sum(shard.bytes for shard in dataset.manifest.shards)
    bucket.gets.clear()
    narrow = list(dataset.batches(columns=[]))
    assert sum(batch.num_steps for batch in narrow) == 30_000
    assert bucket.bytes_given < total / 10


def test_a_dataset_is_inspected_without_looking_into_its_shards(bucket: FakeBucket, tmp_path: Path) -> None:
    from offline_cli.checking.inspect import inspect

    dataset = recorded(bucket, tmp_path / "D", format="columns", shards=3)
    bucket.gets.clear()
    assert inspect(dataset.location).episodes == 30
    assert {path for path, _, _ in bucket.gets} == {"bucket/D/manifest.json"}


def test_foreign_files_are_read_side_by_side_in_order(bucket: FakeBucket) -> None:
    for number in range(12):
        sink = io.BytesIO()
        pq.write_table(pa.table({"x": np.full(10, number)}), sink)
        bucket.files[f"bucket/t/{number:02}.parquet"] = sink.getvalue()
    bucket.fails = lambda path, start, end: time.sleep(0.3 if path.endswith("03.parquet") else 0.02)
    files = [place(bucket, f"bucket/t/{number:02}.parquet") for number in range(12)]
    found = [chunk.table["x"].to_pylist() for chunk in chunks(files, Rejects())]
    assert [x for part in found for x in part] == [number for number in range(12) for _ in range(10)]
    assert bucket.most_at_once >= 3


def test_row_groups_of_a_large_foreign_file_come_ahead(bucket: FakeBucket) -> None:
    rng = np.random.default_rng(0)
    table = pa.table({"x": rng.normal(size=3_000_000), "y": rng.normal(size=3_000_000), "z": rng.normal(size=3_000_000)})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=250_000, use_dictionary=False)
    bucket.files["bucket/t.parquet"] = sink.getvalue()
    bucket.seconds = 0.2
    found = list(chunks([place(bucket, "bucket/t.parquet")], Rejects(), columns=["x"]))
    np.testing.assert_array_equal(np.concatenate([chunk.table["x"].to_numpy() for chunk in found]), table["x"].to_numpy())
    assert bucket.most_at_once >= 3
    wanted = sum(end - start for start, end in file_ranges(pq.read_metadata(sink), ["x"]))
    assert bucket.bytes_given < 1.1 * wanted + 6 * FIRST_AHEAD


class TestPools:
    def test_an_interrupted_reading_waits_for_no_server(self) -> None:
        hang, begun = threading.Event(), threading.Semaphore(0)

        def request() -> None:
            begun.release()
            hang.wait(60)

        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt), ReadingPool(3) as pool:
            for _ in range(20):
                pool.submit(lambda: Patience().wait_for(request, "s3://bucket/a"))
            for _ in range(3):
                begun.acquire()
            raise KeyboardInterrupt
        assert time.monotonic() - began < 5
        hang.set()

    def test_results_come_in_order(self) -> None:
        with ReadingPool(4) as pool:
            assert list(pool.map(lambda i: (time.sleep((7 - i) / 100), i)[1], range(8))) == list(range(8))

    def test_a_wait_that_is_stopped_says_nothing_of_the_storage(self) -> None:
        stop, patience = threading.Event(), Patience(30)
        stop.set()
        with ended_by(stop), pytest.raises(Stopped):
            patience.wait_for(threading.Event().wait, "s3://bucket/a")
        assert patience._failed < 0


def test_lines_from_afar_are_those_of_a_local_file(bucket: FakeBucket, tmp_path: Path) -> None:
    """The old recordings, a line a batch, through the whole reader."""
    line = b'{"type": "SampleBatch", "obs": %s, "actions": %s, "rewards": %s, "dones": %s, "eps_id": %s, "t": %s}\n'
    steps = 400
    lines = []
    for episode in range(60):
        obs = [[float(episode), float(t)] * 8 for t in range(steps)]
        flags = [False] * (steps - 1) + [True]
        parts: list[Any] = [obs, [0] * steps, [1.0] * steps, flags, [episode] * steps, list(range(steps))]
        lines.append(line % tuple(str(part).lower().encode() for part in parts))
    text = b"".join(lines)
    bucket.files["bucket/lines.json"] = text
    (tmp_path / "lines.json").write_bytes(text)
    ours = EpisodeBatch.concat(list(read_episodes(place(bucket, "bucket/lines.json"))))
    local = EpisodeBatch.concat(list(read_episodes(tmp_path / "lines.json")))
    assert [id_.rpartition("-")[2] for id_ in ours.ids] == [id_.rpartition("-")[2] for id_ in local.ids]
    np.testing.assert_array_equal(ours.obs, local.obs)
