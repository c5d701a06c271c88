"""A dataset that is overwritten: old rows are gone, and a reader that still wants them is told so, and gets no others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.storage.locations import Location

Make = Callable[..., EpisodeBatch]
Write = Callable[..., Manifest]
WriterFor = Callable[..., DatasetWriter]
Paths = Callable[[Location], list[str]]
EPISODES = 4  # each in a shard of its own


class Crash(Exception):
    """Stands for a process that is killed."""


@pytest.fixture
def rewrite(place: Location, make_batch: Make, write_dataset: Write, format: str) -> Callable[..., Manifest]:
    """A function that overwrites the dataset; the ids of its episodes begin with `first_id`."""

    def write(first_id: int, **options: Any) -> Manifest:
        batches = [make_batch((2,), first_id=first_id + number) for number in range(EPISODES)]
        rows = 1 if format == "episodes" else 2
        return write_dataset(place, *batches, format=format, max_rows_per_file=rows, overwrite=True, **options)

    return write


def ids(batches: Iterator[EpisodeBatch]) -> list[str]:
    return [name for batch in batches for name in batch.ids]


def named(first_id: int) -> list[str]:
    return [f"episode-{first_id + number}" for number in range(EPISODES)]


class TestNames:
    """A shard's name is given once in one folder."""

    def test_no_name_comes_back_after_a_writer_that_was_killed(
        self, place: Location, make_batch: Make, writer_for: WriterFor, paths_of: Paths
    ) -> None:
        seen: set[str] = set()
        for _ in range(3):
            with pytest.raises(Crash), writer_for(place, max_rows_per_file=1, overwrite=True) as writer:
                writer.write(make_batch((1, 1, 1)))
                raise Crash
            paths = {path for path in paths_of(place) if path.startswith("data/")}
            assert len(paths - seen) == 2
            seen |= paths


class TestReaders:
    """Of a manifest that was read before."""

    def test_a_reader_whose_shards_are_gone_is_told_so(self, place: Location, rewrite: Callable[..., Manifest]) -> None:
        rewrite(0)
        older = Dataset.open(place)
        rewrite(0)
        with pytest.raises(BadData):
            ids(older.batches())
        assert ids(Dataset.open(place).batches()) == named(0)


def test_the_parquet_files_below_a_dataset_that_was_overwritten_give_each_row_once(
    rewrite: Callable[..., Manifest], place: Location
) -> None:
    for first_id in (0, 10):
        counts = rewrite(first_id).counts
    with place.fs.open(place.path + "/manifest.json", "rb") as file:
        listed = [shard["path"] for shard in json.load(file)["shards"]]
    found = [path for path in place.fs.find(place.path) if path.endswith(".parquet")]
    assert sorted(path.removeprefix(place.path + "/") for path in found) == sorted(listed)
    assert counts.episodes == EPISODES
