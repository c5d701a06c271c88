"""Faults in files that were made: rows, lines or episodes that cannot be read, and which episodes that costs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from made_recordings import write_table

__all__ = ["lost_beside", "spoil_cells", "spoil_lines"]


def spoil_cells(path: Path, rows: Collection[int], *, block_rows: int | None = None) -> None:
    """Make a value of these rows one that cannot be read; whose rows they are can still be read."""
    if path.suffix == ".csv":
        _change(
            path,
            rows,
            header=1,
            new=lambda line: b"broken,".join([*line.rsplit(b",", 2)[:1], b",".join(line.rsplit(b",", 2)[1:])]),
        )
    elif path.suffix == ".jsonl":
        _change(path, rows, header=0, new=lambda line: orjson.dumps({**orjson.loads(line), "rewards": "broken"}) + b"\n")
    else:
        table = pa.ipc.open_file(path).read_all() if path.suffix == ".arrow" else pq.read_table(path)
        bad = np.zeros(table.num_rows, np.bool_)
        bad[list(rows)] = True
        name = "item" if "item" in table.column_names else "actions"
        value = pa.scalar(b"no episode", pa.binary()) if name == "item" else pa.scalar(None, pa.int64())
        column = pc.if_else(pa.array(bad), value, table[name].combine_chunks())
        write_table(path, table.set_column(table.column_names.index(name), name, column), block_rows)


def spoil_lines(path: Path, rows: Collection[int]) -> None:
    """Make these rows ones that their file's own parser cannot read: short ones, or lines cut in the middle."""
    header = int(path.suffix == ".csv")
    _change(path, rows, header=header, new=lambda line: b"1,2\n" if header else line[: len(line) // 2] + b"\n")


def _change(path: Path, rows: Collection[int], *, header: int, new: object) -> None:
    assert callable(new)
    lines = path.read_bytes().splitlines(keepends=True)
    for row in rows:
        lines[row + header] = new(lines[row + header])
    path.write_bytes(b"".join(lines))


def lost_beside(rows: Collection[int], count: int, length: int) -> set[int]:
    """The episodes, by number, of rows beside those that do not say whose they are, unless they ended before these."""
    lost = set()
    for row in rows:
        before = next((other for other in range(row - 1, -1, -1) if other not in rows), None)
        after = next((other for other in range(row + 1, count) if other not in rows), None)
        if before is not None and (before + 1) % length:
            lost.add(before // length)
        if after is not None:
            lost.add(after // length)
        lost.add(row // length)
    return lost
