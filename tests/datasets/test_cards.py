"""README.md of a dataset, and what a person sees of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from gymnasium import spaces

from offline_cli import open_dataset, write_dataset
from offline_cli.datasets.manifest import EnvironmentRecord
from offline_cli.storage.locations import open_location

Make = Callable[..., Any]


def test_the_card_has_a_header_that_hugging_face_reads_and_says_what_the_dataset_is(
    tmp_path: Path, make_batch: Make, writer_for: Make
) -> None:
    with writer_for(open_location(tmp_path / "D"), environment=EnvironmentRecord("CartPole-v1")) as writer:
        writer.write(make_batch((3, 4)))
        writer.commit()
    head, _, text = (tmp_path / "D" / "README.md").read_text(encoding="utf-8").removeprefix("---\n").partition("---\n")
    assert 'pretty_name: "Episodes of CartPole-v1"' in head
    assert "- reinforcement-learning" in head
    assert "  data_files:\n  - split: train\n    path: data/*.parquet\n" in head
    assert "| episodes | 2 " in text
    assert "| steps | 7 |" in text
    assert "input_=" in text


def test_the_card_follows_the_dataset_and_a_readme_of_the_user_stays(tmp_path: Path, make_batch: Make) -> None:
    card = tmp_path / "D" / "README.md"
    write_dataset(make_batch((3,)), tmp_path / "D")
    before = card.read_text(encoding="utf-8")
    write_dataset(make_batch((3, 5)), tmp_path / "D", overwrite=True)
    assert card.read_text(encoding="utf-8") != before
    card.write_text("mine", encoding="utf-8")
    write_dataset(make_batch((3,)), tmp_path / "D", overwrite=True)
    assert card.read_text(encoding="utf-8") == "mine"


def test_pandas_and_polars_read_every_row_once(tmp_path: Path, make_batch: Make, format: str) -> None:
    write_dataset(make_batch((3, 4, 2)), tmp_path / "D", format=format, max_rows_per_file=3)
    rows = 3 if format == "episodes" else 9
    assert len(pd.read_parquet(tmp_path / "D" / "data")) == rows
    assert len(pl.read_parquet(tmp_path / "D" / "data")) == rows
    assert len(pl.read_parquet(tmp_path / "D" / "**" / "*.parquet")) == rows


def test_what_is_written_like_a_dataset_keeps_what_that_says(tmp_path: Path, make_batch: Make, writer_for: Make) -> None:
    wide = spaces.Box(-9, 9, (4,), "float32")
    about = {"environment": EnvironmentRecord("CartPole-v1"), "action_scale": "normalized", "observation_space": wide}
    with writer_for(open_location(tmp_path / "D"), **about) as writer:
        writer.write(make_batch((3, 4)))
        writer.commit()
    source = open_dataset(tmp_path / "D")
    write_dataset(source[1:], tmp_path / "E", like=source)
    have = open_dataset(tmp_path / "E").manifest
    assert (have.environment, have.action_scale, have.observation_space) == (about["environment"], "normalized", wide)


def test_a_dataset_says_what_it_is_to_people(tmp_path: Path, make_batch: Make) -> None:
    write_dataset(make_batch((3, 4)), tmp_path / "D")
    found = open_dataset(tmp_path / "D")
    assert f"{tmp_path}/D" in repr(found)
    assert "2 episodes, 7 steps" in repr(found)
    assert {"batches", "manifest", "to_polars", "to_torch"} <= set(dir(found))
    assert not [name for name in dir(found) if name.startswith("_") and not name.startswith("__")]


def test_the_card_tells_hugging_face_the_types_of_tensors(tmp_path: Path, make_batch: Make, write_dataset: Make) -> None:
    space = spaces.Dict({"camera": spaces.Box(0, 255, (8, 8, 3), np.uint8), "speed": spaces.Box(-1, 1, (2,), np.float32)})
    write_dataset(
        open_location(tmp_path / "D"), make_batch((3,), observation_space=space), observation_space=space, format="columns"
    )

    card = (tmp_path / "D" / "README.md").read_text(encoding="utf-8")
    head = card.split("---\n")[1]

    line = next(line for line in head.splitlines() if line.startswith("dataset_info: "))
    features = {one["name"]: one for one in json.loads(line.partition(": ")[2])["features"]}
    camera, speed = features["obs"]["struct"]
    assert camera == {"name": "camera", "list": "uint8", "length": 192}
    assert speed == {"name": "speed", "list": "float32", "length": 2}
    frame = pl.read_parquet(tmp_path / "D" / "data" / "*.parquet")
    images = frame["obs"].struct.field("camera").to_numpy().reshape(-1, 8, 8, 3)
    assert len(images) == 3
    lines = card.partition("## Columns")[2].splitlines()
    rows = dict(line[2:-2].split(" | ", 1) for line in lines if line.startswith("| "))
    assert "`.reshape(-1, 8, 8, 3)`" in rows["obs.camera"]
    assert {each for name in rows for each in name.split(", ")} >= set(frame.columns)
    assert (features["t"]["dtype"], features["rewards"]["dtype"]) == ("int64", "float64")


def test_the_card_says_what_the_numbers_mean(tmp_path: Path, make_batch: Make) -> None:
    known = {
        "obs": [{"name": "temperature", "unit": "°C"}, {}, {"name": "a|b"}, {}],
        "actions": [{"categories": ["down", "hold", "up"]}],
    }
    write_dataset(make_batch((3, 4)), tmp_path / "D", meanings=known)

    card = (tmp_path / "D" / "README.md").read_text(encoding="utf-8")

    assert "| obs[0] | temperature; in °C |" in card
    assert "| obs[2] | a\\|b |" in card
    assert "| actions | 0 down, 1 hold, 2 up |" in card


def test_the_lines_of_the_card_open_the_dataset_beside_it(
    tmp_path: Path, make_batch: Make, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(make_batch((3, 4)), tmp_path / "D", format=format)
    code = (tmp_path / "D" / "README.md").read_text(encoding="utf-8").split("```python\n")[1].partition("import datasets")[0]
    monkeypatch.chdir(tmp_path / "D")
    found: dict[str, Any] = {}

    exec(code, found)

    assert len(found["dataset"]) == 2
    assert len(found["episode"]) == 3
    assert len(found["frame"]) == (2 if format == "episodes" else 7)


def test_the_card_says_what_was_assumed(tmp_path: Path, make_batch: Make, writer_for: Make) -> None:
    with writer_for(open_location(tmp_path / "D")) as writer:
        writer.write(make_batch((3, 4)))
        writer.commit(assumptions={"missing-end-flags": 2, "missing-final-observation": 1})

    card = (tmp_path / "D" / "README.md").read_text(encoding="utf-8")

    assert "| assumed while it was made | missing-end-flags 2, missing-final-observation 1 |" in card
