"""Files of tables: how numbers are written, how they are packed, and what JSON and CSV allow themselves."""

from __future__ import annotations

import gzip
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
from gymnasium import spaces

from offline_cli.errors import BadData, BadMapping, NoData, SpaceMismatch
from offline_cli.files import local_files, locations

Read = Callable[..., Any]
Write = Callable[..., Path]

MAPPING = '[columns]\neps_id = "e"\nobs = ["x", "y"]\nactions = "a"\n'


# ---- CSV ----


def test_a_header_that_names_a_column_twice_is_refused(read_table: Read, write_lines: Write) -> None:
    with pytest.raises(BadData, match="two columns are called 'x'"):
        read_table(write_lines("a.csv", "e,x,x,a", "1,2,3,4"), MAPPING)


def test_a_file_without_a_header_has_its_columns_named_in_the_mapping(read_table: Read, write_lines: Write) -> None:
    mapping = MAPPING + '[csv]\ncolumns = ["e", "x", "y", "a"]\n'
    stream, batch = read_table(write_lines("a.csv", "7,0.5,1,0", "7,1.5,1,1"), mapping)
    assert batch.obs.tolist() == [[0.5, 1], [1.5, 1], [1.5, 1]]
    assert [data["source_id"] for data in batch.custom_data] == ["7"]
    assert stream.tally.rows_in == 2


def test_another_delimiter_is_not_guessed_and_the_refusal_shows_what_was_read(read_table: Read, write_lines: Write) -> None:
    path = write_lines("a.csv", "e;x;y;a", "7;0.5;1;0")
    with pytest.raises(BadMapping) as caught:
        read_table(path, MAPPING)
    assert "e;x;y;a" in caught.value.fix
    _, batch = read_table(path, MAPPING + '[csv]\ndelimiter = ";"\n')
    assert batch.num_steps == 1


def test_files_without_a_common_column_are_to_be_converted_apart(read_table: Read, write_lines: Write) -> None:
    write_lines("a.csv", "e,x,y,a", "7,0.5,1,0")
    path = write_lines("b.csv", "user,item", "1,2")
    with pytest.raises(BadMapping) as caught:
        read_table(path.parent, MAPPING)
    assert "no column in common" in caught.value.fix


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_header_of_one_cell_proposes_its_delimiter_in_a_table_that_takes_more(
    delimiter: str, read_table: Read, write_lines: Write
) -> None:
    rows = ("id", "t", '"x; 1\t"', "action", "done"), ("7", "0", "0.5", "1", "0"), ("7", "1", "1.5", "1", "1")
    path = write_lines("a.csv", *(delimiter.join(row) for row in rows))
    with pytest.raises(BadMapping) as caught:
        read_table(path)
    proposed = caught.value.details["starting_mapping"]
    assert f"[csv]\ndelimiter = {json.dumps(delimiter)}" in proposed
    _, batch = read_table(path, proposed + 'decimal = "."\n')
    assert (batch.obs.tolist(), batch.terminated.tolist()) == ([0.5, 1.5, 1.5], [True])


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
    with pytest.raises(BadData, match="column done holds 'maybe', not a flag"):
        read_table(path, mapping)


def test_yes_and_no_that_are_no_flag_stay_categories(read_table: Read, write_lines: Write) -> None:
    path = write_lines("a.csv", "id,t,x,wet,action", *(f"{n // 5},{n % 5},{n},{('yes', 'no')[n % 2]},0" for n in range(10)))
    with pytest.raises(BadMapping) as caught:
        read_table(path)
    assert 'wet = ["no", "yes"]' in caught.value.details["starting_mapping"]


def test_a_point_is_no_decimal_where_the_mapping_says_comma(read_table: Read, write_lines: Write) -> None:
    path = write_lines("a.csv", "e;x;y;a", "7;0,5;1;0", "7;1.500;1;0", "7;0,5;1;0")
    with pytest.raises(BadData, match=r"column x holds '1\.500', not a number"):
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
    with pytest.raises(BadData, match="UTF-8") as caught:
        read_table(tmp_path / "a.csv", MAPPING)
    assert caught.value.where == str(tmp_path / "a.csv")
    _, batch = read_table(tmp_path / "a.csv", MAPPING + '[csv]\nencoding = "latin-1"\n')
    assert [data["source_id"] for data in batch.custom_data] == ["å"]


def test_ids_of_a_csv_stay_text(read_table: Read, write_lines: Write) -> None:
    _, batch = read_table(write_lines("a.csv", "e,x,y,a", "007,0.5,1,0", "7,0.5,1,0"), MAPPING)
    assert [data["source_id"] for data in batch.custom_data] == ["007", "7"]


