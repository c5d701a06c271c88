"""Files of tables: how numbers are written, how they are packed, and what JSON and CSV allow themselves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from offline_cli.errors import BadData, BadMapping
from offline_cli.storage import local_files

Read = Callable[..., Any]
Write = Callable[..., Path]

MAPPING = '[columns]\neps_id = "e"\nobs = ["x", "y"]\nactions = "a"\n'


# ---- CSV ----


def test_a_header_that_names_a_column_twice_is_refused(read_table: Read, write_lines: Write) -> None:
    with pytest.raises(BadData):
        read_table(write_lines("a.csv", "e,x,x,a", "1,2,3,4"), MAPPING)


def test_a_file_without_a_header_has_its_columns_named_in_the_mapping(read_table: Read, write_lines: Write) -> None:
    mapping = MAPPING + '[csv]\ncolumns = ["e", "x", "y", "a"]\n'
    stream, batch = read_table(write_lines("a.csv", "7,0.5,1,0", "7,1.5,1,1"), mapping)
    assert batch.obs.tolist() == [[0.5, 1], [1.5, 1], [1.5, 1]]
    assert [data["source_id"] for data in batch.custom_data] == ["7"]
    assert stream.tally.rows_in == 2


@pytest.mark.parametrize(("yes", "no"), [("yes", "no"), ("Y", "n"), (" YES", "No ")])
def test_flags_may_be_yes_and_no(yes: str, no: str, read_table: Read, write_lines: Write) -> None:
    path = write_lines("a.csv", "e,x,y,a,done", f"7,0.5,1,0,{no}", f"7,1.5,1,1,{yes}", f"8,0.5,1,0,{no}", f"8,0,0,1,{yes}")
    with pytest.raises(BadMapping) as caught:
        read_table(path)
    assert 'dones = "done"' in caught.value.details["starting_mapping"]
    _, batch = read_table(path, MAPPING.replace("[columns]", "[columns]\ndones = 'done'"))
    assert batch.terminated.tolist() == [True, True]


def test_yes_is_a_flag_beside_numbers_and_maybe_is_a_bad_row(read_table: Read, write_lines: Write) -> None:
    mapping = MAPPING.replace("[columns]", "[columns]\ndones = 'done'")
    path = write_lines("a.csv", "e,x,y,a,done", "7,0.5,1,0,0", "7,1.5,1,1,0", "7,1.5,1,1,yes")
    assert read_table(path, mapping)[1].terminated.tolist() == [True]
    path = write_lines("b.csv", "e,x,y,a,done", "7,0.5,1,0,no", "7,1.5,1,1,maybe")
    with pytest.raises(BadData):
        read_table(path, mapping)


def test_a_point_is_no_decimal_where_the_mapping_says_comma(read_table: Read, write_lines: Write) -> None:
    path = write_lines("a.csv", "e;x;y;a", "7;0,5;1;0", "7;1.500;1;0", "7;0,5;1;0")
    with pytest.raises(BadData):
        read_table(path, MAPPING + '[csv]\ndelimiter = ";"\ndecimal = ","\n')


def test_texts_that_mean_no_value_are_named_in_the_mapping(read_table: Read, write_lines: Write) -> None:
    path = write_lines("a.csv", "e,x,y,a,v", "7,0.5,1,0,NA", "7,0.5,1,0,3")
    stream, batch = read_table(path, MAPPING + '[csv]\nnulls = ["NA"]\n')
    assert np.isnan(batch.extra["v"][0])
    stream, batch = read_table(path, MAPPING)
    assert stream.tally.assumptions["dropped-column"] == 1  # not all of it is numbers


def test_a_byte_order_mark_and_windows_line_ends_are_read(read_table: Read, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfe,x,y,a\r\n7,0.5,1,0\r\n\r\n7,0.5,1,1\r\n")
    _, batch = read_table(tmp_path / "a.csv", MAPPING)
    assert batch.actions.tolist() == [0, 1]


def test_letters_of_another_encoding_are_refused_and_read_where_the_mapping_says_it(read_table: Read, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("e,x,y,a\nå,0.5,1,0\n".encode("latin-1"))
    with pytest.raises(BadData) as caught:
        read_table(tmp_path / "a.csv", MAPPING)
    assert caught.value.where == f"{tmp_path / 'a.csv'} row 0"
    _, batch = read_table(tmp_path / "a.csv", MAPPING + '[csv]\nencoding = "latin-1"\n')
    assert [data["source_id"] for data in batch.custom_data] == ["å"]


def test_ids_of_a_csv_stay_text(read_table: Read, write_lines: Write) -> None:
    _, batch = read_table(write_lines("a.csv", "e,x,y,a", "007,0.5,1,0", "7,0.5,1,0"), MAPPING)
    assert [data["source_id"] for data in batch.custom_data] == ["007", "7"]


# ---- dtypes ----


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_decimals_written_as_text_take_the_dtype_of_the_space(name: str, read_table: Read, write_lines: Write) -> None:
    row = {"e": "7", "x": 0.1, "y": 1, "a": 1}
    lines = [json.dumps(row)] if name == "a.jsonl" else ["e,x,y,a", "7,0.1,1,1"]
    space = '[spaces]\nobservation = {type = "Box", shape = [2], dtype = "float32", low = "-inf", high = "inf"}\n'
    stream, batch = read_table(write_lines(name, *lines), MAPPING + space)
    assert batch.obs.dtype == np.float32
    assert batch.obs[0].tolist() == np.array([0.1, 1], np.float32).tolist()
    assert stream.spaces_inferred  # those of actions


def test_ids_that_a_data_frame_made_floats_are_whole_numbers_again(read_table: Read, tmp_path: Path) -> None:
    pq.write_table(pa.table({"e": [3.0, 4.5], "x": [0.5, 0.5], "y": [1.0, 1.0], "a": [1, 1]}), tmp_path / "a.parquet")
    _, batch = read_table(tmp_path / "a.parquet", MAPPING)
    assert [data["source_id"] for data in batch.custom_data] == ["3", "4.5"]


def test_tensors_and_nested_lists_keep_their_shape(read_table: Read, tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    table = pa.table({"e": ["a", "a"], "s": tensor, "a": [[[0, 1], [1, 0]], [[1, 1], [0, 0]]]})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    _, batch = read_table(tmp_path / "a.arrow", '[columns]\neps_id = "e"\nobs = "s"\nactions = "a"\n')
    np.testing.assert_array_equal(batch.obs[:2], values)
    assert batch.actions.tolist() == [[[0, 1], [1, 0]], [[1, 1], [0, 0]]]


def test_vectors_and_numbers_are_stacked_in_the_order_of_the_list(read_table: Read, tmp_path: Path) -> None:
    pq.write_table(pa.table({"e": ["a"], "v": [[1.0, 2.0]], "x": [3.0], "a": [1]}), tmp_path / "a.parquet")
    _, batch = read_table(tmp_path / "a.parquet", '[columns]\neps_id = "e"\nobs = ["x", "v"]\nactions = "a"\n')
    assert batch.obs[0].tolist() == [3, 1, 2]


# ---- JSON lines ----


def test_nan_as_python_writes_it_is_a_value(read_table: Read, write_lines: Write) -> None:
    rows = [{"e": "a", "x": float("nan"), "y": 1.0, "a": 1}, {"e": "a", "x": 2.0, "y": float("inf"), "a": 0}]
    _, batch = read_table(write_lines("a.jsonl", *rows), MAPPING)
    assert str(batch.obs.tolist()) == "[[nan, 1.0], [2.0, inf], [2.0, inf]]"


def test_a_broken_line_is_refused_by_its_number_or_skipped(read_table: Read, write_lines: Write) -> None:
    rows = [json.dumps({"e": name, "x": 0.5, "y": 1.0, "a": 1}) for name in "abc"]
    path = write_lines("a.jsonl", rows[0], "", rows[1][:20], rows[2])
    with pytest.raises(BadData) as caught:
        read_table(path, MAPPING)
    assert caught.value.where == f"{path} row 1"
    stream, _ = read_table(path.with_name("a.jsonl"), MAPPING.replace("eps_id", "#"), on_error="skip", rows_as_episodes=True)
    assert stream.rejects.count == 1


@pytest.mark.parametrize("odd", ["high", [1.0], {"deep": 1}])
def test_a_value_of_another_kind_is_refused_by_row(odd: Any, read_table: Read, write_lines: Write) -> None:
    row = {"e": "a", "x": 0.5, "y": 1.0, "a": 1}
    path = write_lines("a.jsonl", row, row, {**row, "x": odd}, row)
    with pytest.raises(BadData) as caught:
        read_table(path, MAPPING)
    assert caught.value.where == f"{path} row 2"


# ---- packing ----


def test_json_text_in_a_column_of_parquet_is_read(read_table: Read, tmp_path: Path) -> None:
    columns = {"e": ["a", "a"], "s": ["[0.5, 1]", "[1, 2]"], "a": ["[0, 1]", "[1, 1]"], "n": ["1", "2"]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    _, batch = read_table(tmp_path / "a.parquet", '[columns]\neps_id = "e"\nobs = "s"\nactions = "a"\n')
    assert batch.obs.tolist() == [[0.5, 1], [1, 2], [1, 2]]
    assert batch.actions.tolist() == [[0, 1], [1, 1]]
    assert batch.extra["n"].tolist() == [1, 2]


# ---- how often a file is opened ----


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file of this machine was opened, by its name."""
    counted: Counter[str] = Counter()
    really = local_files._without_waiting

    def counts(path: str, flags: int) -> int:
        counted[Path(path).name] += 1
        return really(path, flags)

    monkeypatch.setattr(local_files, "_without_waiting", counts)
    return counted
