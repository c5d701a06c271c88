"""How fast does `filter` copy a dataset? Rival: Polars, reading and writing the same columns as a stream.

`filter` keeps every episode here, so that both write the same rows; it decides by the plain columns, decodes what it writes,
and computes the statistics, which the rival does not.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from benchmarks.harness import Row, paired, versions
from benchmarks.read_episodes import episodes
from benchmarks.targets import Target
from offline_cli import filter as filtered
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.files.locations import open_location

STEPS = 1_000_000
TARGETS = {
    500: Target(0.5, words=">= 0.5x bare Polars read and write"),
    20: Target(0.25, words=">= 0.25x bare Polars read and write"),
}


def rows() -> list[Row]:
    return [copied(row_format, length) for length in TARGETS for row_format in ("episodes", "columns")]


@contextmanager
def written(row_format: str, length: int) -> Iterator[Path]:
    """A folder with a dataset D of STEPS steps in episodes of `length`."""
    batch = episodes(length, STEPS // length)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "D")
        with DatasetWriter(
            open_location(place),
            format=row_format,  # type: ignore[arg-type]
            observation_space=batch.observation_space,
            action_space=batch.action_space,
            action_scale="env",
        ) as writer:
            writer.write(batch)
            writer.commit()
        yield Path(folder)


def copied(row_format: str, length: int) -> Row:
    with written(row_format, length) as folder:
        source, files = folder / "D", str(folder / "D" / "data" / "*.parquet")

        def ours() -> None:
            shutil.rmtree(folder / "F", ignore_errors=True)
            filtered(source, folder / "F", where="length > 0")

        def bare() -> None:
            pl.scan_parquet(files).sink_parquet(folder / "F.parquet", compression="zstd")

        return paired(
            f"filter a dataset of {row_format}, episodes of {length} steps",
            amount=STEPS,
            unit="steps/s",
            ours=ours,
            rival=bare,
            rival_name=f"bare {versions('polars')}",
            target=TARGETS[length],
        )
