"""Writing and reading datasets of both formats: round trips, limits, bytes that depend on the content alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli.datasets.dataset import Dataset, holds_dataset
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.parquet.reading import fingerprint
from offline_cli.storage.locations import Location, open_location
from offline_cli.tally import Reject

Make = Callable[..., EpisodeBatch]
Same = Callable[[EpisodeBatch, EpisodeBatch], None]
Write = Callable[..., Manifest]
WriterFor = Callable[..., DatasetWriter]

NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (4, 4, 3), np.uint8),
        "arm": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)]),
    }
)


def read_all(location: Location, **options: Any) -> EpisodeBatch:
    return EpisodeBatch.concat(list(Dataset.open(location).batches(**options)))


def data_bytes(location: Location) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in location.join("data").files()}


def in_parts(batch: EpisodeBatch, *places: int) -> list[EpisodeBatch]:
    return [batch.select(slice(a, b)) for a, b in pairwise([0, *places, len(batch)])]


class TestRoundTrips:
    """What is written is read, on disk and in memory, in both formats."""

    def test_a_dataset_read_again_is_what_was_written(
        self, place: Location, format: str, make_batch: Make, write_dataset: Write, assert_same_batch: Same
    ) -> None:
        batch = make_batch((3, 1, 5, 2), extra={"logp": np.arange(11, dtype=np.float32)})
        write_dataset(place, *in_parts(batch, 1, 3), format=format)
        assert_same_batch(read_all(place), batch)

    def test_nested_spaces_come_back_with_their_dicts_and_tuples(
        self, place: Location, format: str, make_batch: Make, write_dataset: Write, assert_same_batch: Same
    ) -> None:
        batch = make_batch(observation_space=NESTED, action_space=NESTED)
        write_dataset(place, batch, format=format, observation_space=NESTED, action_space=NESTED)
        read = read_all(place)
        assert_same_batch(read, batch)
        assert isinstance(read.obs["arm"], tuple)

    def test_an_episode_longer_than_a_row_group_comes_back_whole(
        self, tmp_path: Path, make_batch: Make, write_dataset: Write, assert_same_batch: Same
    ) -> None:
        place, image = open_location(tmp_path / "D"), spaces.Box(0, 255, (64, 64, 3), np.uint8)
        batch = make_batch((3, 800, 5), observation_space=image)
        write_dataset(place, batch, observation_space=image)
        file = pq.ParquetFile(place.join("data").files()[0].open())
        assert file.num_row_groups >= 2
        assert max(file.read_row_group(i).nbytes for i in range(file.num_row_groups)) < 9 << 20
        assert_same_batch(read_all(place), batch)


class TestManifests:
    """What the manifest says of the shards."""

    def test_counts_rows_bytes_and_hashes_are_those_of_the_files(
        self, place: Location, format: str, make_batch: Make, write_dataset: Write
    ) -> None:
        batch = make_batch((3, 1, 5, 2))
        manifest = write_dataset(place, batch, format=format, max_rows_per_file=4 if format == "columns" else 2)
        assert (manifest.counts.episodes, manifest.counts.steps) == (4, 11)
        files = place.join("data").files()
        assert [shard.path for shard in manifest.shards] == [f"data/{file.name}" for file in files]
        assert [(shard.bytes, shard.sha256) for shard in manifest.shards] == [fingerprint(file) for file in files]
        assert [shard.rows for shard in manifest.shards] == [pq.read_metadata(file.open()).num_rows for file in files]
        assert sum(shard.steps for shard in manifest.shards) == 11

    def test_a_shard_keeps_to_its_limit_of_bytes_before_compression(
        self, place: Location, format: str, make_batch: Make, write_dataset: Write
    ) -> None:
        batch = make_batch([50] * 8)
        whole = write_dataset(place.join("one"), batch, format=format, max_bytes_per_file=1 << 20)
        cut = write_dataset(place.join("many"), batch, format=format, max_bytes_per_file=5000)
        assert len(whole.shards) == 1
        assert len({shard.episodes for shard in cut.shards[:-1]}) == 1
        assert 2 <= len(cut.shards) <= 8

    def test_a_dataset_without_episodes_is_one(self, place: Location, format: str, write_dataset: Write) -> None:
        manifest = write_dataset(place, format=format)
        assert manifest.counts.episodes == 0
        assert list(Dataset.open(place).batches()) == []
        assert holds_dataset(place)


class TestRefusals:
    """Batches and options that make no dataset."""

    def test_another_extra_output_than_before_is_refused_by_name(
        self, place: Location, make_batch: Make, write_dataset: Write
    ) -> None:
        batches = [make_batch((2,), extra={"logp": np.zeros(2)}), make_batch((2,), first_id=1)]
        with pytest.raises(BadEpisode, match="'logp'"):
            write_dataset(place, *batches)

    def test_two_episodes_of_one_id_are_refused(
        self, place: Location, format: str, make_batch: Make, writer_for: WriterFor
    ) -> None:
        twice = make_batch((2, 1)).select([0, 1, 0])
        with (
            pytest.raises(BadEpisode, match="'episode-0'"),
            writer_for(place, format=format) as writer,
        ):
            writer.write(twice)
        with pytest.raises(BadEpisode, match="'episode-1'"), writer_for(place, format=format) as writer:
            writer.write(make_batch((2, 1)))
            writer.write(make_batch((1,), first_id=1))


class TestSameBytes:
    """Same input and options, same data/ bytes."""

    def test_two_runs_write_the_same_bytes_however_the_input_was_batched(
        self, place: Location, format: str, make_batch: Make, write_dataset: Write
    ) -> None:
        infos = [{"i": i} if i > 700 else {} for i in range(1000 + 100)]
        batch = make_batch([10] * 100, extra={"logp": np.linspace(0, 1, 1000)}, infos=infos)
        options = {"format": format, "max_bytes_per_file": 40_000}
        one = write_dataset(place.join("one"), batch, **options)
        two = write_dataset(place.join("two"), *in_parts(batch, 1, 2, 50, 77), **options)
        assert len(one.shards) > 2
        assert data_bytes(place.join("one")) == data_bytes(place.join("two"))
        left, right = one.as_json(), two.as_json()
        del left["provenance"], right["provenance"]
        assert left == right


def test_rows_set_aside_are_written_with_place_code_and_reason(
    place: Location, make_batch: Make, writer_for: WriterFor
) -> None:
    rejects = [Reject("a.json row 3", "bad-data", "cut in half", b'{"a'), Reject("b", "unsafe-data", "pickle", b"")]
    with writer_for(place) as writer:
        writer.write(make_batch())
        writer.quarantine(rejects)
        writer.quarantine(rejects)
        writer.quarantine([Reject("c", "bad-data", "x", b"\xff")])
        writer.commit()
    assert rejects == []
    files = place.join("quarantine").files()
    assert [file.name for file in files] == ["rows-000000.rejects", "rows-000001.rejects"]
    rows = pq.read_table(files[0].open()).to_pylist()
    assert rows[0] == {"where": "a.json row 3", "code": "bad-data", "reason": "cut in half", "raw": b'{"a'}
    assert len(rows) == 2
