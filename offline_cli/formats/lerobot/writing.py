"""The files of a LeRobot dataset of layout v3.0, in the order in which they are written; `meta/info.json` is the last.

* `FrameFiles`: `data/chunk-000/file-000.parquet`, a row group for each episode, a new file where one is full;
* `EpisodeFile`: `meta/episodes/chunk-000/file-000.parquet`, a row for each episode, with its statistics;
* `tasks_file`: `meta/tasks.parquet`, whose index is the text, as pandas reads it.

Quantiles of all episodes are means of those of each, weighted by their lengths, as LeRobot's own `aggregate_stats` makes them.
Source: lerobot 0.4.4, `datasets/compute_stats.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from offline_cli.storage.locations import Location
from offline_cli.storage.staging import StagedFile

__all__ = ["CHUNKS", "STATISTICS", "EpisodeFile", "FrameFiles", "ParquetOutput", "Totals", "statistics_of", "tasks_file"]

CHUNKS: Final = 1000  # files in a folder
BUFFERED: Final = 256  # episodes written at a time
QUANTILES: Final = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
STATISTICS: Final = ("min", "max", "mean", "std", "count", *QUANTILES)
ARROW_TYPES: Final = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}

Statistics = dict[str, NDArray[Any]]


def statistics_of(values: NDArray[Any]) -> Statistics:
    """Of (T, ...) values of one feature in one episode: arrays (D,), D the size of the last dimension."""
    rows = values.reshape(len(values), -1) if values.ndim < 3 else values.reshape(-1, values.shape[-1])
    ordered = np.sort(rows, axis=0)
    wide = ordered.astype(np.float64)
    ends = wide if values.dtype == np.uint64 else ordered  # LeRobot has no whole numbers beyond int64 there
    found = {
        "min": ends[0],
        "max": ends[-1],
        "mean": wide.mean(axis=0),
        "std": wide.std(axis=0),
        "count": np.array([len(values)]),
    }
    for name, share in QUANTILES.items():
        at = share * (len(wide) - 1)
        below = int(at)
        above = min(below + 1, len(wide) - 1)
        found[name] = wide[below] + (wide[above] - wide[below]) * (at - below)
    return found


class Totals:
    """Statistics of all episodes, added one by one."""

    def __init__(self) -> None:
        self._of: dict[str, Statistics] = {}

    def add(self, feature: str, found: Statistics) -> None:
        """The statistics of another episode."""
        count = float(found["count"][0])
        sums = {name: found[name] * count for name in ("mean", *QUANTILES)}
        sums |= {"squares": (found["std"] ** 2 + found["mean"] ** 2) * count, "count": np.array([count])}
        known = self._of.get(feature)
        if known is None:
            self._of[feature] = {"min": found["min"], "max": found["max"], **sums}
            return
        known["min"], known["max"] = np.minimum(known["min"], found["min"]), np.maximum(known["max"], found["max"])
        for name, value in sums.items():
            known[name] = known[name] + value

    def as_json(self) -> Mapping[str, Mapping[str, Any]]:
        """What `meta/stats.json` holds."""
        return {feature: self._json(known) for feature, known in self._of.items()}

    @staticmethod
    def _json(known: Statistics) -> Mapping[str, Any]:
        count, mean = known["count"], known["mean"] / known["count"]
        std = np.sqrt(np.maximum(known["squares"] / count - mean**2, 0.0))
        found: dict[str, Any] = {"min": known["min"], "max": known["max"], "mean": mean, "std": std}
        found |= {"count": count.astype(np.int64)} | {name: known[name] / count for name in QUANTILES}
        return {name: value.tolist() for name, value in found.items()}


class ParquetOutput:
    """One Parquet file that gets its name when it is whole."""

    def __init__(self, target: Location, folder: Location, schema: pa.Schema, compression: str) -> None:
        above = target.parent()
        if above is not None:
            above.make_folder()
        self._staged = StagedFile(target, folder=folder)
        self._buffered = pa.BufferedOutputStream(pa.PythonFile(self._staged, mode="w"), 1 << 20)  # row groups have small pages
        plain = [one.name for one in schema if not pa.types.is_nested(one.type) and not pa.types.is_floating(one.type)]
        self._writer = pq.ParquetWriter(self._buffered, schema, compression=compression, use_dictionary=plain)

    def write(self, table: pa.Table) -> None:
        """A row group."""
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def commit(self) -> int:
        """Give the file its name; its bytes."""
        self._writer.close()
        self._buffered.close()
        self._staged.commit()
        return self._staged.bytes

    def discard(self) -> None:
        """Leave nothing of it."""
        self._staged.discard()


class FrameFiles:
    """Rows of episodes."""

    def __init__(self, folder: Location, compression: str, max_bytes: int, max_rows: int | None) -> None:
        """`max_bytes`: of a file, before compression."""
        self.folder, self.compression, self.max_bytes, self.max_rows = folder, compression, max_bytes, max_rows
        self.files: list[Location] = []  # that have been begun
        self.bytes = 0  # of those that are whole
        self._open: ParquetOutput | None = None
        self._size = self._rows = 0  # of the open one

    def write(self, episode: pa.Table) -> int:
        """One episode; the number of the file that has it."""
        rows = self._rows + episode.num_rows
        if self._size + episode.nbytes > self.max_bytes or (self.max_rows is not None and rows > self.max_rows):
            self.close()
        if self._open is None:
            target = self.folder.join(f"data/{_file_name(len(self.files))}")
            self.files.append(target)
            self._open, self._size, self._rows = ParquetOutput(target, self.folder, episode.schema, self.compression), 0, 0
        self._open.write(episode)
        self._size, self._rows = self._size + episode.nbytes, self._rows + episode.num_rows
        return len(self.files) - 1

    def close(self) -> None:
        """Give the open file its name."""
        if self._open is not None:
            self.bytes += self._open.commit()
            self._open = None

    def discard(self) -> None:
        """Leave no open file."""
        if self._open is not None:
            self._open.discard()
            self._open = None


def _file_name(number: int) -> str:
    """`chunk-000/file-000.parquet` of a file."""
    return f"chunk-{number // CHUNKS:03d}/file-{number % CHUNKS:03d}.parquet"


class EpisodeFile:
    """Records of episodes; those of the first ones decide which further fields there are, and of which type."""

    def __init__(self, folder: Location) -> None:
        self.folder, self.target = folder, folder.join(f"meta/episodes/{_file_name(0)}")
        self._kinds: dict[str, type] = {}  # of further fields
        self._schema: pa.Schema | None = None
        self._open: ParquetOutput | None = None
        self._rows: list[dict[str, Any]] = []

    def write(self, record: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
        """`fields`: what else is known of the episode; whether all of it has a column."""
        kept = {name: value for name, value in fields.items() if name not in record and self._takes(name, value)}
        self._rows.append({**record, **kept})
        if len(self._rows) >= BUFFERED:
            self._flush()
        return len(kept) == len(fields)

    def _takes(self, name: str, value: Any) -> bool:
        if self._schema is None and type(value) in ARROW_TYPES:
            self._kinds.setdefault(name, type(value))
        fits = not isinstance(value, int) or -(2**63) <= value < 2**63
        return self._kinds.get(name) is type(value) and fits

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._schema is None:
            own = [name for name in self._rows[0] if name not in self._kinds]
            known = pa.Table.from_pylist([{name: self._rows[0][name] for name in own}]).schema
            further = [pa.field(name, ARROW_TYPES[kind]) for name, kind in self._kinds.items()]
            self._schema = pa.schema([*(field.with_type(_wide(field.type)) for field in known), *further])
            self._open = ParquetOutput(self.target, self.folder, self._schema, "snappy")
        assert self._open is not None  # with the schema
        self._open.write(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []

    def close(self) -> int:
        """Give the file its name; its bytes."""
        self._flush()
        size = 0 if self._open is None else self._open.commit()
        self._open = None
        return size

    def discard(self) -> None:
        """Leave no open file."""
        if self._open is not None:
            self._open.discard()
            self._open = None


def _wide(kind: pa.DataType) -> pa.DataType:
    """The type of a column whose first value may be an empty list."""
    return pa.list_(pa.string()) if kind == pa.list_(pa.null()) else kind


def tasks_file(tasks: Mapping[str, int]) -> bytes:
    """The tasks by their numbers, as a data frame indexed by text."""
    column = {"metadata": None, "name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"}
    text = {"metadata": None, "pandas_type": "unicode", "numpy_type": "object"}
    names = {**text, "name": None, "field_name": None, "metadata": {"encoding": "UTF-8"}}
    index = {**text, "name": "task", "field_name": "task"}
    frame = {"index_columns": ["task"], "column_indexes": [names], "columns": [column, index], "pandas_version": "2.0.0"}
    frame["creator"] = {"library": "pyarrow", "version": pa.__version__}
    numbers, texts = pa.array(list(tasks.values()), pa.int64()), pa.array(list(tasks), pa.string())
    table = pa.table({"task_index": numbers, "task": texts}).replace_schema_metadata({b"pandas": json.dumps(frame).encode()})
    output = pa.BufferOutputStream()
    pq.write_table(table, output)
    return bytes(output.getvalue().to_pybytes())
