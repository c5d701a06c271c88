"""`sample` and `split`: seeded, without replacement, and never through an episode."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from operated import data_files, items, manifest, numbers, read

from offline_cli import sample, split
from offline_cli.errors import OutputExists, UsageError

Made = Callable[..., Path]


def test_as_many_episodes_are_drawn_in_the_order_of_the_source(made: Made, format: str, tmp_path: Path, told: Any) -> None:
    source = made(range(100), lengths=[1] * 100, format=format)
    found = told("sample", source, "--out", tmp_path / "F", "--episodes", "30")
    drawn = numbers(tmp_path / "F")
    assert (found["episodes"], found["dropped"], len(set(drawn)), sorted(drawn)) == (30, 70, 30, drawn)
    sample(source, tmp_path / "again", episodes=30)
    sample(source, tmp_path / "other", episodes=30, seed=1)
    assert data_files(tmp_path / "again") == data_files(tmp_path / "F")
    assert numbers(tmp_path / "other") != drawn


def test_steps_are_reached_with_the_fewest_episodes(made: Made, tmp_path: Path) -> None:
    source = made(range(10), lengths=[4] * 10)
    assert sample(source, tmp_path / "F", steps=9).episodes == 3
    assert sample(source, tmp_path / "G", steps=8).episodes == 2
    assert set(numbers(tmp_path / "G")) < set(numbers(tmp_path / "F"))


@pytest.mark.parametrize("amounts", [{}, {"episodes": 1, "steps": 1}, {"fraction": 1.5}, {"episodes": 0}])
def test_a_sample_has_one_size(made: Made, tmp_path: Path, amounts: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        sample(made([1]), tmp_path / "F", **amounts)


# ---- split ----


def test_each_episode_is_in_one_part_and_the_counts_are_exact(made: Made, format: str, tmp_path: Path, told: Any) -> None:
    source = made(range(97), lengths=[1 + n % 3 for n in range(97)], format=format)
    found = told("split", source, "--out", tmp_path / "F", "--fractions", "train=0.8,val=0.1,test=0.1")
    parts = {name: numbers(tmp_path / "F" / name) for name in ("train", "val", "test")}
    assert {name: len(part) for name, part in parts.items()} == {"train": 77, "val": 10, "test": 10}
    assert sorted(chain(*parts.values())) == list(range(97))
    assert all(part == sorted(part) for part in parts.values())
    assert (found["episodes"], found["steps"], found["dropped"]) == (97, int(read(source).num_steps), 0)
    assert found["parts"]["val"]["episodes"] == 10
    if format == "episodes":
        assert {k: v for name in parts for k, v in items(tmp_path / "F" / name).items()} == items(source)


def test_a_column_makes_a_part_for_each_value(made: Made, format: str, tmp_path: Path) -> None:
    names = ("p/0", "p", None, "..", "", "p")
    source = made(range(6), format=format, module_ids=names, agent_ids=("x",) * 6)
    found = split(source, tmp_path / "F", by="module_id")
    have = {part.name: numbers(part) for part in (tmp_path / "F").iterdir()}
    assert have == {"empty": [4], "%2E.": [3], "p": [1, 5], "p%2F0": [0], "null": [2]}
    assert found.parts.keys() == have.keys()


@pytest.mark.parametrize(
    ("given", "code", "what"),
    [
        ([], 2, "exactly one of --fractions, --counts and --by"),
        (["--fractions", "a=0.5", "--by", "length"], 2, "exactly one"),
        (["--fractions", "a=0.9,b=0.2"], 2, "sum to 1.1"),
        (["--fractions", "a=x,../b=0.1,a=0.1"], 2, "3 mistakes"),
        (["--counts", "a=1.5"], 2, "an integer"),
        (["--counts", "a=60,b=41"], 3, "101 episodes requested, but the sources have 100"),
        (["--fractions", "a=0.99,b=0.001"], 3, "none is left for b"),
        (["--by", "reward"], 2, "no column of episodes is called 'reward'"),
        (["--by", "eps_id"], 2, "100 values; at most 64"),
    ],
)
def test_what_makes_no_parts_is_refused(made: Made, tmp_path: Path, call: Any, given: list[str], code: int, what: str) -> None:
    have, found = call("split", made(range(100)), "--out", tmp_path / "F", *given)
    assert (have, what in found["error"]["what"]) == (code, True), found
    assert not (tmp_path / "F").exists()


def test_resume_leaves_complete_parts_alone_and_writes_the_others(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from offline_cli.datasets.writer import DatasetWriter

    source, asked = made(range(30)), {"fractions": "train=0.8,val=0.2", "max_rows_per_file": 5}
    split(source, tmp_path / "whole", **asked)
    commit = DatasetWriter.commit

    def broken(self: DatasetWriter, **given: Any) -> Any:
        if self.location.name == "val":
            raise OSError("the power is gone")
        return commit(self, **given)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="power"):
        patched.setattr(DatasetWriter, "commit", broken)
        split(source, tmp_path / "F", **asked)
    before = (tmp_path / "F" / "train" / "manifest.json").stat().st_mtime_ns
    with pytest.raises(OutputExists):
        split(source, tmp_path / "F", **asked)
    with pytest.raises(OutputExists):
        split(source, tmp_path / "F", **asked, seed=1, resume=True)
    found = split(source, tmp_path / "F", **asked, resume=True)
    assert (found.episodes, found.parts["train"]["episodes"]) == (30, 24)
    assert (tmp_path / "F" / "train" / "manifest.json").stat().st_mtime_ns == before
    for name in ("train", "val"):
        assert data_files(tmp_path / "F" / name) == data_files(tmp_path / "whole" / name)
        assert manifest(tmp_path / "F" / name) == manifest(tmp_path / "whole" / name)
    with pytest.raises(OutputExists):
        split(source, tmp_path / "F", **asked, resume=True)
