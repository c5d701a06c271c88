"""After `--overwrite`, of every writer: whoever reads all Parquet below the dataset's folder gets each row once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import polars as pl
import pytest

from offline_cli import DatasetWriter, Recorder, open_dataset, write_dataset

Call = Callable[..., Any]
PIPELINE = 'kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n'
COMMANDS = {
    "record": ("record", "CartPole-v1", "--policy", "random", "--episodes", "3"),
    "convert": ("convert", "{source}"),
    "filter": ("filter", "{source}", "--where", "length > 4"),
    "merge": ("merge", "{source}"),
    "sample": ("sample", "{source}", "--episodes", "3"),
    "repack": ("repack", "{source}", "--format", "columns"),
    "apply": ("apply", "{source}", "--pipeline", "{pipeline}"),
}


def rows_below(folder: Path) -> pl.DataFrame:
    """What Polars, and what Hugging Face's `load_dataset`, take for the rows of a folder."""
    found = pl.read_parquet(folder / "**" / "*.parquet")
    by_hand = sorted(path for path in folder.rglob("*") if path.suffix == ".parquet")
    assert len(found) == sum(len(pl.read_parquet(path)) for path in by_hand)
    return found


@pytest.fixture
def source(recording: Path, tmp_path: Path, call: Call) -> Path:
    """A dataset of eight episodes."""
    assert call("convert", recording, "--out", tmp_path / "source", "--quiet").exit_code == 0
    return tmp_path / "source"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_row_once_after_a_command(name: str, source: Path, tmp_path: Path, call: Call) -> None:
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    words = [word.format(source=source, pipeline=tmp_path / "pipeline.toml") for word in COMMANDS[name]]
    rows = []
    for _ in range(3):
        done = call(*words, "--out", tmp_path / "D", "--overwrite", "--quiet")
        assert done.exit_code == 0, done.stderr
        rows.append(len(rows_below(tmp_path / "D")))
    assert rows == rows[:1] * 3


def test_each_row_once_after_split(source: Path, tmp_path: Path, call: Call) -> None:
    for seed in ("1", "2", "3"):
        done = call(
            "split",
            source,
            "--fractions",
            "train=0.75,val=0.25",
            "--seed",
            seed,
            "--out",
            tmp_path / "F",
            "--overwrite",
            "--quiet",
        )
        assert done.exit_code == 0, done.stderr
    assert len(rows_below(tmp_path / "F")) == 8
    assert rows_below(tmp_path / "F")["eps_id"].is_unique().all()


@pytest.mark.parametrize("way", ["write_dataset", "writer", "recorder"])
def test_each_row_once_after_a_program(way: str, recorded: Any, tmp_path: Path) -> None:
    out = tmp_path / "D"

    def write() -> None:
        if way == "write_dataset":
            write_dataset(recorded, out, overwrite=True)
        elif way == "writer":
            spaces = {"observation_space": recorded.observation_space, "action_space": recorded.action_space}
            with DatasetWriter(out, **spaces, overwrite=True) as writer:
                writer.write(recorded)
                writer.commit()
        else:
            with Recorder(gym.make("CartPole-v1"), out, overwrite=True) as env:
                env.reset(seed=0)
                while not any(env.step(1)[2:4]):
                    pass

    for _ in range(3):
        write()
    assert rows_below(out)["eps_id"].to_list() == [name for batch in open_dataset(out).batches() for name in batch.ids]


def test_rows_that_were_set_aside_are_no_rows_of_the_dataset(tmp_path: Path, call: Call) -> None:
    (tmp_path / "m.toml").write_text('[columns]\neps_id = "e"\nobs = "x"\nactions = "a"\nrewards = "r"\n')
    (tmp_path / "t.csv").write_text("e,x,a,r\n" + "1,0.5,1,1\n" * 3 + "2,0.5,1,broken\n" + "3,0.5,0,1\n" * 2)
    said = ("--mapping", tmp_path / "m.toml", "--to", "columns", "--on-error", "quarantine", "--out", tmp_path / "D")
    assert call("convert", tmp_path / "t.csv", *said).exit_code == 0
    assert pl.read_parquet(tmp_path / "D" / "quarantine" / "rows-000000.rejects").height > 0
    assert rows_below(tmp_path / "D").height == 5
