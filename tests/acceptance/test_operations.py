"""Operations on datasets: which episodes they keep, and that they change none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from offline_cli import EpisodeBatch, open_dataset, write_dataset

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "sample_data" / "rllib_cartpole_expert"
Done = Callable[..., dict[str, Any]]
OURS = pytest.mark.parametrize("to", ["episodes", "columns"])


@pytest.fixture(scope="module")
def dataset(done: Done, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The sample recording as a dataset of a row format."""
    folder = tmp_path_factory.mktemp("operations")

    def make(to: str) -> Path:
        out = folder / to
        if not out.exists():
            done("convert", SOURCE, "--env", "CartPole-v1", "--to", to, "--out", out)
        return out

    return make


def rows_of(dataset: Path) -> pl.DataFrame:
    """The rows of its shards, in the order of the manifest, as Polars reads them."""
    shards = json.loads((dataset / "manifest.json").read_text(encoding="utf-8"))["shards"]
    return pl.concat([pl.read_parquet(dataset / shard["path"]) for shard in shards])


def ids(dataset: Path) -> list[str]:
    """Of its episodes, in order."""
    return rows_of(dataset).get_column("eps_id").unique(maintain_order=True).to_list()


def plain(dataset: Path) -> pl.DataFrame:
    """One row an episode: id, length and return, as Polars computes them."""
    rows = rows_of(dataset)
    if "item" in rows.columns:
        return rows.select("eps_id", "length", "return")
    steps = rows.group_by("eps_id", maintain_order=True)
    return steps.agg(pl.len().cast(pl.Int64).alias("length"), pl.col("rewards").sum().alias("return"))


@OURS
def test_filter_keeps_the_episodes_that_polars_keeps(to: str, dataset: Any, done: Done, tmp_path: Path) -> None:
    told = done("filter", dataset(to), "--where", "length >= 450 and return < 500", "--out", tmp_path / "F")
    kept = plain(dataset(to)).filter((pl.col("length") >= 450) & (pl.col("return") < 500)).get_column("eps_id").to_list()
    assert ids(tmp_path / "F") == kept
    assert (told["episodes"], told["dropped"]) == (len(kept), 20 - len(kept))


@OURS
def test_split_puts_each_episode_into_one_part_and_merge_puts_them_together_again(
    to: str, dataset: Any, done: Done, tmp_path: Path
) -> None:
    told = done("split", dataset(to), "--fractions", "train=0.8,val=0.2", "--seed", 3, "--out", tmp_path / "S")
    train, val = ids(tmp_path / "S" / "train"), ids(tmp_path / "S" / "val")
    assert (len(train), len(val), told["episodes"]) == (16, 4, 20)
    assert sorted(train + val) == sorted(ids(dataset(to)))
    done("merge", tmp_path / "S" / "train", tmp_path / "S" / "val", "--out", tmp_path / "M")
    assert ids(tmp_path / "M") == train + val
    assert done("diff", dataset(to), tmp_path / "M")["equal"] is True


@OURS
def test_sample_draws_the_same_episodes_for_the_same_seed(to: str, dataset: Any, done: Done, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        done("sample", dataset(to), "--episodes", 5, "--seed", seed, "--out", tmp_path / name)
    assert ids(tmp_path / "a") == ids(tmp_path / "b") != ids(tmp_path / "c")
    assert set(ids(tmp_path / "a")) < set(ids(dataset(to)))


def test_repack_gives_equal_episodes_in_other_shards(dataset: Any, done: Done, tmp_path: Path) -> None:
    told = done("repack", dataset("episodes"), "--format", "columns", "--max-rows-per-file", 2000, "--out", tmp_path / "R")
    files = sorted((tmp_path / "R" / "data").iterdir())
    assert told["shards"] == len(files) > 1
    assert all(len(pl.read_parquet(file)) <= 2000 for file in files)
    assert done("diff", dataset("episodes"), tmp_path / "R")["equal"] is True


def test_diff_names_the_first_step_that_differs(dataset: Any, run: Any, tmp_path: Path) -> None:
    episodes = EpisodeBatch.concat(list(open_dataset(str(dataset("episodes"))).batches()))
    rewards = episodes.rewards.copy()
    rewards[episodes.starts[3] + 7] += 1
    write_dataset([replace(episodes, rewards=rewards)], str(tmp_path / "changed"))
    code, told = run("diff", dataset("episodes"), tmp_path / "changed")
    first = told["first"]
    assert code == 7
    assert (told["changed"], first["episode"], first["step"], first["column"]) == (1, episodes.ids[3], 7, "rewards")


@OURS
def test_appending_adds_the_episodes_and_keeps_the_shards_that_are_there(to: str, done: Done, tmp_path: Path) -> None:
    done("record", "CartPole-v1", "--policy", "random", "--episodes", 4, "--seed", 1, "--format", to, "--out", tmp_path / "D")
    done("record", "CartPole-v1", "--policy", "random", "--episodes", 3, "--seed", 2, "--format", to, "--out", tmp_path / "E")
    before = {file.name: file.read_bytes() for file in (tmp_path / "D" / "data").iterdir()}
    told = done("convert", tmp_path / "E", "--to", to, "--append", "--out", tmp_path / "D")
    assert told["episodes_appended"] == 3
    after = {file.name: file.read_bytes() for file in (tmp_path / "D" / "data").iterdir()}
    assert before.items() < after.items()
    assert ids(tmp_path / "D")[4:] == ids(tmp_path / "E")


def test_overwrite_leaves_nothing_of_the_dataset_that_was_there(done: Done, tmp_path: Path) -> None:
    cartpole = ("record", "CartPole-v1", "--policy", "random", "--episodes", 4)
    done(*cartpole, "--seed", 1, "--out", tmp_path / "D")
    done(*cartpole, "--seed", 2, "--out", tmp_path / "D", "--overwrite")
    done(*cartpole, "--seed", 2, "--out", tmp_path / "E")
    assert pl.read_parquet(tmp_path / "D" / "**" / "*.parquet")["eps_id"].to_list() == ids(tmp_path / "E")
