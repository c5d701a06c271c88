"""Rows that were set aside, as Parquet files under `quarantine/`: place, error code, reason and the row as it stood."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgpack
import pyarrow as pa

from offline_cli.storage.layout import QUARANTINE, QUARANTINE_PATH, quarantine_name
from offline_cli.storage.locations import Location
from offline_cli.storage.row_group_cuts import alone
from offline_cli.storage.shards import ShardWriter
from offline_cli.storage.temp_file import TempFile
from offline_cli.tally import Reject

__all__ = ["WaitingRejects", "next_number", "quarantine_files", "write_rejects"]

SCHEMA = pa.schema([(name, pa.string()) for name in ("where", "code", "reason")] + [("raw", pa.binary())])
COMPRESSION = "zstd"
HALVES = "surrogatepass"  # a place or an id may hold half a surrogate pair


def write_rejects(folder: Location, rejects: Sequence[Reject], number: int) -> Location:
    """Write `rejects` as file `number` of dataset `folder`. Raises StorageError."""
    folder.join(QUARANTINE).make_folder()
    target = folder.join(quarantine_name(number))
    columns = [[getattr(reject, name) for reject in rejects] for name in SCHEMA.names]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=SCHEMA)
    cuts = alone(table, COMPRESSION)
    writer = ShardWriter(target, SCHEMA, folder=folder, compression=COMPRESSION, is_plain=cuts.is_plain)
    try:
        writer.write(table, rows=cuts.rows)
        writer.commit()
    except BaseException:
        writer.discard()
        raise
    return target


def quarantine_files(folder: Location) -> dict[int, Location]:
    """Files of rows set aside in dataset `folder`, by number; copies in folders below are somebody's."""
    where = folder.join(QUARANTINE)
    matches = {file: QUARANTINE_PATH.fullmatch(f"{QUARANTINE}/{file.name}") for file in where.children()}
    return {int(match["number"]): file for file, match in matches.items() if match}


def next_number(folder: Location) -> int:
    """The number after that of the last file of rows set aside."""
    return max(quarantine_files(folder), default=-1) + 1


class WaitingRejects:
    """Rows set aside before there is a dataset to write them into, on disk: they may be as many as there are rows."""

    def __init__(self, temp_dir: str | None) -> None:
        """`temp_dir`: where the file is made; None: the system's place for temporary files. Nothing is made before `add`."""
        self._temp_dir = temp_dir
        self._file: TempFile | None = None
        self._sizes: list[int] = []

    def add(self, rejects: list[Reject]) -> None:
        """Raises StorageError."""
        if self._file is None:
            self._file = TempFile(self._temp_dir, holding="rows set aside").__enter__()
        rows = [(reject.where, reject.code, reject.reason, reject.raw) for reject in rejects]
        data = msgpack.packb(rows, unicode_errors=HALVES)
        self._file.append(data)
        self._sizes.append(len(data))

    def hand_to(self, keep: Callable[[list[Reject]], None]) -> None:
        """All of them, in their order, as many at a time as were added together; none is left."""
        offset = 0
        try:
            for size in self._sizes:
                assert self._file is not None
                rows = msgpack.unpackb(self._file.read(offset, size), unicode_errors=HALVES)
                keep([Reject(*row) for row in rows])
                offset += size
        finally:
            self.close()

    def close(self) -> None:
        """Leave none; more can be added afterwards."""
        if self._file is not None:
            self._file.__exit__(None, None, None)
        self._file, self._sizes = None, []
