"""Leaves every reader half read, in a reference cycle, and has the garbage collector find it in another thread.

A process of its own runs this: a reader that joins a thread, or waits for a lock, in the collector would hang it. The other
thread holds the lock of `threading` that a thread takes when it begins and ends, as one in which the collector ran did.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq

from offline_cli import open_dataset
from offline_cli.converting.convert import convert
from offline_cli.converting.reading import read_episodes
from offline_cli.files.locations import open_location
from offline_cli.formats import parquet_files
from offline_cli.formats.tables import TableOptions
from offline_cli.formats.tables.files import TableFile
from offline_cli.formats.tables.mapping import CsvForm
from offline_cli.tally import Rejects

ROWS, LENGTH = 60_000, 50
SMALL = 420 << 20  # bytes, within which the rows of a table are sorted on disk
LIMIT = 60.0  # seconds, until all stacks are shown and the process ends
MAPPING = '[columns]\neps_id = "run"\nobs = ["a", "b"]\nactions = "act"\nrewards = "score"\nterminateds = "done"\n'
TABLES = {"parquet": "t.parquet", "arrow": "t.arrow", "csv": "t.csv", "gzip": "t.csv.gz", "json": "t.jsonl"}


def steps(rows: int = ROWS) -> pa.Table:
    """Rows of a table of steps."""
    rng, step = np.random.default_rng(0), np.arange(rows)
    numbers = {name: rng.normal(size=rows) for name in ("a", "b", "act", "score")}
    return pa.table({"run": step // LENGTH, **numbers, "done": step % LENGTH == LENGTH - 1})


def make(folder: Path) -> None:
    """Files of every kind, large enough that a reader that has given its first batch is not done."""
    table = steps()
    tables = folder / "tables"
    tables.mkdir()
    (folder / "map.toml").write_text(MAPPING)
    pq.write_table(table, tables / TABLES["parquet"], row_group_size=ROWS // 12)
    pyarrow.feather.write_feather(table, tables / TABLES["arrow"], chunksize=ROWS // 12, compression="zstd")
    pyarrow.csv.write_csv(table, tables / TABLES["csv"])
    with pa.CompressedOutputStream(str(tables / TABLES["gzip"]), "gzip") as packed:
        pyarrow.csv.write_csv(table, packed)
    (tables / TABLES["json"]).write_text("\n".join(json.dumps(row) for row in table.slice(0, 20_000).to_pylist()))
    rllib, lines = folder / "rllib", folder / "lines"
    rllib.mkdir()
    lines.mkdir()
    for number in range(30):
        part = table.slice(number * 2000, 2000)
        obs = pa.FixedSizeListArray.from_arrays(part["a"].combine_chunks().cast(pa.float32()), 1)
        named = {"eps_id": [str(run) for run in part["run"].to_pylist()], "obs": obs, "actions": part["act"]}
        flags = {"rewards": part["score"], "terminateds": part["done"], "truncateds": [False] * 2000}
        pq.write_table(pa.table({**named, **flags}), rllib / f"{number:02}.parquet")
    batch = {"type": "SampleBatch", "obs": [[0.5]] * LENGTH, "actions": [1] * LENGTH, "rewards": [1.0] * LENGTH}
    ends: dict[str, Any] = {"terminateds": [False] * (LENGTH - 1) + [True], "truncateds": [False] * LENGTH}
    rows = [{**batch, **ends, "eps_id": [number] * LENGTH} for number in range(2000)]
    (lines / "output.json").write_text("\n".join(map(json.dumps, rows)))
    for to in ("episodes", "columns"):
        convert(str(rllib), folder / to, to=to, max_rows_per_file=100 if to == "episodes" else 5000)
    convert(str(folder / "episodes"), folder / "packed" / "D")


def readers(folder: Path) -> dict[str, Callable[[], Iterator[Any]]]:
    """What makes each of them."""

    def episodes(source: str, **said: Any) -> Callable[[], Any]:
        return lambda: read_episodes(str(folder / source), **said)

    def table(name: str, memory_limit: int = 4 << 30) -> Callable[[], Any]:
        return episodes(f"tables/{name}", tables=TableOptions(str(folder / "map.toml"), memory_limit=memory_limit))

    def raw_chunks(kind: str, size: int) -> Callable[[], Iterator[Any]]:
        place = open_location(folder / "tables" / TABLES[kind])
        return lambda: TableFile(place, kind).chunks(None, CsvForm(), chunk_bytes=size, temp_dir=None)

    def rows_of_files(big: int) -> Iterator[Any]:
        parquet_files.BIG, parquet_files.ROWS = big, 500
        return parquet_files.chunks([open_location(file) for file in sorted((folder / "rllib").iterdir())], Rejects())

    return {
        "our episodes": episodes("episodes"),
        "our columns": episodes("columns"),
        "rllib-episodes": episodes("packed/D/data", from_="auto"),
        "rllib-columns": episodes("rllib"),
        "sample-batch": episodes("lines"),
        **{f"a table of {kind}": table(name) for kind, name in TABLES.items()},
        "a table sorted on disk": table(TABLES["csv"], SMALL),
        "chunks of Parquet, one ahead": raw_chunks("parquet", 16 << 20),
        "chunks of CSV": raw_chunks("csv", 1 << 18),
        "chunks of JSON": raw_chunks("json", 1 << 18),
        "files of Parquet": lambda: rows_of_files(64 << 20),
        "large files of Parquet": lambda: rows_of_files(1),
        "a dataset of episodes": lambda: open_dataset(str(folder / "episodes")).batches(),
        "a dataset of columns": lambda: open_dataset(str(folder / "columns")).batches(target_steps=1),
        "a dataset of columns, read ahead": lambda: replace(open_dataset(str(folder / "columns")), ahead=True).batches(
            target_steps=1
        ),
        "episodes of a dataset": lambda: iter(open_dataset(str(folder / "episodes"))),
    }


def half_read(make_reader: Callable[[], Iterator[Any]]) -> None:
    """Leave one in a cycle, which only the collector ends."""
    reader = make_reader()
    items = iter(reader)
    next(items)
    cycle: list[Any] = [reader, items]
    cycle.append(cycle)


def collect() -> None:
    """In a thread that is in the middle of `threading`'s own work."""
    with getattr(threading, "_shutdown_locks_lock", nullcontext()):
        gc.collect()


def main(folder: Path) -> None:
    """Show what was left, and what that left."""
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    made = readers(folder)
    gc.collect()
    gc.disable()
    for make_reader in made.values():
        half_read(make_reader)
    other = threading.Thread(target=collect)
    other.start()
    other.join()
    until = time.monotonic() + LIMIT / 4
    while threading.active_count() > 1 and time.monotonic() < until:  # threads end once they have done what they were given
        time.sleep(0.01)
    sys.stdout.write(json.dumps({"left": list(made), "threads": [thread.name for thread in threading.enumerate()]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
