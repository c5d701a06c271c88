"""Episodes that compress beyond what readers believe are compressed less, in a shard of their own; all others as asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.storage import believable as module
from offline_cli.storage.believable import believable
from offline_cli.storage.dataset import Dataset
from offline_cli.storage.locations import open_location
from offline_cli.storage.writer import DatasetWriter

SPACE = spaces.Box(-1.0, 1.0, (2000,))
KIB = 1 << 10


def episode(name: str, steps: int, obs: Any) -> EpisodeBatch:
    return EpisodeBatch(
        ids=(name,),
        starts=np.array([0, steps]),
        obs=np.broadcast_to(obs, (steps + 1, 2000)).astype(np.float32),
        actions=np.zeros(steps, np.int64),
        rewards=np.zeros(steps),
        terminated=np.ones(1, np.bool_),
        truncated=np.zeros(1, np.bool_),
        observation_space=SPACE,
        action_space=spaces.Discrete(2),
    )


def items(*sizes: int, noise: bool = False) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table({"item": pa.array([rng.bytes(size) if noise else bytes(size) for size in sizes], pa.binary())})


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is small for a reader is 64 KiB, not MiB."""
    monkeypatch.setattr(module, "MAX_BYTES", 64 * KIB)
    monkeypatch.setattr("offline_cli.storage.parquet_bombs.MAX_BYTES", 64 * KIB)


@pytest.mark.parametrize(
    ("table", "asked", "wanted"),
    [
        (items(2000 * KIB), "zstd", "lz4"),
        (items(2000 * KIB), "brotli", "lz4"),
        (items(2000 * KIB), "lz4", "lz4"),
        (items(2000 * KIB), "none", "none"),
        (items(2000 * KIB, noise=True), "zstd", "zstd"),
        (items(*[32 * KIB] * 50), "zstd", "zstd"),
        (items(10, 2000 * KIB, 10), "zstd", "lz4"),
        (pa.table({"obs": np.zeros(1 << 18)}), "zstd", "zstd"),
    ],
    ids=["zeros", "zeros, brotli", "zeros, lz4", "zeros, none", "noise", "small ones", "one of three", "columns"],
)
def test_only_a_large_episode_that_shrinks_to_a_thousandth_is_compressed_otherwise(
    table: pa.Table, asked: str, wanted: str, small: None
) -> None:
    assert believable(table, asked) == wanted


def test_a_still_episode_between_others_is_read_back_from_a_shard_of_its_own(small: None, tmp_path: Path) -> None:
    moving = 0.5  # noise would make the file large enough to be believed
    batches = [episode("a", 2, moving), episode("b", 900, 0.0), episode("c", 2, moving)]
    options: dict[str, Any] = {"observation_space": SPACE, "action_space": spaces.Discrete(2), "action_scale": "env"}
    with DatasetWriter(open_location(tmp_path / "D"), format="episodes", **options) as writer:
        for batch in batches:
            writer.write(batch)
        writer.commit()
    found = EpisodeBatch.concat(list(Dataset.open(tmp_path / "D").batches()))
    assert found.ids == ("a", "b", "c")
    np.testing.assert_array_equal(found.obs, EpisodeBatch.concat(batches).obs)
    packed = [pq.read_metadata(file).row_group(0).column(0).compression for file in sorted((tmp_path / "D/data").iterdir())]
    assert "LZ4" in packed
