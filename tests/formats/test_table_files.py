"""Files of tables: what CSV, JSON, Parquet and Arrow allow themselves, many files as one table, and what is damaged."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from offline_cli import convert, open_location
from offline_cli.errors import BadData, BadMapping
from offline_cli.formats.tables.source import TableSource

Read = Callable[..., Any]
Write = Callable[..., Path]
Call = Callable[..., Any]

MAPPING = '[columns]\neps_id = "e"\nobs = ["x", "y"]\nactions = "a"\n'
ORDERED = '[columns]\neps_id = "e"\nt = "t"\nobs = ["x"]\nactions = "a"\n'


def source_ids(batch: Any) -> list[str]:
    return [data["source_id"] for data in batch.custom_data]


def lines_of(*rows: Any) -> bytes:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()


ROW = {"e": "a", "x": 0.5, "y": 1.0, "a": 1}
LONG = (2**64 - 1, 2**64 - 2)
STRANGE = {"e": "a", "x": float("nan"), "y": 1.0, "a": 1}


@pytest.mark.parametrize(
    ("name", "data", "csv", "obs", "ids"),
    [
        ("a.csv", b"\xef\xbb\xbfe,x,y,a\r\n7,0.5,1,0\r\n\r\n7,1.5,1,1\r\n", "", [[0.5, 1], [1.5, 1], [1.5, 1]], ["7"]),
        ("a.csv", b"7,0.5,1,0\n7,1.5,1,1\n", 'columns = ["e", "x", "y", "a"]', [[0.5, 1], [1.5, 1], [1.5, 1]], ["7"]),
        ("a.csv", "e,x,y,a\nå,0.5,1,0\n".encode("latin-1"), 'encoding = "latin-1"', [[0.5, 1], [0.5, 1]], ["å"]),
        ("a.csv", b"e,x,y,a\n007,0.5,1,0\n7,0.5,1,0\n", "", [[0.5, 1]] * 4, ["007", "7"]),
        ("a.csv", b"e,x,y,a\n1,0.5,1,0\n1.0,1.5,1,0\n", "", [[0.5, 1], [1.5, 1], [1.5, 1]], ["1"]),
        ("a.csv", b'e,x,y,a\n"a,\n1",0.5,1,0\n', "", [[0.5, 1]] * 2, ["a,\n1"]),
        ("a.jsonl", lines_of(STRANGE, {**ROW, "y": float("inf")}), "", [[np.nan, 1], [0.5, np.inf], [0.5, np.inf]], ["a"]),
        ("a.jsonl", lines_of(*({**ROW, "e": one} for one in LONG)), "", [[0.5, 1]] * 4, [*map(str, LONG)]),
    ],
    ids=["bom", "no header", "latin-1", "text ids", "whole ids", "quotes", "nan", "64 bits"],
)  # fmt: skip
def test_text_is_read_as_it_is_written(
    name: str, data: bytes, csv: str, obs: list[Any], ids: list[str], read_table: Read, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    _, batch = read_table(tmp_path / name, f"{MAPPING}[csv]\n{csv}\n")
    np.testing.assert_array_equal(batch.obs, obs)
    assert source_ids(batch) == ids


UTF_16 = "e,x,y,a\n" + "c,0.5,1,0\n" * 200_000


@pytest.mark.parametrize(
    ("name", "data", "csv", "where"),
    [
        ("a.csv", b"e,x,x,a\n1,2,3,4\n", "", ""),
        ("a.csv", b"e;x;y;a\n7;0,5;1;0\n7;1.500;1;0\n7;0,5;1;0\n", 'delimiter = ";"\ndecimal = ","', " line 3"),
        ("a.csv", "e,x,y,a\nå,0.5,1,0\n".encode("latin-1"), "", " line 2"),
        ("a.csv", "e,x,y,å\na,0.5,1,0\n".encode("latin-1"), "", " line 1"),
        ("a.csv", UTF_16.encode("utf-16-be"), 'encoding = "utf-16"\ncolumns = ["e", "x", "y", "a"]', ""),
        ("a.csv.gz", gzip.compress(b"e,x,y,a\n" + b"7,0.5,1,0\n" * 9)[:-9], "", ""),
        ("a.jsonl", lines_of(ROW, "", json.dumps(ROW)[:20], ROW), "", " row 1"),
        ("a.jsonl", lines_of(ROW, ROW, {**ROW, "x": "high"}, ROW), "", " line 3"),
        ("a.csv", b'e,x,y,a\n"a,\n1",0.5,1,0\n7,high,1,0\n', "", " row 1"),
        ("a.jsonl", lines_of(ROW, ROW, {**ROW, "x": {"deep": 1}}, ROW), "", " line 3"),
    ],
    ids=[
        "a name twice",
        "a point",
        "latin-1",
        "latin-1 in a name",
        "no mark",
        "cut",
        "a blank line",
        "text",
        "two lines",
        "an object",
    ],
)
def test_what_cannot_be_read_is_refused_by_its_place(
    name: str, data: bytes, csv: str, where: str, read_table: Read, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadData) as caught:
        read_table(tmp_path / name, f"{MAPPING}[csv]\n{csv}\n")
    assert caught.value.where == f"{tmp_path / name}{where}"


@pytest.mark.parametrize("rows_before", [3, 40_000])
def test_a_csv_file_of_another_encoding_is_refused_and_never_skipped(rows_before: int, tmp_path: Path) -> None:
    for name, last in (("good", "Bo"), ("bad", "René")):
        lines = ["e,x,y,a", *["Bo,0.5,1.0,1"] * rows_before, f"{last},0.5,1.0,1", "Bo,0.5,1.0,1", ""]
        (tmp_path / f"{name}.csv").write_bytes("\n".join(lines).encode("latin-1"))
    mapping = {"columns": {"eps_id": "e", "obs": ["x", "y"], "actions": "a"}}
    given = {"sources": [tmp_path / "bad.csv", tmp_path / "good.csv"], "out": tmp_path / "D"}
    for on_error in ("fail", "skip", "quarantine"):
        with pytest.raises(BadData) as caught:
            convert(**given, mapping=mapping, on_error=on_error)
        assert (caught.value.code, caught.value.where) == ("bad-data", f"{tmp_path / 'bad.csv'} line {rows_before + 2}")
        assert "encoding" in caught.value.fix
    made = convert(**given, mapping={**mapping, "csv": {"encoding": "latin-1"}})
    assert (made.rows_in, made.episodes) == (2 * rows_before + 4, 2)


def test_a_line_of_json_that_is_not_utf_8_costs_its_episode_alone(tmp_path: Path) -> None:
    rows = [{"e": f"r{step // 5}", "x": 0.5, "y": 1.0, "a": 1, "n": "é" if step == 12 else "x"} for step in range(50)]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (tmp_path / "log.jsonl").write_bytes("\n".join([*lines, ""]).encode("latin-1"))
    mapping = {"columns": {"eps_id": "e", "obs": ["x", "y"], "actions": "a"}}
    made = convert(tmp_path / "log.jsonl", tmp_path / "D", mapping=mapping, on_error="skip")
    assert (made.episodes, made.episodes_lost) == (9, 1)


def test_texts_that_mean_no_value_are_named_in_the_mapping(read_table: Read, write_lines: Write) -> None:
    path = write_lines("a.csv", "e,x,y,a,v", "7,0.5,1,0,NA", "7,0.5,1,0,3")
    _, batch = read_table(path, MAPPING + '[csv]\nnulls = ["NA"]\n')
    assert np.isnan(batch.extra["v"][0])
    stream, batch = read_table(path, MAPPING)
    assert stream.tally.assumptions["dropped-column"] == 1  # not all of it is numbers


def test_rows_of_another_length_in_a_file_of_many_blocks_are_kept_with_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_cli.formats.tables.text_files.CSV_BLOCK", 1 << 14)
    bad = {0: "ride-0,1", 20_123: "ride-201", 30_000: '"a\nb",1,2,3,4,5,6', 30_001: "x", 39_999: "ride-399,1"}
    rows = [f"ride-{n // 100},{n % 100}.25,0.5,{n % 2},{int(n % 100 == 99)}" for n in range(40_000)]
    for number, text in bad.items():
        rows[number] = text
    source = tmp_path / "big.csv"
    source.write_bytes(("e,x,y,a,d\n" + "\n".join(rows) + "\n").encode())
    (tmp_path / "m.toml").write_text(MAPPING + 'dones = "d"\n')
    result = convert(source, tmp_path / "out", mapping=tmp_path / "m.toml", on_error="quarantine")
    assert (result.rows_in, result.episodes) == (40_000, 400 - len({0, 201, 300, 399}))
    kept = pq.read_table(tmp_path / "out" / "quarantine").to_pylist()
    ragged = {row["where"]: row["raw"].decode() for row in kept if "but there are 5 columns" in row["reason"]}
    assert ragged == {f"{source} row {number}": text for number, text in bad.items()}


# ---- numbers and types ----


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_decimals_written_as_text_take_the_dtype_of_the_space(name: str, read_table: Read, write_lines: Write) -> None:
    lines = [{"e": "7", "x": 0.1, "y": 1, "a": 1}] if name == "a.jsonl" else ["e,x,y,a", "7,0.1,1,1"]
    space = '[spaces]\nobservation = {type = "Box", shape = [2], dtype = "float32", low = "-inf", high = "inf"}\n'
    _, batch = read_table(write_lines(name, *lines), MAPPING + space)
    np.testing.assert_array_equal(batch.obs[0], np.array([0.1, 1], np.float32), strict=True)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_value_too_large_for_the_dtype_of_the_space_is_a_bad_row(name: str, write_lines: Write, tmp_path: Path) -> None:
    rows = [{"e": e, "t": t, "x": 1e39 if (e, t) == ("B", 1) else 0.1, "a": t} for e in ("A", "B") for t in (0, 1)]
    csv = ["e,t,x,a", *(",".join(map(str, row.values())) for row in rows)]
    path = write_lines(name, *(rows if name == "a.jsonl" else csv))
    box = {"type": "Box", "shape": [1], "dtype": "float32", "low": "-inf", "high": "inf"}
    columns = {"eps_id": "e", "t": "t", "obs": ["x"], "actions": "a"}
    given: dict[str, Any] = {"mapping": {"columns": columns, "spaces": {"observation": box}}, "out": tmp_path / "D"}
    with pytest.raises(BadData) as caught:
        convert(path, **given)
    place = f"{path} line {4 if name == 'a.jsonl' else 5}"
    assert (caught.value.code, caught.value.where) == ("bad-episode", place)
    assert caught.value.what == "column x holds 1e+39, too large for float32"
    result = convert(path, **given, on_error="skip")
    assert (result.episodes, result.episodes_lost, result.rejected[0]["where"]) == (1, 1, place)


def test_tensors_lists_and_json_text_keep_their_shape(read_table: Read, tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    columns = {"e": ["a", "a"], "s": pa.FixedShapeTensorArray.from_numpy_ndarray(values), "v": [[1.0, 2.0]] * 2}
    table = pa.table({**columns, "text": ["[0.5, 1]", "[1, 2]"], "x": [3.0, 3.0], "a": [[[0, 1], [1, 0]], [[1, 1], [0, 0]]]})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    parts = 'unmapped = "drop"\n[columns]\neps_id = "e"\nactions = "a"\nobs = {s = "s", v = ["x", "v"], text = "text"}\n'
    _, batch = read_table(tmp_path / "a.arrow", parts)
    np.testing.assert_array_equal(batch.obs["s"][:2], values)
    assert batch.obs["v"][0].tolist() == [3, 1, 2]
    assert batch.obs["text"].tolist() == [[0.5, 1], [1, 2], [1, 2]]
    assert batch.actions.tolist() == [[[0, 1], [1, 0]], [[1, 1], [0, 0]]]


@pytest.mark.parametrize(
    ("ids", "theirs"),
    [
        (pa.array([3.0, 4.5]), ["3", "4.5"]),  # a data frame made floats of whole numbers
        (pa.array([Decimal(12345678901234567890), Decimal(12345678901234567891)], pa.decimal128(38, 0)), None),
    ],
    ids=["floats", "many digits"],
)
def test_ids_are_exact(ids: pa.Array, theirs: list[str] | None, read_table: Read, tmp_path: Path) -> None:
    pq.write_table(pa.table({"e": ids, "x": [0.5, 0.5], "y": [1.0, 1.0], "a": [1, 1]}), tmp_path / "a.parquet")
    _, batch = read_table(tmp_path / "a.parquet", MAPPING)
    assert source_ids(batch) == (theirs or [str(one) for one in ids.to_pylist()])


def test_a_column_of_lists_names_no_episode(read_table: Read, tmp_path: Path) -> None:
    pq.write_table(pa.table({"e": [[0], [1]], "x": [0.5, 0.5], "y": [1.0, 1.0], "a": [1, 1]}), tmp_path / "a.parquet")
    with pytest.raises(BadMapping):
        read_table(tmp_path / "a.parquet", MAPPING)


@pytest.mark.parametrize("kind", [pa.duration("ns"), pa.time64("ns"), pa.timestamp("ns")])
def test_steps_that_are_less_than_a_microsecond_apart_are_in_order(kind: pa.DataType, read_table: Read, tmp_path: Path) -> None:
    times = pa.array(np.array([300, 100, 200], np.int64), pa.int64()).cast(kind)
    pq.write_table(pa.table({"e": ["e"] * 3, "t": times, "x": [0.0, 1.0, 2.0], "a": [0, 1, 0]}), tmp_path / "a.parquet")
    _, batch = read_table(tmp_path / "a.parquet", ORDERED)
    assert np.ravel(batch.obs).tolist()[:3] == [1.0, 2.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "column", "text"), [("json", "r", " 1.0 "), ("parquet", "x", "1.0"), ("parquet", "d", "true")]
)
def test_text_in_a_column_of_numbers_is_counted_by_column(
    call: Call, told: Call, tmp_path: Path, kind: str, column: str, text: str
) -> None:
    rows = [{"e": "a", "t": t, "x": 0.5, "a": t % 2, "r": 1.5, "d": False} | {column: text} for t in range(4)]
    source = tmp_path / f"log.{kind}"
    pl.DataFrame(rows).write_parquet(source) if kind == "parquet" else source.write_bytes(lines_of(*rows))
    (tmp_path / "m.toml").write_text(f'episode_ends = "flags"\n{ORDERED}rewards = "r"\nterminateds = "d"\n')
    said = (source, "--mapping", tmp_path / "m.toml")
    assert told("convert", *said, "--out", tmp_path / "d")["assumptions"][f"numbers-as-text:{column}"] == 4


# ---- several files ----


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_episodes_go_on_in_the_next_file_and_a_file_that_is_cut_is_lost_alone(
    kind: str, read_table: Read, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(20):
        t = 3 * (number % 2) + np.arange(3)
        table = pa.table({"e": [f"{number // 2}"] * 3, "t": t, "x": t + 0.5, "a": t % 2, "d": t == 5})
        frame, path = pl.DataFrame(table), folder / f"{number:03}.{kind}"
        {"parquet": frame.write_parquet, "csv": frame.write_csv, "jsonl": frame.write_ndjson}[kind](path)
    mapping = ORDERED + 'terminateds = "d"\n'
    _, batch = read_table(folder, mapping)
    assert batch.lengths.tolist() == [6] * 10
    np.testing.assert_array_equal(batch.acted_obs()[:, 0], np.tile(np.arange(6) + 0.5, 10))
    path.with_name(f"006.{kind}").write_bytes(path.with_name(f"006.{kind}").read_bytes()[:-12])
    stream, batch = read_table(folder, mapping, on_error="skip")
    assert stream.rejects.count
    assert len(batch.ids) in (8, 9)


def test_files_of_other_types_units_and_columns_are_one_table(read_table: Read, tmp_path: Path) -> None:
    base = {"e": ["a"] * 3, "t": pa.array([100_000_123, 200_000_123, 300_000_123], pa.timestamp("ns")), "x": [0.5] * 3}
    pq.write_table(pa.table({**base, "a": [0, 1, 0], "n": [1, 2, 3]}), tmp_path / "logs-1.parquet")
    other = {"e": ["b"] * 3, "t": pa.array([1, 2, 3], pa.timestamp("us")), "x": [0.5] * 3}
    pq.write_table(pa.table({"n": [0.5, 1.5, 2.5], "z": ["a"] * 3, **other, "a": [0, 1, 0]}), tmp_path / "logs-2.parquet")
    pq.write_table(pa.table({**base, "a": [0, 1, 0], "n": [1, 2, 3]}).slice(0, 0), tmp_path / "logs-3.parquet")
    stream, batch = read_table(f"{tmp_path}/logs-*.parquet", ORDERED)
    assert batch.lengths.tolist() == [3, 3]
    assert batch.extra["n"].tolist() == [1, 2, 3, 0.5, 1.5, 2.5]
    assert stream.tally.assumptions["dropped-column"] == 1


def test_a_key_that_one_file_of_json_lacks_is_null_in_its_rows(read_table: Read, write_lines: Write, tmp_path: Path) -> None:
    write_lines("logs-1.jsonl", {"e": 1, "t": 0, "x": 0.5, "a": 1})
    write_lines("logs-2.jsonl", {"e": 2, "t": 0, "x": 0.5, "a": 1, "d": True})
    stream, batch = read_table(f"{tmp_path}/logs-*.jsonl", f'optional = ["dones"]\n{ORDERED}dones = "d"\n')
    assert len(batch) == 2
    assert stream.tally.assumptions["null-as-false"] == 1


def test_an_optional_column_that_one_file_lacks_is_refused_and_not_left_out_of_all(
    read_table: Read, write_lines: Write, tmp_path: Path
) -> None:
    write_lines("logs-1.csv", "e,t,x,a,r", "A,0,0.5,1,7")
    write_lines("logs-2.csv", "e,t,x,a", "B,0,0.5,1")
    with pytest.raises(BadMapping):
        read_table(f"{tmp_path}/logs-*.csv", f'optional = ["rewards"]\n{ORDERED}rewards = "r"\n')


def test_missing_cells_become_the_value_before_or_a_number_by_column(tmp_path: Path) -> None:
    rows = ["A,0,1.5,,1", "A,1,,2,0", "B,0,,3,1", "A,2,,4,1", "C,0,7,8,0"]
    (tmp_path / "a.csv").write_text("e,t,x,y,a\n" + "\n".join(rows) + "\n")
    mapping = {"columns": {"eps_id": "e", "t": "t", "obs": ["x", "y"], "actions": "a"}, "fill": {"x": "previous", "y": 0}}
    with pytest.raises(BadData) as caught:
        convert(tmp_path / "a.csv", tmp_path / "D", mapping=mapping)
    assert caught.value.where == f"{tmp_path / 'a.csv'} line 4"  # the first one of B has no row before it
    made = convert(tmp_path / "a.csv", tmp_path / "D", mapping=mapping, on_error="skip")
    assert (made.episodes, made.episodes_lost) == (2, 1)
    assert (made.assumptions["filled-previous:x"], made.assumptions["filled-number:y"]) == (2, 1)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_many_small_files_are_asked_for_their_sizes_a_few_times_and_read_as_one_batch(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.toml").write_text(ORDERED)
    (tmp_path / "many").mkdir()
    for number in range(50):
        rows = {"e": [number] * 3, "t": [0, 1, 2], "x": [0.5, 1.5, float(number)], "a": [0, 1, 0]}
        getattr(pl.DataFrame(rows), f"write_{kind}")(tmp_path / "many" / f"{number:02}.{kind}")
    asked, batches, place = list[str](), list[int](), type(open_location(tmp_path))
    size, fragments = place.size, TableSource.fragments

    def counted(self: Any) -> int:
        asked.append(self.url)
        return int(size(self))

    def seen(self: Any, *args: Any) -> Any:
        for found in fragments(self, *args):
            batches.append(len(found.batch))
            yield found

    monkeypatch.setattr(place, "size", counted)
    monkeypatch.setattr(TableSource, "fragments", seen)
    assert convert(tmp_path / "many", tmp_path / "out", mapping=tmp_path / "m.toml").episodes == 50
    assert max(Counter(asked).values()) <= 8  # for --resume, for progress, and for each reading
    assert len(batches) <= 2
