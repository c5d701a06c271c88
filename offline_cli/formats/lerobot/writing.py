"""The files of a LeRobot dataset of layout v3.0, in the order in which they are written; `meta/info.json` is the last.

* `FrameFiles`: `data/chunk-000/file-000.parquet`, a row group for each episode, a new file where one is full;
* `EpisodeFile`: `meta/episodes/chunk-000/file-000.parquet`, a row for each episode, some hundreds at a time;
* `write_tasks`: `meta/tasks.parquet`, whose index is the text, as pandas reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from offline_cli.storage.locations import Location
from offline_cli.storage.staging import StagedFile, write_whole

__all__ = ["CHUNKS", "EpisodeFile", "FrameFiles", "file_name", "write_tasks"]

CHUNKS: Final = 1000  # files in a folder
BUFFERED: Final = 256  # episodes written at a time
BUFFER: Final = 1 << 20  # bytes


def file_name(number: int) -> str:
    """`chunk-000/file-000.parquet` of a file."""
    return f"chunk-{number // CHUNKS:03d}/file-{number % CHUNKS:03d}.parquet"


@dataclass(slots=True)
class _Parquet:
    """One file that is being written."""

    staged: StagedFile
    buffered: pa.BufferedOutputStream  # a row group has many small pages
    writer: pq.ParquetWriter

    @classmethod
    def opened(cls, target: Location, folder: Location, schema: pa.Schema, compression: str) -> _Parquet:
        above = target.parent()
        if above is not None:
            above.make_folder()
        staged = StagedFile(target, folder=folder)
        buffered = pa.BufferedOutputStream(pa.PythonFile(staged, mode="w"), BUFFER)
        whole = [field.name for field in schema if not pa.types.is_nested(field.type) and not pa.types.is_floating(field.type)]
        return cls(staged, buffered, pq.ParquetWriter(buffered, schema, compression=compression, use_dictionary=whole))

    def committed(self) -> int:
        """Its bytes, once it has its name."""
        self.writer.close()
        self.buffered.close()
        self.staged.commit()
        return self.staged.bytes

    def discard(self) -> None:
        self.staged.discard()


@dataclass(slots=True)
class FrameFiles:
    """Rows of episodes."""

    folder: Location
    compression: str
    max_bytes: int  # of a file, before compression
    max_rows: int | None
    bytes: int = 0  # of the files that are whole
    files: list[Location] = field(default_factory=list)  # that have been begun
    _open: _Parquet | None = None
    _size: int = 0
    _rows: int = 0

    def write(self, episode: pa.Table) -> int:
        """One episode; the number of the file that has it."""
        size = episode.nbytes
        full = self._size + size > self.max_bytes or (
            self.max_rows is not None and self._rows + episode.num_rows > self.max_rows
        )
        if self._open is not None and full:
            self.close()
        if self._open is None:
            target = self.folder.join(f"data/{file_name(len(self.files))}")
            self.files.append(target)
            self._open, self._size, self._rows = _Parquet.opened(target, self.folder, episode.schema, self.compression), 0, 0
        self._open.writer.write_table(episode, row_group_size=max(1, episode.num_rows))
        self._size, self._rows = self._size + size, self._rows + episode.num_rows
        return len(self.files) - 1

    def close(self) -> None:
        """Give the open file its name."""
        if self._open is not None:
            self.bytes += self._open.committed()
            self._open = None

    def discard(self) -> None:
        """Leave no open file."""
        if self._open is not None:
            self._open.discard()
            self._open = None


@dataclass(slots=True)
class EpisodeFile:
    """Records of episodes; the first ones decide which fields there are, and their types."""

    folder: Location
    _schema: pa.Schema | None = None
    _open: _Parquet | None = None
    _rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def target(self) -> Location:
        """Where they go."""
        return self.folder.join(f"meta/episodes/{file_name(0)}")

    def write(self, record: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
        """`fields`: what else is known of the episode; whether all of it has a column."""
        kept = fields if self._schema is None else {name: one for name, one in fields.items() if _fits(self._schema, name, one)}
        self._rows.append({**record, **{name: value for name, value in kept.items() if name not in record}})
        if len(self._rows) >= BUFFERED:
            self._flush()
        return len(kept) == len(fields)

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._schema is None:
            self._schema = pa.Table.from_pylist(_same_keys(self._rows)).schema
            self._open = _Parquet.opened(self.target, self.folder, self._schema, "snappy")
        assert self._open is not None  # with the schema
        self._open.writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []

    def close(self) -> int:
        """Give the file its name; its bytes."""
        self._flush()
        size = 0 if self._open is None else self._open.committed()
        self._open = None
        return size

    def discard(self) -> None:
        """Leave no open file."""
        if self._open is not None:
            self._open.discard()
            self._open = None


def _fits(schema: pa.Schema, name: str, value: Any) -> bool:
    if name not in schema.names:
        return False
    kind = schema.field(name).type
    return bool(pa.infer_type([value]) == kind)


def _same_keys(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def write_tasks(folder: Location, tasks: Mapping[str, int]) -> int:
    """The tasks by their numbers, as a data frame indexed by text; bytes."""
    column = {"metadata": None, "name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"}
    index = {"metadata": None, "name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object"}
    names = {
        "name": None,
        "field_name": None,
        "pandas_type": "unicode",
        "numpy_type": "object",
        "metadata": {"encoding": "UTF-8"},
    }
    frame = {"index_columns": ["task"], "column_indexes": [names], "columns": [column, index], "pandas_version": "2.0.0"}
    frame["creator"] = {"library": "pyarrow", "version": pa.__version__}
    numbers, texts = pa.array(list(tasks.values()), pa.int64()), pa.array(list(tasks), pa.string())
    table = pa.table({"task_index": numbers, "task": texts}).replace_schema_metadata({b"pandas": json.dumps(frame).encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data = sink.getvalue().to_pybytes()
    write_whole(folder.join("meta/tasks.parquet"), data, folder=folder)
    return len(data)
