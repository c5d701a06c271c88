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

import numpy as np
import pyarrow.parquet as pq
import pytest

from offline_cli import filter
from offline_cli.converting.whole_episodes import first_batch
from offline_cli.datasets import reading as shard_reading
from offline_cli.datasets.dataset import Dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.files.locations import Location, open_location
from offline_cli.formats.opening import OwnSource
from offline_cli.parquet import safety, shards

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


@pytest.mark.parametrize("target_steps", [1, 7, 100])
@pytest.mark.parametrize("bounded", [(True, False), (False, True)])
def test_row_groups_that_may_be_large_and_others_are_joined(
    bounded: tuple[bool, bool], target_steps: int, written: Path, monkeypatch: pytest.MonkeyPatch, assert_same_batch: Any
) -> None:
    """Of those that may be large, columns of text are not read as numbers and a dictionary."""
    expected = list(Dataset.open(written).batches())
    real, looked = safety.refuse_bomb, list[int]()

    def in_turn(*given: Any, **more: Any) -> Any:
        looked.append(more["group"])
        return real(*given, **more)._replace(most=0 if bounded[more["group"] % 2] else None)

    monkeypatch.setattr(shards, "refuse_bomb", in_turn)
    found = list(Dataset.open(written).batches(target_steps=target_steps))
    assert len(looked) > 3
    assert_same_batch(EpisodeBatch.concat(found), EpisodeBatch.concat(expected))
    plain = [table.column("eps_id").to_pylist() for table in Dataset.open(written).plain()]
    assert [name for names in plain for name in names] == [name for batch in expected for name in batch.ids]


def test_only_some_episodes_are_read_ahead(written: Path, assert_same_batch: Any) -> None:
    chosen = np.arange(len(LENGTHS)) % 3 == 0
    found = list(replace(ahead(written), chosen=(chosen,)).batches(target_steps=1))
    assert_same_batch(EpisodeBatch.concat(found), Dataset.open(written)[chosen])


@pytest.mark.parametrize("format", ["columns"], indirect=True)
@pytest.mark.parametrize("at_once", [1, 150, 1 << 20])
def test_the_plain_columns_are_those_of_the_steps_however_many_row_groups_are_read_at_once(
    at_once: int, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_reading, "SURVEYED", at_once)
    (table,) = Dataset.open(written).plain()
    whole = EpisodeBatch.concat(list(Dataset.open(written).batches()))
    assert table.column("eps_id").to_pylist() == list(whole.ids)
    for name, values in {"length": whole.lengths, "return": whole.returns, "terminated": whole.terminated}.items():
        np.testing.assert_array_equal(table.column(name).to_numpy(), values)


@pytest.mark.parametrize("format", ["columns"], indirect=True)
def test_plain_columns_of_remote_shards_are_read_one_row_group_at_a_time(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their parts are fetched in order, and forgotten once a later one is asked for."""
    real, asked = shards.OpenShard.row_groups, list[int]()

    def noting(self: Any, groups: Sequence[int], *options: Any) -> Any:
        asked.append(len(groups))
        return real(self, groups, *options)

    monkeypatch.setattr(shards.OpenShard, "row_groups", noting)
    list(Dataset.open(written).plain())
    assert asked == [11]
    monkeypatch.setattr(Location, "is_local", property(lambda _: False))
    list(Dataset.open(written).plain())
    assert asked == [11, *[1] * 11]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_first_broken_row_group_is_reported_after_what_is_before_it(
    first: int, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shards.OpenShard.row_groups

    def failing(self: Any, groups: Sequence[int], *options: Any, **more: Any) -> Any:
        if groups[0] >= first:
            raise OSError(f"row group {groups[0]} is broken")
        return real(self, groups, *options, **more)

    monkeypatch.setattr(shards.OpenShard, "row_groups", failing)
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


def test_a_look_at_the_first_batch_reads_nothing_ahead_and_closes_all(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_reading, "ReadingPool", lambda *_: pytest.fail("it read ahead"))
    before, source = len(os.listdir("/dev/fd")), OwnSource.open(open_location(written))
    batch = first_batch(replace(source, dataset=ahead(written)))
    assert batch is not None
    assert batch.ids[0] == "episode-0"
    assert len(os.listdir("/dev/fd")) <= before


def reading() -> list[str]:
    """Names of the threads that pools have."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ThreadPoolExecutor")]


def test_a_row_group_that_may_be_large_waits_for_its_turn(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, threads = shards.OpenShard.row_groups, list[str]()

    def noting(self: Any, *options: Any, **more: Any) -> Any:
        threads.append(threading.current_thread().name)
        return real(self, *options, **more)

    monkeypatch.setattr(shards.OpenShard, "row_groups", noting)
    list(ahead(written).batches())
    assert threads.count("MainThread") == 1
    threads.clear()
    monkeypatch.setattr(safety, "MAX_BYTES", 10)
    list(ahead(written).batches())
    assert set(threads) == {"MainThread"}


@pytest.mark.parametrize(("memory_limit", "reads_ahead"), [("1GiB", True), ("256MiB", False)])
def test_operations_read_ahead_where_the_memory_limit_has_room_for_it(
    memory_limit: str, reads_ahead: bool, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[bool] = []
    real = shards.read_row_groups

    def noting(*arguments: Any, pool: Any = None, **options: Any) -> Any:
        pools.append(pool is not None)
        return real(*arguments, pool=pool, **options)

    monkeypatch.setattr("offline_cli.datasets.reading.read_row_groups", noting)
    filter(written, tmp_path / "F", where="length > 0", memory_limit=memory_limit)
    assert any(pools) is reads_ahead
