"""Sources are recognised by what is in them."""

from __future__ import annotations

import gzip
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.converting.reading import read_episodes
from offline_cli.errors import BadData, BadMapping, NoData, StorageNotFound, Uncommitted, UsageError
from offline_cli.formats import listing
from offline_cli.formats.opening import open_source, open_sources
from offline_cli.formats.registry import OURS
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
    assert open_source(str(tmp_path)).info.format == format_


@pytest.mark.parametrize("line", [LINE, LINE.replace("SampleBatch", "MultiAgentBatch"), json.dumps({"value": LINE})])
@pytest.mark.parametrize("packing", ["plain", "gzip", "zip"])
def test_sample_batches_are_told_by_their_first_line_whatever_their_packing(line: str, packing: str, tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    content = f"\n  \n{line}\n".encode()
    if packing == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("one", content)
    else:
        path.write_bytes(gzip.compress(content) if packing == "gzip" else content)
    assert open_source(str(path)).info.format == "sample-batch"


def test_a_batch_whose_type_comes_last_is_recognised(tmp_path: Path) -> None:
    node = json.loads(LINE)
    node["type"] = node.pop("type")
    assert open_source(str(text(tmp_path / "a.json", json.dumps(node)))).info.format == "sample-batch"


@pytest.mark.parametrize("line", [SINGLE, {"policy_batches": {"p": SINGLE}}, {"value": SINGLE}, {"value": json.dumps(SINGLE)}])
def test_batches_without_a_type_are_recognised_by_what_they_hold(line: dict[str, Any], tmp_path: Path) -> None:
    path = text(tmp_path / "a.json", json.dumps(line) + "\n")
    assert open_source(str(path)).info.format == "sample-batch"
    path.write_text(json.dumps({**SINGLE, "zzz": 1})[:-10], encoding="utf-8")
    assert open_source(str(path)).info.format == "sample-batch"


@pytest.mark.parametrize("line", ['{"value": 1.5}', '{"value": {"type": "Other"}}', '{"obs": [1]}'])
def test_json_that_only_resembles_a_batch_is_a_table_that_needs_a_mapping(line: str, tmp_path: Path) -> None:
    with pytest.raises(BadMapping, match="nothing explains"):
        open_source(str(text(tmp_path / "a.json", line)))


def test_json_that_is_no_object_a_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoData, match="not an object a line"):
        open_source(str(text(tmp_path / "a.json", '[{"obs": 1, "actions": 1}]')))


def test_a_step_a_line_with_rllibs_names_is_a_table_and_no_batch(tmp_path: Path) -> None:
    row = {"eps_id": "e", "t": 0, "obs": [0.0], "actions": 1, "rewards": 1.0, "terminateds": True}
    assert open_source(str(text(tmp_path / "a.json", json.dumps(row)))).info.format == "table"


def test_empty_files_and_notes_beside_recordings_do_not_hide_them(tmp_path: Path) -> None:
    text(tmp_path / "a.json", LINE)
    text(tmp_path / "params.json", '{"lr": 0.1}')
    text(tmp_path / "z.json", "  \n{}")
    assert open_source(str(tmp_path)).info.format == "sample-batch"


def test_a_damaged_archive_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(LINE.encode())[:20])
    with pytest.raises(BadData, match="breaks off") as caught:
        open_source(str(tmp_path))
    assert caught.value.where.endswith("a.json.gz")


