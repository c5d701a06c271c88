"""How fast does a plain table become episodes? Rival: Polars reads it and writes it again as Parquet, compressed alike."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.harness import Floor, Row, paired, timed, versions
from offline_cli import convert

STEPS, LENGTH = 1_000_000, 200
IN_ORDER, ANY_ORDER = Floor(0.15, words=">= 0.15 of bare Polars"), Floor(0.1, words=">= 0.1 of bare Polars")
CSV = Floor(3e5, of="ours", words=">= 0.3 M rows/s")
MAPPING = """
[columns]
eps_id = "ride"
t = "step"
obs = ["x", "v", "theta", "omega"]
actions = "push"
rewards = "reward"
terminateds = "fell"
"""


def rows(small: bool = False) -> list[Row]:
    steps = 2000 if small else STEPS
    with tempfile.TemporaryDirectory() as folder:
        mapping, source = Path(folder, "rides.toml"), Path(folder, "rides.parquet")
        mapping.write_text(MAPPING, encoding="utf-8")

        def one(kind: str, file: Path, read: Callable[[Path], pl.DataFrame], floor: Floor) -> Row:
            options = {"mapping": str(mapping), "overwrite": True}
            return paired(
                f"{kind} of {steps:,} rows, to {LENGTH}-step episodes",
                timed(lambda: convert([str(file)], f"{folder}/out", **options), steps),  # type: ignore[arg-type]
                timed(lambda: read(file).write_parquet(f"{folder}/copy.parquet", compression="zstd"), steps),
                unit="rows/s",
                rival_name=f"bare Polars: read, write with zstd ({versions('polars')})",
                floor=floor,
                pairs=1 if small else 5,
            )

        found = []
        for order, floor in (("in order", IN_ORDER), ("in any order", ANY_ORDER)):
            table(steps, shuffled=order == "in any order").write_parquet(source, compression="zstd")
            found.append(one(f"Parquet table, {order},", source, pl.read_parquet, floor))
        table(steps, shuffled=False).write_csv(source.with_suffix(".csv"))
        return [*found, one("CSV table, in order,", source.with_suffix(".csv"), pl.read_csv, CSV)]


def table(steps: int, *, shuffled: bool) -> pl.DataFrame:
    """CartPole-like steps: a text id, a step number, four floats, an action, a reward and an end flag."""
    rng = np.random.default_rng(0)
    row = rng.permutation(steps) if shuffled else np.arange(steps)
    columns = {"ride": (row // LENGTH).astype(str), "step": row % LENGTH}
    columns |= {name: rng.standard_normal(steps).astype(np.float32) for name in ("x", "v", "theta", "omega")}
    columns |= {"push": rng.integers(0, 2, steps), "reward": np.ones(steps), "fell": row % LENGTH == LENGTH - 1}
    return pl.DataFrame(columns)
