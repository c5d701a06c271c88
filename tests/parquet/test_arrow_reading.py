"""Arrow's threads have no Python file in hand: one that lets go of it while the interpreter ends aborts the process."""

from __future__ import annotations

import gc
import io
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.formats.small_parquet import parquet_batches
from offline_cli.formats.tables import csv_files
from offline_cli.formats.tables.csv_files import csv_batches
from offline_cli.formats.tables.mapping import CsvForm
from offline_cli.parquet import arrow_reading
from offline_cli.parquet.arrow_reading import arrow_file, check_footer, threads_may_read
from offline_cli.scopes import Scope

ROWS = 40_000


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


def test_a_file_of_this_machine_is_read_by_arrow_itself(file: Path) -> None:
    with file.open("rb") as stream, arrow_file(stream) as source:
        assert threads_may_read(source)
        assert sum(batch.num_rows for batch in parquet_batches(source, columns=None, rows=1000)) == ROWS
    assert source.closed


def test_it_is_the_file_that_is_open_even_where_another_has_its_name(file: Path) -> None:
    with file.open("rb") as stream:
        file.unlink()
        file.write_bytes(b"another")
        with arrow_file(stream) as source:
            assert pq.read_table(source).num_rows == ROWS


def test_any_other_file_is_read_by_the_thread_that_asks_for_it(file: Path) -> None:
    stream = Watched(file.read_bytes())
    with arrow_file(stream) as source:
        assert source is stream
        assert sum(batch.num_rows for batch in parquet_batches(source, columns=None, rows=1000, use_threads=True)) == ROWS
    assert stream.readers == {threading.current_thread().name}


def test_where_no_file_can_be_cut_a_footer_is_looked_at_and_let_go_of(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ReferenceType[Any]] = []

    class Slow(arrow_reading._NoBytes):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(weakref.ref(self))

        def read(self, size: int = -1) -> bytes:
            time.sleep(0.02)
            return super().read(size)

    monkeypatch.setattr(arrow_reading, "_NoBytes", Slow)
    monkeypatch.setattr(arrow_reading, "_cut_file", lambda: None)  # as where no such file can be made
    check_footer(pq.read_metadata(file))
    gc.collect()
    assert [one() for one in made] == [None]


def test_a_csv_parser_that_is_closed_halfway_reads_no_more() -> None:
    class Slow(io.BytesIO):
        reading = 0

        def read(self, size: int | None = -1) -> bytes:
            self.reading += 1
            time.sleep(0.02)
            try:
                return super().read(size)
            finally:
                self.reading -= 1

    stream = Slow(b"a,b\n" + b"1,2\n" * 2_000_000)
    with Scope() as scope:
        batches = csv_batches(stream, "test.csv", CsvForm(), ["a", "b"], None, 1 << 18, scope)
        next(batches)
    at = stream.tell()
    assert stream.reading == 0
    time.sleep(0.1)
    assert stream.tell() == at < len(stream.getvalue())


def test_a_csv_parser_whose_stream_has_failed_is_let_go_of_while_the_error_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 1 << 18:
                raise OSError("it breaks off")
            return super().read(size)

    left: list[Any] = []

    def closed(file: weakref.ReferenceType[Any]) -> None:
        arrow_reading.let_go(file)
        left.append(file())

    monkeypatch.setattr(csv_files, "let_go", closed)
    with Scope() as scope, pytest.raises(OSError, match="it breaks off") as caught:
        list(csv_batches(Broken(b"a,b\n" + b"1,2\n" * 200_000), "test.csv", CsvForm(), ["a", "b"], None, 1 << 18, scope))
    assert caught.tb is not None  # which keeps its frames, and those that called them
    assert left == [None]