def test_numbers_stay_integers_only_where_all_of_them_are(read_table: Read, write_lines: Write) -> None:
    """The first decimal stands far behind: every cell is looked at."""
    lines = [f"7,{n},{n},1" for n in range(200_000)]
    stream, batch = read_table(write_lines("a.csv", "e,x,y,a", *lines, "7,0.5,1,1"), MAPPING)
    assert batch.obs.dtype == np.float64
    stream, batch = read_table(write_lines("b.csv", "e,x,y,a", *lines), MAPPING)
    assert batch.obs.dtype == np.int64
    assert stream.action_space == spaces.Discrete(2)


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


def test_decimals_take_the_dtype_of_the_environment(read_table: Read, write_lines: Write) -> None:
    mapping = '[columns]\neps_id = "e"\nobs = ["a", "b", "c", "d"]\nactions = "a"\n'
    path = write_lines("a.csv", "e,a,b,c,d", "7,0,0.1,0.2,0.3")
    stream, batch = read_table(path, mapping, env="CartPole-v1")
    assert (batch.obs.dtype, stream.spaces_inferred) == (np.float32, False)
    assert stream.environment_id == "CartPole-v1"
    with pytest.raises(SpaceMismatch, match="shape"):
        read_table(path, MAPPING.replace('["x", "y"]', '["b", "c"]'), env="CartPole-v1")


def test_decimals_of_parquet_are_rounded_only_where_the_mapping_says_so(read_table: Read, tmp_path: Path) -> None:
    pq.write_table(pa.table({"e": [7], "x": [0.1], "y": [0.2], "a": [1]}), tmp_path / "a.parquet")
    _, batch = read_table(tmp_path / "a.parquet", MAPPING)
    assert batch.obs.dtype == np.float64
    _, batch = read_table(tmp_path / "a.parquet", MAPPING + '[dtypes]\nobs = "float32"\n')
    assert batch.obs.dtype == np.float32
    with pytest.raises(BadData, match=r"column x holds 0\.1, which int64 of \[dtypes\] cannot hold"):
        read_table(tmp_path / "a.parquet", MAPPING + '[dtypes]\nobs = "int64"\n')


def test_columns_of_several_files_take_the_dtype_that_holds_all(read_table: Read, tmp_path: Path) -> None:
    for name, values in (("a", pa.array([1], pa.int8())), ("b", pa.array([0.5], pa.float32()))):
        pq.write_table(pa.table({"e": [name], "x": values, "y": values, "a": [1]}), tmp_path / f"{name}.parquet")
    _, batch = read_table(str(tmp_path / "*.parquet"), MAPPING)
    assert batch.obs.dtype == np.float32
    assert [name[9:] for name in batch.ids] == ["a", "b"]


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


