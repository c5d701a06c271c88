"""How fast does a plain Parquet table become episodes? Rival: Polars reads it and writes it again, compressed alike."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.floors import bytes_floor
from benchmarks.harness import Row, paired, versions
from benchmarks.targets import NO_TARGET, Target
from offline_cli.converting.convert import convert

STEPS = 1_000_000
TARGETS = {
    200: Target(1 / 4, words="<= 4x bare Polars"),
    20: Target(1 / 10, words="<= 10x bare Polars"),
}
MAPPING = """
[columns]
eps_id = "ride"
t = "step"
obs = ["x", "v", "theta", "omega"]
actions = "push"
rewards = "reward"
terminateds = "fell"
"""


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        return [one(Path(scratch), length, shuffled=shuffled) for length in (200, 20) for shuffled in (False, True)]


def one(scratch: Path, length: int, *, shuffled: bool) -> Row:
    source, mapping = scratch / "rides.parquet", scratch / "rides.toml"
    made = table(length, shuffled=shuffled)
    pq.write_table(made, source, compression="zstd")
    rows_bytes = made.nbytes / STEPS
    mapping.write_text(MAPPING, encoding="utf-8")
    order = "in any order" if shuffled else "in order"
    return paired(
        f"Parquet table of 1 M rows, {order}, to {length}-step episodes",
        amount=STEPS,
        unit="rows/s",
        ours=lambda: convert([str(source)], str(scratch / "out"), mapping=str(mapping), overwrite=True),
        rival=lambda: pl.read_parquet(source).write_parquet(scratch / "copy.parquet", compression="zstd"),
        rival_name=f"bare Polars: read, write with zstd ({versions('polars')})",
        floor=bytes_floor(2 * rows_bytes, "row"),
        target=NO_TARGET if shuffled else TARGETS[length],  # Polars copies in the order it finds
    )


def table(length: int, *, shuffled: bool) -> pa.Table:
    """CartPole-like steps: a text id, a step number, four floats, an action, a reward and an end flag."""
    rng = np.random.default_rng(0)
    row = rng.permutation(STEPS) if shuffled else np.arange(STEPS)
    columns = {"ride": pa.array(row // length).cast(pa.string()), "step": row % length}
    columns |= {name: rng.standard_normal(STEPS).astype(np.float32) for name in ("x", "v", "theta", "omega")}
    columns |= {"push": rng.integers(0, 2, STEPS), "reward": np.ones(STEPS), "fell": row % length == length - 1}
    return pa.table(columns)
