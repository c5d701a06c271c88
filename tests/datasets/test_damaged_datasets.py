"""Bits that flip in a dataset: what a reader gives is what was written, or an error names the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flipped_bits import flips
from gymnasium import spaces

from offline_cli import open_dataset, validate
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import OfflineCliError
from offline_cli.storage.locations import open_location
from offline_cli.trees import leaves

OBSERVATIONS = spaces.Dict({"p": spaces.Box(-1, 1, (3,), np.float32), "n": spaces.Discrete(5)})
FORMATS = [("episodes", "zstd"), ("columns", "none")]


@pytest.fixture(params=FORMATS, ids="-".join)
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Three shards of two episodes, with an extra output and with infos of none."""
    rng = np.random.default_rng(0)
    format, compression = request.param
    place = open_location(str(tmp_path / "D"))
    with DatasetWriter(
        place,
        format=format,
        compression=compression,
        observation_space=OBSERVATIONS,
        action_space=spaces.Discrete(3),
        action_scale="env",
        max_rows_per_file=2 if format == "episodes" else 18,
    ) as writer:
        for number in range(3):
            writer.write(
                EpisodeBatch(
                    ids=(f"{number}-a", f"{number}-b"),
                    starts=np.array([0, 7, 18]),
                    obs={"p": rng.uniform(-1, 1, (20, 3)).astype(np.float32), "n": np.arange(20) % 5},
                    actions=np.arange(18) % 3,
                    rewards=rng.normal(size=18),
                    terminated=np.array([True, False]),
                    truncated=np.array([False, True]),
                    extra={"action_logp": rng.normal(size=18).astype(np.float32)},
                    observation_space=OBSERVATIONS,
                    action_space=spaces.Discrete(3),
                )
            )
        writer.commit()
    return tmp_path / "D"


def read(source: Path) -> EpisodeBatch:
    with open_dataset(str(source)).batches() as batches:
        return EpisodeBatch.concat(list(batches))


def is_told(source: Path, want: EpisodeBatch) -> bool:
    """Whether reading says that something in the folder is damaged, or gives what was written all the same."""
    try:
        found = read(source)
    except OfflineCliError as err:
        return err.exit_code == 3 and str(source) in err.where
    return same(found, want)


def same(found: EpisodeBatch, want: EpisodeBatch) -> bool:
    pairs = [*zip(parts(found), parts(want), strict=True)]
    return found.ids == want.ids and all(np.array_equal(left, right) for left, right in pairs)


def parts(batch: EpisodeBatch) -> Iterator[np.ndarray]:
    yield from (batch.starts, batch.rewards, batch.terminated, batch.truncated)
    for tree in (batch.obs, batch.actions, *batch.extra.values()):
        yield from leaves(tree)


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.nightly)], ids=["some", "ten thousand"])
def test_no_flipped_bit_of_a_dataset_is_read_as_another_value_and_passes_validation(dataset: Path, count: int) -> None:
    """Headers of pages have no checksum of Parquet's: a flip there may change values, and `validate` compares all bytes."""
    want = read(dataset)
    shards = sorted((dataset / "data").iterdir())
    assert len(shards) == 3
    files = flips([*shards, dataset / "manifest.json"], count)
    silent = [file.name for file in files if not is_told(dataset, want) and validate([str(dataset)]).passed]
    assert not silent
    assert same(read(dataset), want)
