"""A Parquet file read in bunches of row groups has the rows that it has, in batches of bounded size."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.formats.small_parquet import parquet_batches

TABLE = pa.table(
    {
        "t": range(1000),
        "obs.x": [float(i) for i in range(1000)],
        "obs": [{"x": i, "name": str(i) * 30} for i in range(1000)],
    }
)


class Counted(io.BytesIO):
    """A file that remembers how many bytes were read of it."""

    read_bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.read_bytes += len(data)
        return data


def parquet(group: int) -> Counted:
    sink = Counted()
    pq.write_table(TABLE, sink, row_group_size=group, compression="none", use_dictionary=False)
    sink.seek(0)
    return sink


@pytest.mark.parametrize("group", [1, 7, 300, 1000])
@pytest.mark.parametrize("at_once", [1, 5000, 1 << 20])
def test_all_rows_come_in_order(group: int, at_once: int) -> None:
    for columns in (None, ["t"], ["obs"], ["obs.x", "t"], []):
        batches = list(parquet_batches(parquet(group), columns=columns, rows=64, at_once=at_once))
        assert max(batch.num_rows for batch in batches) <= 64
        assert sum(map(len, batches)) == 1000
        if columns != []:
            names = TABLE.column_names if columns is None else columns
            assert pa.Table.from_batches(batches).select(names).equals(TABLE.select(names))
