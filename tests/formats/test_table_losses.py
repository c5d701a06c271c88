"""Nothing of a table is lost or guessed in silence: files of unequal columns, structs, flags, one name twice, damage."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.errors import BadData, BadEpisode, BadMapping

Read = Callable[..., Any]
Write = Callable[..., Path]

COLUMNS = '[columns]\neps_id = "e"\nt = "t"\nobs = ["x"]\nactions = "a"\n'


def test_an_optional_column_that_one_file_lacks_is_refused_and_not_left_out_of_all(
    read_table: Read, write_lines: Write, tmp_path: Path
) -> None:
    write_lines("logs-1.csv", "e,t,x,a,r", "A,0,0.5,1,7")
    write_lines("logs-2.csv", "e,t,x,a", "B,0,0.5,1")
    with pytest.raises(BadMapping):
        read_table(f"{tmp_path}/logs-*.csv", f'optional = ["rewards"]\n{COLUMNS}rewards = "r"\n')


def test_a_column_that_is_not_mapped_and_one_file_lacks_is_counted_as_dropped(
    read_table: Read, write_lines: Write, tmp_path: Path
) -> None:
    write_lines("logs-1.csv", "e,t,x,a", "B,0,0.5,1")
    write_lines("logs-2.csv", "e,t,x,a,speed", "A,0,0.5,1,7")
    stream, _ = read_table(f"{tmp_path}/logs-*.csv", COLUMNS)
    assert stream.tally.assumptions["dropped-column"] == 1


@pytest.mark.parametrize("values", [[0, 2], [0.0, 0.5], [0, -1]])
def test_a_flag_that_is_neither_0_nor_1_is_a_bad_row(values: list[float], read_table: Read, tmp_path: Path) -> None:
    pq.write_table(pa.table({"e": [1, 1], "t": [0, 1], "x": [0.1, 0.2], "a": [0, 1], "d": values}), tmp_path / "a.parquet")
    with pytest.raises(BadEpisode, match=f"column d holds {values[1]}, not a flag: 0 or 1, true or false, yes or no"):
        read_table(tmp_path / "a.parquet", f'{COLUMNS}dones = "d"\n')


def test_an_order_beyond_signed_integers_is_a_bad_row_and_not_a_negative_number(read_table: Read, tmp_path: Path) -> None:
    order = pa.array([2**64 - 1, 0], pa.uint64())
    pq.write_table(pa.table({"e": [1, 1], "t": order, "x": [0.1, 0.2], "a": [0, 1]}), tmp_path / "a.parquet")
    with pytest.raises(BadEpisode):
        read_table(tmp_path / "a.parquet", COLUMNS)


def test_json_ids_of_64_bits_stay_exact(read_table: Read, write_lines: Write) -> None:
    ids = [2**64 - 1, 2**64 - 2, 5]
    lines = write_lines("a.jsonl", *({"e": number, "t": 0, "x": 0.5, "a": 1} for number in ids))
    _, batch = read_table(lines, COLUMNS)
    assert sorted(data["source_id"] for data in batch.custom_data) == sorted(map(str, ids))


@pytest.mark.parametrize("cut", [slice(0, -9), slice(0, None)])
def test_a_damaged_gzip_of_csv_is_called_damaged(cut: slice, read_table: Read, tmp_path: Path) -> None:
    text = "e,t,x,a\n" + "".join(f"A,{t},0.5,1\n" for t in range(100))
    tail = b"" if cut.stop else b"garbage"
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode())[cut] + tail)
    with pytest.raises(BadData):
        read_table(tmp_path / "a.csv.gz", COLUMNS)


# ---- keys of JSON lines ----


def test_a_key_that_one_file_of_json_lacks_is_null_in_its_rows(read_table: Read, write_lines: Write, tmp_path: Path) -> None:
    write_lines("logs-1.jsonl", {"e": 1, "t": 0, "x": 0.5, "a": 1})
    write_lines("logs-2.jsonl", {"e": 2, "t": 0, "x": 0.5, "a": 1, "d": True})
    stream, batch = read_table(f"{tmp_path}/logs-*.jsonl", f'optional = ["dones"]\n{COLUMNS}dones = "d"\n')
    assert batch is not None
    assert len(batch) == 2
    assert stream.tally.assumptions["null-as-false"] == 1


# ---- ids ----


@pytest.mark.parametrize(("one", "other"), [("1", "1.0"), ("1.00", "1"), ("-20.0", "-20")])
def test_whole_numbers_with_and_without_decimals_are_one_id(
    one: str, other: str, read_table: Read, write_lines: Write, tmp_path: Path
) -> None:
    write_lines("logs-1.csv", "e,t,x,a", f"{one},0,0.5,1")
    write_lines("logs-2.csv", "e,t,x,a", f"{other},1,0.5,1", "A,0,0.5,1")
    _, batch = read_table(f"{tmp_path}/logs-*.csv", COLUMNS)
    assert [data["source_id"] for data in batch.custom_data] == [min(one, other, key=len), "A"]
