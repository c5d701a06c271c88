"""How fast does `filter` copy a dataset? Rival: Polars, reading and writing the same columns as a stream.

Every episode is kept, so that both write the same rows.
"""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path

import polars as pl

from benchmarks.harness import Floor, Row, paired, timed, versions
from benchmarks.read_episodes import episodes
from offline_cli import filter as filtered
from offline_cli import write_dataset

STEPS, LENGTH = 1_000_000, 500
FLOOR = Floor(0.6, words=">= 0.6 of bare Polars")


def rows(small: bool = False) -> list[Row]:
    steps = 2000 if small else STEPS
    with tempfile.TemporaryDirectory() as folder:
        data, numbers = Path(folder, "D"), count()  # each run has a place of its own: to remove files takes time as well
        write_dataset(episodes(LENGTH, steps // LENGTH), str(data), action_scale="env")

        def bare() -> None:
            copy = Path(folder, f"{next(numbers)}.parquet")
            pl.scan_parquet(data / "data" / "*.parquet").sink_parquet(copy, compression="zstd")

        return [
            paired(
                f"filter a dataset of episodes, episodes of {LENGTH} steps",
                timed(lambda: filtered([str(data)], f"{folder}/F{next(numbers)}", where="length > 0"), steps),
                timed(bare, steps),
                unit="steps/s",
                rival_name=f"bare {versions('polars')}",
                floor=FLOOR,
                pairs=1 if small else 7,
            )
        ]
