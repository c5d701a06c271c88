"""Does the cost grow linearly? `convert` and `train-bc` on 1x, 4x and 16x the data, each in a process of its own.

The rate at 16x is put beside that at 1x, of the median of three runs in turn, and the peak memory at 16x beside the limit that
the run was given; that of `convert` beside that at 4x, too, as at 1x much of the data fits into the limit, and takes less.
Training keeps its data in memory unless it streams.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.convert_table import MAPPING
from benchmarks.convert_table import table as rides
from benchmarks.harness import Row
from benchmarks.measured_call import measured
from benchmarks.targets import Target

PART, LENGTH = 500_000, 200  # rows of one file, steps of an episode
SIZES = (1, 4, 16)
RUNS = 3
CONSTANT, FLAT = Target(0.85, words="constant rows/s within 15 %"), Target(0.85, words="flat memory within 15 %")
WITHIN = Target(1.0, words="peak memory within the limit")
CONVERTING, STREAMING = 256 << 20, 544 << 20  # bytes that a run may take, the program included
Figures = dict[int, tuple[float, float]]  # by size: rows/s, peak memory in bytes


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [*converting(Path(folder)), *training(Path(folder))]


def converting(folder: Path, part: int = PART, runs: int = RUNS) -> list[Row]:
    """Makes the files and datasets that `training` takes, too."""
    (folder / "rides.toml").write_text(MAPPING, encoding="utf-8")
    sources = [write_part(folder, number, part) for number in range(max(SIZES))]

    def run(size: int) -> dict[str, Any]:
        options = {"mapping": str(folder / "rides.toml"), "overwrite": True, "memory_limit": CONVERTING}
        return measured("convert", sources[:size], str(folder / f"D{size}"), **options)

    figures = measure(run, part, runs)
    what = "convert a table"
    rate, memory = rate_row(what, figures, part, runs), memory_row(what, figures, part, runs)
    return [rate, memory, limit_row(what, figures, CONVERTING, runs)]


def training(folder: Path, part: int = PART, runs: int = RUNS) -> list[Row]:
    """One epoch of a small network; reading counts."""

    def run(size: int, **options: Any) -> dict[str, Any]:
        data, out = str(folder / f"D{size}"), str(folder / "run")
        plain = {"epochs": 1, "batch_size": 1024, "device": "cpu", "overwrite": True, "config": small_network(folder)}
        return measured("train_bc", [data], out, **plain, **options)

    streamed = "train-bc --streaming, one epoch"
    in_memory = measure(run, part, runs)
    figures = measure(lambda size: run(size, streaming=True, memory_limit=STREAMING, temp_dir=str(folder)), part, runs)
    return [
        rate_row("train-bc, one epoch", in_memory, part, runs),
        rate_row(streamed, figures, part, runs),
        limit_row(streamed, figures, STREAMING, runs),
    ]


def small_network(folder: Path) -> str:
    file = folder / "config.toml"
    file.write_text("hidden = [64, 64]\n", encoding="utf-8")
    return str(file)


def write_part(folder: Path, number: int, part: int) -> str:
    """A file with `part` rows whose rides have ids of their own."""
    made = rides(LENGTH, shuffled=False).slice(0, part)
    ids = pa.array([f"{number}-{ride}" for ride in made["ride"].to_pylist()])
    file = folder / f"rides-{number:02d}.parquet"
    pq.write_table(made.set_column(0, "ride", ids), file, compression="zstd")
    return str(file)


def measure(run: Callable[[int], dict[str, Any]], part: int, runs: int) -> Figures:
    """Every size in turn, `runs` times."""
    seen: dict[int, list[dict[str, Any]]] = {size: [] for size in SIZES}
    for _ in range(runs):
        for size in SIZES:
            seen[size].append(run(size))
    return {
        size: (
            statistics.median(size * part / one["seconds"] for one in done),
            statistics.median(one["peak"] for one in done),
        )
        for size, done in seen.items()
    }


def rate_row(what: str, figures: Figures, part: int, runs: int) -> Row:
    mine, theirs = figures[16][0], figures[1][0]
    between = f"at 4x: {figures[4][0]:,.4g} rows/s"
    name = f"the same at 1x, {part:,} rows"
    return Row(f"{what}, at 16x the data", "rows/s", mine, theirs, mine / theirs, name, between, runs, target=CONSTANT)


def memory_row(what: str, figures: Figures, part: int, runs: int) -> Row:
    mine, theirs = (figures[size][1] / 2**20 for size in (16, 4))
    name = f"the same at 4x, {4 * part:,} rows"
    return Row(f"{what}: peak memory at 16x the data", "MB", mine, theirs, theirs / mine, name, "", runs, target=FLAT)


def limit_row(what: str, figures: Figures, limit: int, runs: int) -> Row:
    mine, allowed = figures[16][1] / 2**20, limit / 2**20
    smaller = f"at 1x {figures[1][1] / 2**20:,.0f} MB, at 4x {figures[4][1] / 2**20:,.0f} MB"
    question = f"{what}: peak memory at 16x the data"
    return Row(question, "MB", mine, allowed, allowed / mine, "the limit", smaller, runs, target=WITHIN)
