"""Operations read a row group while the one before is written: with the same results, and errors in the same order."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from offline_cli.datasets.dataset import Dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.parquet import shards
from offline_cli.storage.locations import open_location

LENGTHS = (3, 1, 5, 2, 4, 7, 1, 1, 6, 2)
Make = Callable[..., EpisodeBatch]


@pytest.fixture
def written(tmp_path: Path, make_batch: Make, write_dataset: Any, format: str) -> Path:
    """A dataset whose shard has a row group for every few rows; episodes of columns begin and end within them."""
    write_dataset(open_location(tmp_path / "D"), make_batch(LENGTHS), format=format)
    (shard,) = (tmp_path / "D" / "data").iterdir()
    pq.write_table(pq.read_table(shard), shard, compression="zstd", row_group_size=3, write_page_checksum=True)
    state(tmp_path / "D", shard)
    return tmp_path / "D"


def state(folder: Path, shard: Path) -> None:
    """Have the manifest say what the shard is."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["shards"][0] |= {"bytes": shard.stat().st_size, "sha256": hashlib.sha256(shard.read_bytes()).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def ahead(folder: Path) -> Dataset:
    return replace(Dataset.open(folder), ahead=True)


@pytest.mark.parametrize("target_steps", [1, 4, 100])
def test_the_episodes_are_the_same_whether_they_are_read_ahead_or_not(
    target_steps: int, written: Path, assert_same_batch: Callable[[EpisodeBatch, EpisodeBatch], None]
) -> None:
    here, there = (list(one.batches(target_steps=target_steps)) for one in (Dataset.open(written), ahead(written)))
    assert_same_batch(EpisodeBatch.concat(here), EpisodeBatch.concat(there))


@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_first_broken_row_group_is_reported_after_what_is_before_it(
    first: int, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shards.OpenShard.read_row_groups

    def failing(self: Any, groups: Sequence[int], *options: Any, **more: Any) -> Any:
        if groups[0] >= first:
            raise OSError(f"row group {groups[0]} is broken")
        return real(self, groups, *options, **more)

    monkeypatch.setattr(shards.OpenShard, "read_row_groups", failing)
    episodes = []
    for dataset in (Dataset.open(written), ahead(written)):
        batches, ids = dataset.batches(target_steps=1), list[str]()
        with pytest.raises(BadData, match=f"row group {first} is broken"):
            for batch in batches:
                ids += batch.ids
        episodes.append(ids)
    assert episodes[0] == episodes[1]


def test_what_is_left_half_read_is_closed(written: Path) -> None:
    before, batches = len(os.listdir("/dev/fd")), ahead(written).batches(target_steps=1)
    next(batches)
    assert reading()
    batches.close()
    assert not reading()
    assert len(os.listdir("/dev/fd")) <= before  # what other tests left may be closed in between


def reading() -> list[str]:
    """Names of the threads that pools have."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("offline-cli")]
