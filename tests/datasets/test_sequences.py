"""A dataset as a sequence of episodes, whatever its format, shards and row groups."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli import EpisodeBatch, convert, open_dataset
from offline_cli.datasets.dataset import Dataset
from offline_cli.errors import NoData, UsageError
from offline_cli.storage.locations import open_location

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
        with pytest.raises(IndexError, match=f"{len(LENGTHS)}"):
            shards[which]
    wrong: list[Any] = ["0", 1.5, True, [True, False], [[1]], [0.5]]
    for which in wrong:
        with pytest.raises(TypeError):
            shards[which]


def test_a_pickled_dataset_reads_the_same_and_travels_light(shards: Dataset, whole: EpisodeBatch) -> None:
    assert shards[3].id_ == whole.ids[3]
    sent = pickle.dumps(shards)
    assert len(sent) < 20_000
    again = pickle.loads(sent)
    assert again.shards == shards.shards
    assert [again[number].id_ for number in (9, 0)] == [whole.ids[9], whole.ids[0]]


def test_a_dataset_can_be_read_after_the_end_of_its_block_which_hides_no_error(shards: Dataset, tmp_path: Path) -> None:
    with open_dataset(tmp_path / "D") as opened:
        pass
    with opened.batches() as batches:
        assert sum(map(len, batches)) == len(LENGTHS)
    with pytest.raises(KeyError), open_dataset(tmp_path / "D"):
        raise KeyError
    with pytest.raises(NoData), open_dataset(tmp_path / "D" / "data"):
        pass


def test_a_dataset_has_spaces_and_its_location_is_a_source(shards: Dataset, tmp_path: Path) -> None:
    known = shards.manifest
    assert (shards.observation_space, shards.action_space) == (known.observation_space, known.action_space)
    assert convert(shards.location, tmp_path / "copy").episodes == len(LENGTHS)
    with pytest.raises(UsageError):
        convert(shards, tmp_path / "other")
