"""Arrow's threads have no Python file in hand: one that lets go of it while the interpreter ends aborts the process."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.formats.small_parquet import parquet_batches
from offline_cli.parquet.shards import arrow_file, threads_may_read

ROWS = 4_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    place = tmp_path / "a.parquet"
    pq.write_table(pa.table({f"c{i}": rng.normal(size=ROWS) for i in range(6)}), place, row_group_size=ROWS // 8)
    return place


class Watched(io.BytesIO):
    """Bytes that know which threads read them."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.readers: set[str] = set()

    def read(self, size: int | None = -1) -> bytes:
        self.readers.add(threading.current_thread().name)
        return super().read(size)


def test_a_file_of_this_machine_is_read_by_arrow_even_where_another_has_its_name_by_now(file: Path) -> None:
    with file.open("rb") as stream:
        file.unlink()
        file.write_bytes(b"another")
        with arrow_file(stream) as source:
            assert threads_may_read(source)
            assert sum(batch.num_rows for batch in parquet_batches(source, columns=None, rows=1000)) == ROWS
    assert source.closed


def test_any_other_file_is_read_by_the_thread_that_asks_for_it(file: Path) -> None:
    stream = Watched(file.read_bytes())
    with arrow_file(stream) as source:
        assert source is stream
        assert sum(batch.num_rows for batch in parquet_batches(source, columns=None, rows=1000, use_threads=True)) == ROWS
    assert stream.readers == {threading.current_thread().name}
