"""Footers that would end the process: each is an error, and what an honest one says is what Arrow reads in it."""

from __future__ import annotations

import gc
import io
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.files.locations import open_location
from offline_cli.parquet.arrow_reading import check_footer
from offline_cli.parquet.chunk_statistics import ChunkStatistics, chunk_statistics
from offline_cli.parquet.shards import opened

REPOSITORY = Path(__file__).resolve().parents[2]


def stored(table: pa.Table, **options: Any) -> io.BytesIO:
    stream = io.BytesIO()
    pq.write_table(table, stream, **options)
    return stream


TABLE = pa.table(
    {
        "whole": pa.array([3, None, -7, 5], pa.int32()),
        "text": pa.array(["b", "a", "ü", "c"]),
        "list": pa.array([[1.5], [], None, [2.0, 3.0]]),
        "struct": pa.array([{"x": True, "y": 1.0}] * 4),
    }
)


@pytest.mark.parametrize("table", [TABLE, TABLE.slice(0, 0), pa.table({})], ids=["rows", "no rows", "no columns"])
def test_a_footer_as_arrow_writes_it_is_fine(table: pa.Table) -> None:
    check_footer(pq.ParquetFile(stored(table, row_group_size=2)).metadata)


def test_a_shard_whose_footer_was_checked_is_let_go_of(tmp_path: Path) -> None:
    path = tmp_path / "shard.parquet"
    path.write_bytes(stored(TABLE).getvalue())
    with opened(open_location(str(path))) as shard:
        alive = weakref.ref(shard)
        del shard
    gc.collect()
    assert alive() is None


def test_what_is_said_of_each_chunk_is_what_arrow_reads_of_it() -> None:
    stream = stored(TABLE, row_group_size=3)
    metadata = pq.ParquetFile(stream).metadata
    found = chunk_statistics(stream, metadata)
    assert len(found) == 2
    for number, chunks in enumerate(found):
        arrow = [metadata.row_group(number).column(i).statistics for i in range(metadata.num_columns)]
        assert [said.null_count for said in chunks] == [known.null_count for known in arrow]
    assert found[0][0] == ChunkStatistics(1, (-7).to_bytes(4, "little", signed=True), (3).to_bytes(4, "little"))
    assert found[0][1] == ChunkStatistics(0, b"a", "ü".encode())


def test_a_footer_without_statistics_says_nothing() -> None:
    stream = stored(TABLE, write_statistics=False)
    assert chunk_statistics(stream, pq.ParquetFile(stream).metadata)[0] == [ChunkStatistics(None, None, None)] * 5


def test_a_footer_that_says_less_here_than_to_arrow_is_refused() -> None:
    more = pq.ParquetFile(stored(TABLE, row_group_size=1)).metadata
    with pytest.raises(pa.ArrowInvalid, match="not one chunk for each column in each row group"):
        chunk_statistics(stored(TABLE), more)


@pytest.mark.parametrize(
    "footer", [b"", b"\x49\x19", b"\x19" * 500, b"\x1c" * 500, b"\x18\xff\xff\xff\x7f", b"\x16" + b"\xff" * 20]
)
def test_bytes_that_are_no_footer_are_refused(footer: bytes) -> None:
    stream = io.BytesIO(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(pa.ArrowInvalid, match="the footer cannot be read"):
        chunk_statistics(stream, pq.ParquetFile(stored(TABLE)).metadata)


EVERY_BYTE = """
    import io, sys
    import pyarrow as pa, pyarrow.parquet as pq
    from offline_cli.parquet.arrow_reading import _check_slowly, check_footer
    from offline_cli.parquet.chunk_statistics import chunk_statistics

    def fault_of(check, metadata):
        try:
            check(metadata)
        except (pa.ArrowException, OSError) as error:
            return str(error)

    def read(data):  # without Arrow's threads, which may outlive the interpreter
        pq.ParquetFile(io.BytesIO(data), pre_buffer=False).read(use_threads=False)

    stream = io.BytesIO()
    pq.write_table(pa.table({"a": [1, None], "b": ["x", "y"]}), stream, row_group_size=int(sys.argv[1]))
    whole = stream.getvalue()
    length = int.from_bytes(whole[-8:-4], "little")
    sound = broken = 0
    for place in range(len(whole) - 8 - length, len(whole) - 8):
        for change in (1, 2, 4, 8, 16, 32, 64, 128):
            data = bytearray(whole)
            data[place] ^= change
            try:
                metadata = pq.ParquetFile(io.BytesIO(data)).metadata
                fault, slow = fault_of(check_footer, metadata), fault_of(_check_slowly, metadata)
                is_read = fault_of(read, data) is None
                assert fault == slow or (slow is None and not is_read), (place, change, fault, slow)
                if fault:
                    raise pa.ArrowInvalid(fault)
                chunk_statistics(io.BytesIO(data), metadata)
            except (pa.ArrowException, OSError, UnicodeDecodeError):
                broken += 1
                continue
            for group in range(metadata.num_row_groups):
                for column in range(metadata.num_columns):
                    metadata.row_group(group).column(column)  # aborts the process where it cannot be
            sound += 1
    print(sound, broken)
"""


@pytest.mark.integration
@pytest.mark.parametrize("rows_of_a_group", [2, 1], ids=["one row group", "two row groups"])
def test_whichever_bit_of_a_footer_changes_it_is_refused_or_can_be_looked_at(rows_of_a_group: int) -> None:
    words = [sys.executable, "-c", textwrap.dedent(EVERY_BYTE), str(rows_of_a_group)]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    sound, broken = map(int, done.stdout.split())
    assert min(sound, broken) > 500
