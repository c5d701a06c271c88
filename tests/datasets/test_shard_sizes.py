"""Limits of a shard's bytes count arrays before compression, and are met by whole episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli import open_dataset, repack, write_dataset
from offline_cli.episodes.batch import EpisodeBatch

EPISODES, STEPS, WIDTH = 24, 9, 10
ROW = 64 + 2 * WIDTH * 4 + 8 + 4  # bytes of a step: what each has, obs and new_obs, the action, the extra output


def batch(**changes: Any) -> EpisodeBatch:
    rng, steps = np.random.default_rng(0), EPISODES * STEPS
    return EpisodeBatch(
        ids=tuple(f"episode-{number}" for number in range(EPISODES)),
        starts=np.arange(EPISODES + 1) * STEPS,
        obs=rng.random((steps + EPISODES, WIDTH), np.float32),
        actions=rng.integers(0, 5, steps),
        rewards=rng.random(steps),
        terminated=np.ones(EPISODES, np.bool_),
        truncated=np.zeros(EPISODES, np.bool_),
        extra={"action_logp": rng.random(steps, np.float32)},
        observation_space=spaces.Box(0, 1, (WIDTH,), np.float32),
        action_space=spaces.Discrete(5),
        **changes,
    )


def episodes_per_shard(folder: Path) -> list[int]:
    return [shard.episodes for shard in open_dataset(folder).manifest.shards]


@pytest.mark.parametrize("format", ["episodes", "columns"])
@pytest.mark.parametrize("fit", [1, 3, 8])
def test_as_many_episodes_share_a_shard_as_the_limit_holds(format: str, fit: int, tmp_path: Path) -> None:
    write_dataset(batch(), tmp_path / "exact", format=format, max_bytes_per_file=fit * (STEPS + 1) * ROW)
    assert episodes_per_shard(tmp_path / "exact") == [fit] * (EPISODES // fit)
    write_dataset(batch(), tmp_path / "less", format=format, max_bytes_per_file=4 * (STEPS + 1) * ROW - 1)
    assert episodes_per_shard(tmp_path / "less") == [3] * 8


@pytest.mark.parametrize("limit", [{"max_rows_per_file": 7}, {"max_bytes_per_file": 7 * (STEPS + 1) * ROW}])
@pytest.mark.parametrize("together", [1, 5, 9])
def test_shards_are_cut_alike_whatever_batches_the_episodes_come_in(
    limit: dict[str, int], together: int, tmp_path: Path
) -> None:
    batches = (batch().select(slice(first, first + together)) for first in range(0, EPISODES, together))
    write_dataset(batches, tmp_path / "d", **limit)  # type: ignore[arg-type]
    assert episodes_per_shard(tmp_path / "d") == [7, 7, 7, 3]
    assert {pq.ParquetFile(file).num_row_groups for file in (tmp_path / "d/data").iterdir()} == {1}


@pytest.mark.parametrize(("episodes", "width", "groups"), [(40, 1 << 15, 3), (10_000, 1, 2)], ids=["large", "many"])
def test_blocks_that_are_full_are_row_groups_of_one_shard(episodes: int, width: int, groups: int, tmp_path: Path) -> None:
    made = EpisodeBatch(
        ids=tuple(map(str, range(episodes))),
        starts=np.arange(episodes + 1),
        obs=np.zeros((2 * episodes, width), np.float32),
        actions=np.zeros(episodes, np.int64),
        rewards=np.zeros(episodes),
        terminated=np.ones(episodes, np.bool_),
        truncated=np.zeros(episodes, np.bool_),
    )
    known = {"observation_space": spaces.Box(0, 1, (width,), np.float32), "action_space": spaces.Discrete(2)}
    write_dataset(made, tmp_path / "d", **known)
    (shard,) = open_dataset(tmp_path / "d").manifest.shards
    assert pq.ParquetFile(tmp_path / "d" / shard.path).num_row_groups == groups


def test_infos_count_with_their_texts_and_arrays(tmp_path: Path) -> None:
    infos = [{"text": "x" * 1000, "picture": np.zeros(500, np.uint8), "n": 1} for _ in range(EPISODES * (STEPS + 1))]
    row = ROW + 3 * 64 + 1000 + 500
    write_dataset(batch(infos=infos), tmp_path / "d", max_bytes_per_file=4 * (STEPS + 1) * row)
    assert episodes_per_shard(tmp_path / "d") == [4] * 6


@pytest.mark.parametrize("format", ["episodes", "columns"])
def test_rows_that_are_moved_count_as_they_are_stored(format: str, tmp_path: Path) -> None:
    write_dataset(batch(), tmp_path / "whole", format=format)
    raw = EPISODES * (STEPS + 1) * ROW
    assert repack(tmp_path / "whole", tmp_path / "one", max_bytes_per_file=2 * raw).shards == 1
    assert 2 <= repack(tmp_path / "whole", tmp_path / "several", max_bytes_per_file=raw // 4).shards <= 8
