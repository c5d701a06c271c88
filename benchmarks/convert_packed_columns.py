"""How fast do RLlib's packed columns become packed episodes? Rival: the script of RLlib's page, on a slice of the same rows.

Ours reads 20 copies of the recording, 716,340 rows, in four files; the rival reads one of the recording's own size, as a file:
its rate does not depend on the number of rows, and it would take minutes for all of them.

Small files, as RLlib writes them, are compared with bare pyarrow, which reads the same files and makes nothing of their cells.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.floors import Floor, bytes_floor
from benchmarks.harness import Missing, Row, missing, paired, paired_rates, timed
from benchmarks.made_data import packed_columns, packed_files
from benchmarks.recordings import recording
from benchmarks.rival_process import Rival
from benchmarks.targets import NO_TARGET, Target
from offline_cli.converting.reading import read_episodes
from offline_cli.episodes.codec import encode_batch
from offline_cli.tally import Tally

COPIES, FILES = 20, 4
TARGET = Target(150, words=">= 150x the documented script")
SMALL_COPIES = 2
SMALL_TARGET = Target(1 / 2.5, words="at most 2.5x the time")
RIVALS = {"ray.data": "RLlib's documented script", "pyarrow": "the same script's loop, without Ray Data and without writing"}


def rows() -> list[Row]:
    try:
        source = recording("rllib_columns_cartpole_expert")
    except Missing as error:
        return [missing("packed columns to packed episodes", error, unit="rows/s", target=TARGET)]
    with tempfile.TemporaryDirectory() as folder:
        files = packed_columns(source, Path(folder), copies=COPIES, files=FILES)
        (Path(folder) / "slice").mkdir()
        part = packed_columns(source, Path(folder) / "slice", copies=1, files=1)
        (Path(folder) / "small").mkdir()
        small = packed_files(source, Path(folder) / "small", copies=SMALL_COPIES)
        return [*(one(files, part, through, name) for through, name in RIVALS.items()), small_files(small)]


def one(files: list[str], part: list[str], through: str, name: str) -> Row:
    count = rows_in(files)
    question = f"packed columns to packed episodes, {count:,} rows in {len(files)} files"
    target = TARGET if through == "ray.data" else NO_TARGET
    try:
        with Rival("rllib_packed_columns.py", "rllib", files=part, through=through) as rival:
            return paired_rates(
                question,
                unit="rows/s",
                ours=timed(lambda: converted(files), count),
                rival=rival,
                rival_name=f"{name}, on {rows_in(part):,} of the rows ({rival.versions})",
                floor=floor(files),
                target=target,
                pairs=3,
            )
    except Missing as error:
        return missing(question, error, unit="rows/s", rival_name=name, target=target)


def small_files(files: list[str]) -> Row:
    count = rows_in(files)
    return paired(
        f"read packed columns, {count:,} rows in {len(files)} files",
        amount=count,
        unit="rows/s",
        ours=lambda: sum(batch.num_steps for batch in read_episodes(files)),
        rival=lambda: sum(pq.ParquetFile(file).read(use_threads=False).num_rows for file in files),
        rival_name=f"bare pyarrow.parquet on one thread (pyarrow {pa.__version__})",
        target=SMALL_TARGET,
    )


def rows_in(files: list[str]) -> int:
    return sum(pq.read_metadata(file).num_rows for file in files)


def converted(files: list[str]) -> int:
    return sum(len(encode_batch(batch, where="benchmark", tally=Tally())) for batch in read_episodes(files))


def floor(files: list[str]) -> Floor:
    """Every uncompressed byte of the columns copied once."""
    metadata = [pq.read_metadata(file) for file in files]
    count = sum(each.row_group(group).total_byte_size for each in metadata for group in range(each.num_row_groups))
    return bytes_floor(count / rows_in(files), "row")