def test_a_first_line_cut_in_half_is_still_recognised(tmp_path: Path) -> None:
    assert open_source(str(text(tmp_path / "a.json", LINE[: len(LINE) // 2]))).info.format == "sample-batch"


def test_markers_checksums_hidden_files_and_texts_are_passed_over(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", STEP)
    for name in ("_SUCCESS", ".a.parquet.crc", "a.crc", ".hidden/b.json", "_tmp/c.json", "README.md"):
        text(tmp_path / name, LINE if name.endswith("json") else "some words")
    assert open_source(str(tmp_path)).info.format == "rllib-columns"


def test_a_list_of_files_and_a_glob_are_one_source(tmp_path: Path) -> None:
    files = [str(parquet(tmp_path / f"{i}.parquet", STEP)) for i in range(3)]
    assert len(open_sources(files)) == 1
    assert len(open_sources(str(tmp_path / "*.parquet"))) == 1


def test_each_folder_is_a_source_of_its_own(tmp_path: Path) -> None:
    folders = [str(parquet(tmp_path / str(i) / "a.parquet", STEP).parent) for i in range(2)]
    assert [source.info.location for source in open_sources(folders)] == folders


@pytest.mark.parametrize("second", ["lines", "parquet"])
def test_two_formats_in_one_folder_are_refused_by_both_names(second: str, tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", STEP)
    other = text(tmp_path / "b.json", LINE) if second == "lines" else parquet(tmp_path / "b.parquet", {"item": [b"x"]})
    with pytest.raises(BadData, match="two formats in one folder") as caught:
        open_source(str(tmp_path))
    assert caught.value.where == f"{tmp_path / 'a.parquet'} and {other}"


def test_from_forces_a_reader(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", {**STEP, "item": [b"x"]})
    assert open_source(str(tmp_path)).info.format == "rllib-episodes"
    assert open_source(str(tmp_path), from_="columns").info.format == "rllib-columns"


def test_parquet_is_not_read_as_lines(tmp_path: Path) -> None:
    file = parquet(tmp_path / "a", {"item": [b"x"]})
    with pytest.raises(BadData, match="a Parquet file, not JSON lines") as caught:
        open_source(str(file), from_="sample-batch")
    assert "--from auto" in caught.value.fix


def test_an_unknown_reader_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'flashbax'") as caught:
        open_source(str(tmp_path), from_="flashbax")
    assert f"auto, {', '.join(OURS)}" in caught.value.fix


def test_a_missing_path_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StorageNotFound, match="nowhere"):
        open_source(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("content", [None, "_SUCCESS", "notes.txt"])
def test_a_folder_without_data_is_refused(content: str | None, tmp_path: Path) -> None:
    if content:
        text(tmp_path / content, "some words")
    with pytest.raises(NoData) as caught:
        open_source(str(tmp_path))
    assert caught.value.where == str(tmp_path)


def test_a_table_without_rllibs_columns_is_refused_with_a_mapping_to_start_from(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", {"x": [1.0], "episode": [0]})
    with pytest.raises(BadMapping, match="nothing explains: x, episode") as caught:
        open_source(str(tmp_path))
    assert 'eps_id = "episode"' in caught.value.fix


CELLS = "eps_id,obs,actions,rewards,terminateds\ne,0.5,1,1.0,1\n"


@pytest.mark.parametrize("packing", ["plain", "gzip", "zstd"])
@pytest.mark.parametrize("kind", ["csv", "json", "parquet", "arrow", "arrow-stream"])
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
    source = open_source(str(file), from_="table")
    batch = next(source.fragments(Tally(), Rejects())).batch
    assert (source.info.format, batch.num_steps, batch.obs.tolist()) == ("table", 1, [0.5, 0.5])


def test_prose_beside_the_data_is_no_table(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", STEP)
    text(tmp_path / "notes", "Recorded in May, by hand\nand again in June, by night\n")
    text(tmp_path / "README.md", "a,b\n1,2\n")
    assert open_source(str(tmp_path)).info.format == "rllib-columns"


def test_a_parquet_file_cut_in_half_is_refused_by_name_and_remedy(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"item": [b"x" * 5000]})
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadData, match="not a whole Parquet file") as caught:
        open_source(str(tmp_path))
    assert caught.value.where == str(path)
    assert "again" in caught.value.fix


def test_a_dataset_that_is_not_finished_says_how_to_go_on(tmp_path: Path) -> None:
    text(tmp_path / "_writing.json", "{}")
    with pytest.raises(Uncommitted) as caught:
        open_source(str(tmp_path))
    assert "--resume" in caught.value.fix


@pytest.mark.parametrize("name", ["cartpole/heuristic-v0", "cartpole/heuristic-arrow-v0"])
def test_a_minari_dataset_is_recognised_in_both_layouts(name: str, real_data: Path, tmp_path: Path) -> None:
    shutil.copytree(real_data / "minari" / name, tmp_path / "minari")
    assert open_source(str(tmp_path / "minari")).info.format == "minari"


def many_parquet(folder: Path, count: int) -> Path:
    made = parquet(folder / "first" / "000000.parquet", STEP | {"eps_id": ["first"]})
    for number in range(1, count):
        shutil.copyfile(made, folder / "first" / f"{number:06d}.parquet")
    return folder


def test_of_many_files_named_parquet_some_are_looked_at_and_all_others_whatever_they_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    kind = listing._kind
    monkeypatch.setattr(listing, "_kind", lambda file: looked.append(file.name) or kind(file))
    many_parquet(tmp_path, 1500)
    text(tmp_path / "notes.txt", "notes")
    text(tmp_path / "first" / "empty.parquet", "")
    found = open_source(str(tmp_path))
    assert found.info.format == "rllib-columns"
    assert 500 < len(looked) < 1000
    assert {"notes.txt", "empty.parquet"} < set(looked)


def test_text_among_many_files_named_parquet_is_refused_by_name_when_it_is_read(tmp_path: Path) -> None:
    many_parquet(tmp_path, 1200)
    (tmp_path / "first" / "000001.parquet").write_text("hello, I am no Parquet", encoding="utf-8")
    with pytest.raises(BadData, match=r"Parquet") as raised, read_episodes(str(tmp_path), on_error="fail") as stream:
        list(stream)
    assert "000001.parquet" in raised.value.where


def test_empty_files_are_said_to_be_empty(tmp_path: Path) -> None:
    text(tmp_path / "one.csv", "")
    with pytest.raises(NoData, match=r"^the file is empty;"):
        open_source(str(tmp_path / "one.csv"))
    text(tmp_path / "two.csv", "")
    with pytest.raises(NoData, match=r"^all 2 files are empty;"):
        open_source(str(tmp_path))
    text(tmp_path / "notes.txt", "notes")
    with pytest.raises(NoData, match=r"^no data in 3 files \(.*one.csv is empty\);"):
        open_source(str(tmp_path))
