"""How fast do `filter`, `merge` and `repack` copy a dataset? Rival: Polars, reading and writing the same columns as a stream.

`filter` keeps every episode here, so that both write the same rows; it decides by the plain columns. `merge` joins two halves,
and `repack` makes shards of another size. All of them compare hashes, decode what they write, and compute the statistics, which
the rival does not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.harness import Row, paired, versions
from benchmarks.read_episodes import episodes
from benchmarks.targets import NO_TARGET, Target
from offline_cli import filter as filtered
from offline_cli import merge, repack
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.files.locations import open_location

STEPS = 1_000_000
SHARD_BYTES = 16 << 20
TARGETED = ("filter",)
TARGETS = {
    500: Target(0.5, words=">= 0.5x bare Polars read and write"),
    20: Target(0.25, words=">= 0.25x bare Polars read and write"),
}


def rows() -> list[Row]:
    kinds = [(length, row_format) for length in TARGETS for row_format in ("episodes", "columns")]
    return [copied(row_format, length, name) for name in OPERATIONS for length, row_format in kinds]


def keep_all(sources: list[Path], out: Path) -> None:
    filtered(sources, out, where="length > 0")


def in_small_shards(sources: list[Path], out: Path) -> None:
    repack(sources, out, max_bytes_per_file=SHARD_BYTES)


OPERATIONS: dict[str, tuple[str, int, Callable[[list[Path], Path], object]]] = {
    "filter": ("filter a dataset", 1, keep_all),
    "merge": ("merge two datasets", 2, merge),
    "repack": ("repack a dataset into shards of 16 MiB", 1, in_small_shards),
}
"""In words; the number of sources; and the work."""


@contextmanager
def written(row_format: str, length: int, sources: int = 1) -> Iterator[Path]:
    """A folder with STEPS steps in episodes of `length`, in one dataset D, or parts of equal size in D, D1, ..."""
    whole = episodes(length, STEPS // length)
    ends = np.linspace(0, len(whole), sources + 1).astype(int)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(sources):
            batch = whole.select(slice(int(ends[number]), int(ends[number + 1])))
            with DatasetWriter(
                open_location(Path(folder, f"D{number or ''}")),
                format=row_format,  # type: ignore[arg-type]
                observation_space=batch.observation_space,
                action_space=batch.action_space,
                action_scale="env",
            ) as writer:
                writer.write(batch)
                writer.commit()
        yield Path(folder)


def copied(row_format: str, length: int, name: str) -> Row:
    words, sources, work = OPERATIONS[name]
    with written(row_format, length, sources) as folder:
        parts = sorted(folder.glob("D*"))
        files = [str(part / "data" / "*.parquet") for part in parts]

        numbers = count()  # each run has a place of its own: to remove the files of the one before takes time as well

        def ours() -> None:
            work(parts, folder / f"F{next(numbers)}")

        def bare() -> None:
            pl.scan_parquet(files).sink_parquet(folder / f"F{next(numbers)}.parquet", compression="zstd")

        return paired(
            f"{words} of {row_format}, episodes of {length} steps",
            amount=STEPS,
            unit="steps/s",
            ours=ours,
            rival=bare,
            rival_name=f"bare {versions('polars')}",
            target=TARGETS[length] if name in TARGETED else NO_TARGET,
        )
