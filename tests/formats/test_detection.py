"""Sources are recognised by what is in them."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.errors import BadData, NoData
from offline_cli.formats.opening import open_sources
from offline_cli.tally import Rejects, Tally

STEP = {"eps_id": ["a"], "obs": [[0.0]], "actions": [0], "rewards": [1.0]}
SINGLE = {"obs": [[0.0]], "actions": [0], "rewards": [1.0], "dones": [True], "eps_id": [1]}
LINE = json.dumps({"type": "SampleBatch", **SINGLE})


def parquet(path: Path, columns: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:  # pyarrow would look at the name
        pq.write_table(pa.table(columns), file)
    return path


def text(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("columns", "format_"),
    [
        ({"item": [b"x"]}, "rllib-episodes"),
        ({"item": [b"x"], "eps_id": ["a"], "length": [1]}, "rllib-episodes"),
        (STEP, "rllib-columns"),
    ],
)
def test_parquet_is_told_by_its_columns_whatever_its_name(columns: dict[str, Any], format_: str, tmp_path: Path) -> None:
    parquet(tmp_path / "deep" / "er" / "data.json", columns)
    assert open_sources(str(tmp_path))[0].info.format == format_


@pytest.mark.parametrize(
    ("line", "packing"),
    [(LINE, "zip"), (LINE.replace("SampleBatch", "MultiAgentBatch"), "plain"), (json.dumps({"value": LINE}), "gzip")],
)
def test_sample_batches_are_told_by_their_first_line_whatever_their_packing(line: str, packing: str, tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    content = f"\n  \n{line}\n".encode()
    if packing == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("one", content)
    else:
        path.write_bytes(gzip.compress(content) if packing == "gzip" else content)
    assert open_sources(str(path))[0].info.format == "sample-batch"


@pytest.mark.parametrize("line", [SINGLE, {"policy_batches": {"p": SINGLE}}, {"value": SINGLE}, {"value": json.dumps(SINGLE)}])
def test_batches_without_a_type_are_recognised_by_what_they_hold(line: dict[str, Any], tmp_path: Path) -> None:
    path = text(tmp_path / "a.json", json.dumps(line) + "\n")
    assert open_sources(str(path))[0].info.format == "sample-batch"
    path.write_text(json.dumps({**SINGLE, "zzz": 1})[:-10], encoding="utf-8")
    assert open_sources(str(path))[0].info.format == "sample-batch"


def test_markers_checksums_hidden_files_and_texts_are_passed_over(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", STEP)
    for name in ("_SUCCESS", ".a.parquet.crc", "a.crc", ".hidden/b.json", "_tmp/c.json", "README.md"):
        text(tmp_path / name, LINE if name.endswith("json") else "some words")
    assert open_sources(str(tmp_path))[0].info.format == "rllib-columns"


@pytest.mark.parametrize("second", ["lines", "parquet"])
def test_two_formats_in_one_folder_are_refused_by_both_names(second: str, tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", STEP)
    other = text(tmp_path / "b.json", LINE) if second == "lines" else parquet(tmp_path / "b.parquet", {"item": [b"x"]})
    with pytest.raises(BadData) as caught:
        open_sources(str(tmp_path))[0]
    assert caught.value.where == f"{tmp_path / 'a.parquet'} and {other}"


def test_from_forces_a_reader(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", {**STEP, "item": [b"x"]})
    assert open_sources(str(tmp_path))[0].info.format == "rllib-episodes"
    assert open_sources(str(tmp_path), from_="columns")[0].info.format == "rllib-columns"


@pytest.mark.parametrize("content", [None, "_SUCCESS", "notes.txt"])
def test_a_folder_without_data_is_refused(content: str | None, tmp_path: Path) -> None:
    if content:
        text(tmp_path / content, "some words")
    with pytest.raises(NoData) as caught:
        open_sources(str(tmp_path))[0]
    assert caught.value.where == str(tmp_path)


CELLS = "eps_id,obs,actions,rewards,terminateds\ne,0.5,1,1.0,1\n"


@pytest.mark.parametrize(
    ("kind", "packing"),
    [("csv", "plain"), ("csv", "zstd"), ("json", "gzip"), ("parquet", "plain"), ("arrow", "gzip"), ("arrow-stream", "plain")],
)
def test_a_table_is_told_by_its_content_whatever_its_name_and_packing(kind: str, packing: str, tmp_path: Path) -> None:
    table = pa.table({"eps_id": ["e"], "obs": [0.5], "actions": [1], "rewards": [1.0], "terminateds": [True]})
    sink = pa.BufferOutputStream()
    if kind == "parquet":
        pq.write_table(table, sink)
    elif kind.startswith("arrow"):
        new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with new(sink, table.schema) as writer:
            writer.write_table(table)
    else:
        sink.write(CELLS.encode() if kind == "csv" else json.dumps(table.to_pylist()[0]).encode())
    content = sink.getvalue().to_pybytes()
    packed = content if packing == "plain" else pa.compress(content, packing, asbytes=True)
    file = tmp_path / "recording"
    file.write_bytes(gzip.compress(content) if packing == "gzip" else packed)
    source = open_sources(str(file), from_="table")[0]
    batch = next(source.fragments(Tally(), Rejects())).batch
    assert (source.info.format, batch.num_steps, batch.obs.tolist()) == ("table", 1, [0.5, 0.5])


def test_a_parquet_file_cut_in_half_is_refused_by_name_and_remedy(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"item": [b"x" * 5000]})
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadData) as caught:
        open_sources(str(tmp_path))[0]
    assert caught.value.where == str(path)
    assert "again" in caught.value.fix
