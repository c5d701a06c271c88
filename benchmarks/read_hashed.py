"""What does it cost to compare each shard with its sha256 while it is read? Rival: the same reading, which compares nothing."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from benchmarks.harness import Row, paired
from benchmarks.read_episodes import episodes
from benchmarks.targets import Target
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.reading import ShardReader
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.files.locations import open_location

TARGET = Target(1 / 1.1, words="at most 10 % slower in wall time")
LENGTH, AT_ONCE = 200, 500
SIZES = (20_000, 800)  # episodes: some 100 MB, and some 4 MB
FORMATS: tuple[Literal["episodes", "columns"], ...] = ("episodes", "columns")


def rows() -> list[Row]:
    with TemporaryDirectory() as folder:
        return [row(Path(folder), format, number) for format in FORMATS for number in SIZES]


def made(folder: Path, format: Literal["episodes", "columns"], number: int) -> Dataset:
    """A dataset of `number` episodes."""
    whole = episodes(LENGTH, number)
    place = open_location(folder / f"{format}-{number}")
    with DatasetWriter(
        place,
        format=format,
        observation_space=whole.observation_space,
        action_space=whole.action_space,
        action_scale="env",
    ) as writer:
        for first in range(0, number, AT_ONCE):
            writer.write(whole.select(slice(first, min(number, first + AT_ONCE))))
        writer.commit()
    return Dataset.open(place)


def compared(dataset: Dataset) -> int:
    with dataset.batches() as batches:
        return sum(batch.num_steps for batch in batches)


def not_compared(dataset: Dataset) -> int:
    found = dataset.manifest
    reader = ShardReader(found.format, found.observation_space, found.action_space, target_steps=1 << 16, declared=True)
    places = (dataset.location.join(shard.path) for shard in found.shards)
    return sum(batch.num_steps for place in places for batch in reader.read(place))


def row(folder: Path, format: Literal["episodes", "columns"], number: int) -> Row:
    dataset = made(folder, format, number)
    steps, size = dataset.manifest.counts.steps, sum(shard.bytes for shard in dataset.manifest.shards)
    return paired(
        f"read a dataset of {format}, {size / 1e6:.0f} MB, with its hashes compared",
        amount=steps,
        unit="steps/s",
        ours=lambda: compared(dataset),
        rival=lambda: not_compared(dataset),
        rival_name="the same, not compared",
        target=TARGET,
        pairs=21 if number == SIZES[0] else 81,
    )