def test_numbers_in_lists_of_one_are_numbers_where_one_is_wanted(read_table: Read, tmp_path: Path) -> None:
    columns = {"e": ["a", "a"], "x": [0.5, 1.5], "y": [1.0, 1.0], "a": [1, 0], "r": [[1.0], [2.0]], "d": [[False], [True]]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    _, batch = read_table(tmp_path / "a.parquet", MAPPING + 'rewards = "r"\nterminateds = "d"\n')
    assert (batch.rewards.tolist(), batch.terminated.tolist()) == ([1.0, 2.0], [True])


# ---- JSON lines ----


def test_nan_as_python_writes_it_is_a_value(read_table: Read, write_lines: Write) -> None:
    rows = [{"e": "a", "x": float("nan"), "y": 1.0, "a": 1}, {"e": "a", "x": 2.0, "y": float("inf"), "a": 0}]
    _, batch = read_table(write_lines("a.jsonl", *rows), MAPPING)
    assert str(batch.obs.tolist()) == "[[nan, 1.0], [2.0, inf], [2.0, inf]]"


def test_a_broken_line_is_refused_by_its_number_or_skipped(read_table: Read, write_lines: Write) -> None:
    rows = [json.dumps({"e": name, "x": 0.5, "y": 1.0, "a": 1}) for name in "abc"]
    path = write_lines("a.jsonl", rows[0], "", rows[1][:20], rows[2])
    with pytest.raises(BadData, match="not whole JSON") as caught:
        read_table(path, MAPPING)
    assert caught.value.where == f"{path} row 1"
    stream, _ = read_table(path.with_name("a.jsonl"), MAPPING.replace("eps_id", "#"), on_error="skip", rows_as_episodes=True)
    assert stream.rejects.count == 1


@pytest.mark.parametrize("odd", ["high", [1.0], {"deep": 1}])
def test_a_value_of_another_kind_is_refused_by_row(odd: Any, read_table: Read, write_lines: Write) -> None:
    row = {"e": "a", "x": 0.5, "y": 1.0, "a": 1}
    path = write_lines("a.jsonl", row, row, {**row, "x": odd}, row)
    with pytest.raises(BadData, match="column x holds") as caught:
        read_table(path, MAPPING)
    assert caught.value.where == f"{path} row 2"


def test_keys_that_come_late_and_go_are_columns_too(read_table: Read, write_lines: Write) -> None:
    rows = [{"e": "a", "x": n / 2, "y": 1.0, "a": 1, **({"v": n} if n != 1 else {})} for n in range(3)]
    _, batch = read_table(write_lines("a.jsonl", *rows), MAPPING)
    assert str(batch.extra["v"].tolist()) == "[0.0, nan, 2.0]"


def test_an_array_of_objects_is_refused_with_the_remedy(read_table: Read, write_lines: Write) -> None:
    rows = [{"e": "a", "x": 0.5, "y": 1.0, "a": 1}]
    with pytest.raises(BadData) as caught:
        read_table(write_lines("a.json", json.dumps(rows)), MAPPING)
    assert "a line" in caught.value.what


# ---- packing ----


def test_a_packed_file_that_breaks_off_is_refused_by_name(read_table: Read, tmp_path: Path) -> None:
    rows = "".join(f"7,{n}.5,{n * n},1\n" for n in range(50_000))
    data = gzip.compress(f"e,x,y,a\n{rows}".encode())
    (tmp_path / "a.csv.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(BadData, match="breaks off") as caught:
        read_table(tmp_path / "a.csv.gz", MAPPING)
    assert caught.value.where == str(tmp_path / "a.csv.gz")


def test_json_text_in_a_column_of_parquet_is_read(read_table: Read, tmp_path: Path) -> None:
    columns = {"e": ["a", "a"], "s": ["[0.5, 1]", "[1, 2]"], "a": ["[0, 1]", "[1, 1]"], "n": ["1", "2"]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    _, batch = read_table(tmp_path / "a.parquet", '[columns]\neps_id = "e"\nobs = "s"\nactions = "a"\n')
    assert batch.obs.tolist() == [[0.5, 1], [1, 2], [1, 2]]
    assert batch.actions.tolist() == [[0, 1], [1, 1]]
    assert batch.extra["n"].tolist() == [1, 2]


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_table_without_rows_is_no_data(name: str, read_table: Read, tmp_path: Path) -> None:
    if name == "a.csv":
        (tmp_path / name).write_text("e,x,y,a\n", encoding="utf-8")
    else:
        schema = pa.schema([("e", pa.string()), ("x", pa.float64()), ("y", pa.float64()), ("a", pa.int64())])
        pq.write_table(schema.empty_table(), tmp_path / name)
    with pytest.raises(NoData):
        read_table(tmp_path / name, MAPPING)


def test_a_packed_parquet_file_is_read(read_table: Read, tmp_path: Path) -> None:
    pq.write_table(pa.table({"e": ["a"], "x": [0.5], "y": [1.0], "a": [1]}), tmp_path / "a.parquet")
    packed = tmp_path / "b.gz"
    packed.write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    _, batch = read_table(packed, MAPPING)
    assert batch.num_steps == 1


# ---- how often a file is opened ----


def write_table(path: Path, number: int) -> None:
    table = pa.table({"e": [str(number)] * 2, "x": [0.5, 1.5], "y": [1.0, 1.0], "a": [0, 1]})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".csv":
        pa.csv.write_csv(table, path)
    elif path.suffix == ".json":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()), encoding="utf-8")
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)


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


@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "arrow"])
def test_each_small_table_of_a_folder_is_opened_once(kind: str, read_table: Read, tmp_path: Path, opened: Counter[str]) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        write_table(tmp_path / "in" / f"{number}.{kind}", number)
    _, batch = read_table(tmp_path / "in", MAPPING)
    assert batch.num_steps == 6
    assert opened == {"mapping.toml": 1, **{f"{number}.{kind}": 1 for number in range(3)}}


@pytest.mark.parametrize(("kind", "times"), [("parquet", 4), ("csv", 5), ("json", 7), ("arrow", 6)])
def test_a_larger_table_is_opened_once_for_each_pass_over_it(
    kind: str, times: int, read_table: Read, tmp_path: Path, opened: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For its format (of JSON three times, of Arrow twice), columns, numbers where they are text, id and rows."""
    monkeypatch.setattr(locations, "SMALL_FILE", 0)
    write_table(tmp_path / f"0.{kind}", 0)
    read_table(tmp_path / f"0.{kind}", MAPPING)
    assert opened[f"0.{kind}"] == times
