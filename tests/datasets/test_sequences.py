"""A dataset as a sequence of episodes, whatever its format, shards and row groups."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli import EpisodeBatch, open_dataset
from offline_cli.datasets import reading
from offline_cli.datasets.dataset import Dataset
from offline_cli.errors import BadData
from offline_cli.files.locations import open_location
from offline_cli.parquet import row_group_cuts
from offline_cli.parquet.shards import opened

Make = Callable[..., EpisodeBatch]
Write = Callable[..., Any]
LENGTHS = (3, 1, 5, 40, 2, 7, 1, 30, 4, 6, 11)


@pytest.fixture
def whole(make_batch: Make) -> EpisodeBatch:
    return make_batch(LENGTHS)


@pytest.fixture
def shards(write_dataset: Write, whole: EpisodeBatch, tmp_path: Path, format: str) -> Dataset:
    """Eleven episodes in three shards or more."""
    write_dataset(open_location(tmp_path / "D"), whole, format=format, max_rows_per_file=4 if format == "episodes" else 42)
    dataset = open_dataset(tmp_path / "D")
    assert len(dataset.shards) >= 3
    return dataset


def test_every_episode_is_found_by_number_from_either_end(
    shards: Dataset, whole: EpisodeBatch, assert_same_batch: Callable[..., None]
) -> None:
    assert len(shards) == len(LENGTHS)
    for number in range(-len(LENGTHS), len(LENGTHS)):
        one = shards[np.int64(number)]
        assert one.id_ == whole.ids[number]
        assert_same_batch(EpisodeBatch.from_episodes([one]), EpisodeBatch.from_episodes([whole[number]]))


@pytest.mark.parametrize(
    "which",
    [
        slice(None),
        slice(3, 9),
        slice(None, None, -2),
        slice(5, 5),
        [4, 1, -1, 4],
        np.array([10, 0], np.int32),
        np.arange(len(LENGTHS)) % 3 == 0,
        [],
    ],
    ids=str,
)
def test_slices_indices_and_masks_are_batches_in_their_order(
    shards: Dataset, whole: EpisodeBatch, assert_same_batch: Callable[..., None], which: Any
) -> None:
    numbers = np.arange(len(LENGTHS))[np.asarray(which, np.int64) if isinstance(which, list) else which]
    assert_same_batch(shards[which], whole.select(numbers))


def test_what_chooses_no_episode_is_an_error(shards: Dataset) -> None:
    for which in (len(LENGTHS), -len(LENGTHS) - 1, [0, 99]):
        with pytest.raises(IndexError, match=f"of a dataset with {len(LENGTHS)} episodes"):
            shards[which]
    wrong: list[Any] = ["0", 1.5, True, [True, False], [[1]], [0.5]]
    for which in wrong:
        with pytest.raises(TypeError, match="chosen by"):
            shards[which]


def test_iteration_gives_every_episode_twice_in_a_row_and_from_two_iterators_at_once(
    shards: Dataset, whole: EpisodeBatch
) -> None:
    for _ in range(2):
        assert [episode.id_ for episode in shards] == list(whole.ids)
    pairs = zip(shards, shards, strict=True)
    assert [(one.id_, other.id_) for one, other in pairs] == [(id_, id_) for id_ in whole.ids]


def open_files(folder: Path) -> list[str]:
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if os.path.lexists(link) and os.readlink(link).startswith(str(folder))]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="lists what is open as Linux does")
def test_a_loop_that_ends_early_leaves_no_file_and_no_thread(shards: Dataset, tmp_path: Path) -> None:
    before = threading.active_count()
    for episode in shards:
        assert episode.id_ == "episode-0"
        break
    with iter(shards) as episodes:
        next(episodes)
    gc.collect()
    assert open_files(tmp_path) == []
    until = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_an_index_reads_one_row_group_and_the_last_few_are_kept(
    write_dataset: Write, make_batch: Make, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {"observation_space": spaces.Box(0, 255, (64, 64, 3), np.uint8)}
    whole = make_batch((20,) * 60, **wide)  # some 350 steps, 17 episodes, are a row group
    write_dataset(open_location(tmp_path / "D"), whole, format=format, **wide)
    dataset, read = open_dataset(tmp_path / "D"), list[int]()
    block = reading.ShardReader.block

    def counted(self: Any, *args: Any) -> Any:
        read.append(args[-1])
        return block(self, *args)

    monkeypatch.setattr(reading.ShardReader, "block", counted)
    for number in (0, 3, 59, 1, 58, 0):
        assert dataset[number].id_ == f"episode-{number}"
    assert len(read) == 2
    assert max(read) >= 3  # more row groups than were read
    for number in range(59, -1, -1):
        dataset[number]
    assert len(read) <= 2 + max(read) + 1


def test_an_episode_over_several_row_groups_is_one(
    write_dataset: Write, make_batch: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_batch((5, 900, 3, 700, 2))
    place = tmp_path / "D"
    cuts = row_group_cuts.cuts_of

    def short(*args: Any, **options: Any) -> Any:
        found = cuts(*args, **options)
        whole, rest = divmod(args[0].num_rows, 100)
        return None if found is None else replace(found, rows=(100,) * whole + (rest,) * bool(rest))

    monkeypatch.setattr("offline_cli.datasets.shard_sequence.cuts_of", short)
    write_dataset(open_location(place), whole, format="columns")
    dataset = open_dataset(place)
    with opened(dataset.location.join(dataset.shards[0].path)) as file:
        assert file.num_row_groups > 10
    for number in (3, 0, 1, 4, 2):
        assert (dataset[number].id_, len(dataset[number])) == (whole.ids[number], int(whole.lengths[number]))


def test_twenty_thousand_episodes_are_found_from_the_last_to_the_first(
    write_dataset: Write, make_batch: Make, tmp_path: Path, format: str
) -> None:
    whole = make_batch((1, 2) * 10_000)
    write_dataset(open_location(tmp_path / "D"), whole, format=format)
    dataset = open_dataset(tmp_path / "D")
    assert len(dataset) == 20_000
    assert dataset[-1].id_ == "episode-19999"
    numbers = np.random.default_rng(0).permutation(20_000)
    found = dataset[numbers]
    assert found.ids == tuple(whole.ids[number] for number in numbers)
    np.testing.assert_array_equal(found.returns, whole.returns[numbers])


def test_a_pickled_dataset_reads_the_same_and_travels_light(shards: Dataset, whole: EpisodeBatch) -> None:
    assert shards[3].id_ == whole.ids[3]
    sent = pickle.dumps(shards)
    assert len(sent) < 20_000
    again = pickle.loads(sent)
    assert again.shards == shards.shards
    assert [again[number].id_ for number in (9, 0)] == [whole.ids[9], whole.ids[0]]


def test_a_dataset_without_episodes_has_none(write_dataset: Write, tmp_path: Path, format: str) -> None:
    write_dataset(open_location(tmp_path / "D"), format=format)
    dataset = open_dataset(tmp_path / "D")
    assert (len(dataset), list(dataset), len(dataset[:])) == (0, [], 0)
    with pytest.raises(IndexError):
        dataset[0]


def test_a_shard_that_holds_other_episodes_than_its_manifest_says_is_refused(
    shards: Dataset, tmp_path: Path, format: str
) -> None:
    first, second = (tmp_path / "D" / shard.path for shard in shards.shards[:2])
    first.write_bytes(second.read_bytes())
    with pytest.raises(BadData, match="its manifest says"):
        shards[0]


def test_a_dataset_in_a_bucket_is_a_sequence_too(
    write_dataset: Write, whole: EpisodeBatch, format: str, assert_same_batch: Callable[..., None]
) -> None:
    place = open_location("memory://sequences/D")
    write_dataset(place, whole, format=format, max_rows_per_file=4 if format == "episodes" else 42, overwrite=True)
    dataset = open_dataset("memory://sequences/D")
    assert_same_batch(dataset[[7, 2, -1]], whole.select([7, 2, 10]))
    assert [episode.id_ for episode in dataset] == list(whole.ids)
