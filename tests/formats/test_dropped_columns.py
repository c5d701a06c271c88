"""Whatever becomes no part of an episode is named with the reason, and the count is that of the names, for every reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli import convert, inspect, validate

SAMPLES = Path(__file__).parents[1] / "testdata" / "sample_batch"


def columns(path: Path, **more: Any) -> str:
    table = {"eps_id": ["a"] * 3, "obs": [[0.0], [1.0], [2.0]], "actions": [0, 1, 0], "rewards": [1.0] * 3, **more}
    flags = {"new_obs": [[1.0], [2.0], [3.0]], "terminateds": [False, False, True]}
    pq.write_table(pa.table(table | flags), path)
    return str(path)


def lines(path: Path, **more: Any) -> str:
    rows = [
        {"eps_id": "b", "t": t, "obs": [t], "actions": t % 2, "rewards": 1.0, "terminateds": t == 2, **more} for t in range(3)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


NOTE = {"note": "text, and not numbers"}
RECURRENT = {
    "unroll_id": "which piece of sampling a row came from: the order of rows says the same",
    "seq_lens": "one row for each sequence, and not for each step",
    "state_in_0": "one row for each sequence, and not for each step",
}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (lambda folder: columns(folder / "a.parquet", note=["x"] * 3), NOTE),
        (lambda folder: columns(folder / "a.parquet", infos=[1, 2, 3]), {"infos": "int64, and neither JSON nor dicts"}),
        (lambda folder: lines(folder / "a.jsonl", note="x"), NOTE),
        (lambda folder: str(SAMPLES / "recurrent.json"), RECURRENT),
    ],
    ids=["RLlib columns", "infos that are no dicts", "table", "SampleBatch"],
)
def test_what_is_dropped_is_named_with_the_reason(source: Any, names: dict[str, str], tmp_path: Path) -> None:
    place = source(tmp_path)
    told = convert(place, tmp_path / "out").as_dict()
    assert told["dropped_reasons"] == names
    assert sorted(told["dropped_columns"]) == sorted(names)
    assert told["assumptions"]["dropped-column"] == len(names)
    looked_at = inspect(place)
    assert (dict(looked_at.dropped_reasons), looked_at.assumptions["dropped-column"]) == (names, len(names))


def test_a_name_that_two_sources_drop_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    columns(tmp_path / "a" / "a.parquet", note=["x"] * 3, when=["y"] * 3)
    lines(tmp_path / "b" / "b.jsonl", note="x")
    sources = [str(tmp_path / "a"), str(tmp_path / "b")]
    result = convert(sources, tmp_path / "out", dry_run=True)
    assert sorted(result.dropped_columns) == ["note", "when"]
    assert result.assumptions["dropped-column"] == 2


def test_several_processes_name_what_one_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offline_cli.formats.sample_batch.blocks.helpers", lambda workers, size: 2)
    result = convert(str(SAMPLES / "recurrent.json"), tmp_path / "out", dry_run=True)
    assert dict(result.dropped_reasons) == RECURRENT


def test_a_column_that_was_dropped_once_is_dropped_from_all_rows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    columns(tmp_path / "in" / "0.parquet", note=["x"] * 3)
    columns(tmp_path / "in" / "1.parquet", note=[1, 2, 3], eps_id=["c"] * 3)
    result = convert(str(tmp_path / "in"), tmp_path / "out")
    assert (result.episodes, result.dropped_columns) == (2, ("note",))


def test_a_check_names_the_columns_that_reading_drops(tmp_path: Path) -> None:
    found = validate(columns(tmp_path / "a.parquet", note=["x"] * 3))
    (note,) = [problem for problem in found.problems if problem.code == "assumption"]
    assert "dropped-column 1 (note: text, and not numbers)" in note.what
    assert note.details["dropped_columns"] == NOTE


def test_an_array_is_left_out_for_its_shape_or_for_what_it_holds(tmp_path: Path) -> None:
    steps = {
        "observations": np.zeros((8, 2)),
        "actions": np.arange(8) % 2,
        "rewards": np.ones(8),
        "terminals": np.arange(8) % 4 == 3,
    }
    of_shape = {"gamma": np.array(0.9), "returns": np.ones(2), "empty": np.ones((8, 0))}
    of_dtype = {"phase": np.ones(8, np.complex64), "names": np.array([["a", "b"]] * 8), "objects": np.array([{}] * 8, object)}
    np.savez(tmp_path / "a.npz", **steps, **of_shape, **of_dtype)
    for options in ({}, {"from_": "ogbench"}):
        told = convert(tmp_path / "a.npz", tmp_path / "out", overwrite=True, **options).dropped_reasons
        kinds = {"phase": "c8", "names": "U1", "objects": "O"}
        for name in told.keys() - {"rewards"}:
            array = {**of_shape, **of_dtype}[name]
            assert f"of shape {list(array.shape)}" in told[name]
            assert kinds.get(name, "") in told[name]
        assert told.keys() >= {"gamma", "returns", *of_dtype}


def test_a_column_of_several_kinds_and_one_with_a_dot_in_its_name_are_left_out_for_that(tmp_path: Path) -> None:
    rows = [
        {"eps_id": "b", "t": t, "obs": [t], "actions": t % 2, "mixed": "n/a" if t else 1.5, "both": t > 0 or 2, "joint.x": 1.0}
        for t in range(3)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = convert(tmp_path / "a.jsonl", tmp_path / "out").dropped_reasons
    assert {name: reason.rpartition(": ")[2] for name, reason in told.items()} == {
        "mixed": "number, text",
        "both": "number, bool",
        "joint.x": "by its name a part of a struct, which the mapping does not name",
    }


def test_a_mask_of_robomimic_is_left_out_for_the_reason_that_holds(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo["obs/state"], demo["actions"] = np.zeros((3, 2), np.float32), np.zeros((3, 1), np.float32)
        demo["rewards"], demo["dones"] = np.ones(3), np.array([0, 0, 1])
        demo["step_dones"], demo["note"], demo["few"] = np.zeros(3), np.array([b"a"] * 3, "S1"), np.zeros(2)
        file["mask/numbers"], file["mask/others"] = np.zeros(2, np.float32), np.array([b"demo_7"], "S6")
    told = convert(tmp_path / "in.h5", tmp_path / "out", from_="robomimic").dropped_reasons
    assert {name: reason.partition(" ")[0] for name, reason in told.items()} == {
        "mask/numbers": "<f4,",
        "mask/others": "it",
        "step_dones": "the",
        "note": "text",
        "few": "of",
    }
