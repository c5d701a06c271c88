"""`filter`: which episodes it keeps, what it writes, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from operated import data_files, manifest, numbers

from offline_cli import filter as filtered
from offline_cli.converting.convert import convert
from offline_cli.errors import OutputExists, UsageError

Made = Callable[..., Path]
NAN = float("nan")


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    """A table of four episodes of 1 to 4 steps."""
    rows = [f"{length},{0.5 * step},0,{length},{int(step == length - 1)}" for length in (1, 2, 3, 4) for step in range(length)]
    file = tmp_path / "log.csv"
    file.write_text("\n".join(["eps_id,obs,actions,rewards,terminateds", *rows]) + "\n", encoding="utf-8")
    return file


def test_the_episodes_for_which_the_condition_is_true_are_kept_in_order(
    made: Made, format: str, tmp_path: Path, told: Callable[..., dict[str, Any]]
) -> None:
    source = made([5, 1, 9, 2, 7], lengths=[3, 1, 5, 2, 9], format=format)
    found = told("filter", source, "--out", tmp_path / "F", "--where", "return > 4 and length < 8")
    assert numbers(tmp_path / "F") == [0, 2]
    assert (found["episodes"], found["steps"], found["dropped"], found["format"]) == (2, 8, 3, format)
    assert found["undecided"] == 0


def test_the_best_are_those_with_the_highest_return_and_the_first_of_equal_ones(made: Made, tmp_path: Path) -> None:
    source = made([5, 7, NAN, 5, 7, 5, 1, 5, 0, 5])
    for fraction, want in ((0.1, [1]), (0.2, [1, 4]), (0.4, [0, 1, 3, 4]), (0.01, [1]), (1, [0, 1, 3, 4, 5, 6, 7, 8, 9])):
        filtered(source, tmp_path / "F", top_fraction=fraction, overwrite=True)
        assert numbers(tmp_path / "F") == want


def test_options_that_choose_are_combined_by_and(made: Made, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("episode-1\n\nepisode-3\r\nepisode-4\nepisode-1\n", encoding="utf-8")
    filtered(made([5, 7, 6, 1, 7]), tmp_path / "F", where="return < 8", top_fraction=0.6, ids_file=tmp_path / "ids")
    assert numbers(tmp_path / "F") == [1, 4]


def test_an_episode_whose_return_is_nan_is_undecided(made: Made, format: str, tmp_path: Path) -> None:
    found = filtered(made([5, NAN, 6], format=format), tmp_path / "F", where="return > 5 or return < 0")
    assert (found.undecided, found.dropped, numbers(tmp_path / "F")) == (1, 2, [2])


def test_sources_of_several_kinds_are_one(csv: Path, tmp_path: Path) -> None:
    convert(csv, tmp_path / "D", to="columns")
    half = tmp_path / "half.csv"
    half.write_text(csv.read_text(encoding="utf-8").replace("\n4,", "\nfour,"), encoding="utf-8")
    found = filtered([tmp_path / "D", half], tmp_path / "F", where="length = 4")
    assert (found.episodes, found.format) == (2, "episodes")


def test_nothing_chosen_is_no_data_and_nothing_is_written(made: Made, tmp_path: Path, call: Any) -> None:
    code, found = call("filter", made([1, 2]), "--out", tmp_path / "F", "--where", "return > 450")
    assert (code, found["error"]["code"]) == (3, "no-data")
    assert "none of the 2 episodes is chosen" in found["error"]["what"]
    assert not (tmp_path / "F").exists()


def test_what_is_there_is_not_touched_unless_it_is_to_be_overwritten(made: Made, tmp_path: Path) -> None:
    source, out = made([1, 2]), tmp_path / "F"
    filtered(source, out, where="return = 1")
    with pytest.raises(OutputExists):
        filtered(source, out, where="return = 2")
    assert numbers(out) == [0]
    filtered(source, out, where="return = 2", overwrite=True)
    assert numbers(out) == [1]


@pytest.mark.parametrize(
    ("given", "code", "what"),
    [
        ([], 2, "no condition for the episodes to keep"),
        (["--where", "reward > 5"], 2, "no column of episodes is called 'reward'"),
        (["--top-fraction", "1.5"], 2, "--top-fraction"),
        (["--ids-file", "none.txt"], 5, "none.txt"),
        (["--ids-file", "ids"], 3, "6 of 7 ids are in no source: a, b, c, d, e and 1 more"),
        (["--ids-file", "bytes"], 3, "not UTF-8"),
    ],
)
def test_what_cannot_be_chosen_is_refused(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any, given: list[str], code: int, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    made([1])
    Path("ids").write_text("a\nb\nc\nd\ne\nf\nepisode-0", encoding="utf-8")
    Path("bytes").write_bytes(b"\xff\xfe")
    have, found = call("filter", "D", "--out", "F", *given)
    assert (have, what in json.dumps(found["error"], ensure_ascii=False)) == (code, True), found
    assert not Path("F").exists()


def test_a_dry_run_counts_and_writes_nothing(made: Made, tmp_path: Path) -> None:
    found = filtered(made([1, 2, 3]), tmp_path / "F", where="return > 1", dry_run=True)
    assert (found.episodes, found.steps, found.dropped, found.dry_run) == (2, 6, 1, True)
    assert not (tmp_path / "F").exists()


def test_an_interrupted_run_is_resumed_to_the_same_files(
    made: Made, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = made(range(40), format=format, lengths=[1] * 40)
    chosen = {"where": "return % 4 <> 0", "max_rows_per_file": 5}
    filtered(source, tmp_path / "whole", **chosen)
    from offline_cli.datasets.shards import ShardSequence

    close = ShardSequence.close

    def broken(self: ShardSequence) -> None:
        if len(self.finished) == 2:
            raise OSError("the power is gone")
        close(self)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="power"):
        patched.setattr(ShardSequence, "close", broken)
        filtered(source, tmp_path / "F", **chosen)
    with pytest.raises(UsageError):
        filtered(source, tmp_path / "F", **chosen)
    filtered(source, tmp_path / "F", **chosen, resume=True)
    assert data_files(tmp_path / "F") == data_files(tmp_path / "whole")
    assert manifest(tmp_path / "F") == manifest(tmp_path / "whole")


def test_episodes_with_problems_are_left_out(made: Made, format: str, tmp_path: Path, call: Any) -> None:
    space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    source = made([1, NAN, 3, 4, NAN], format=format, observation_space=space, writing={"observation_space": space})
    code, found = call("validate", source)
    assert code == 3
    (tmp_path / "problems.json").write_text(json.dumps(found), encoding="utf-8")
    result = filtered(source, tmp_path / "F", drop_problems=tmp_path / "problems.json")
    assert (numbers(tmp_path / "F"), result.dropped) == ([0, 2, 3], 2)
    assert call("validate", tmp_path / "F")[0] == 0
