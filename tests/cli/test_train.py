"""`train`: any algorithm by its name, with options as `--set KEY=VALUE`; `train-bc` is the first of them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]

FEW = ("--updates", "3", "--batch-size", "8")


def table(run: Path) -> dict[str, Any]:
    """The algorithm of a run, and its options."""
    found: dict[str, Any] = tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))["algorithm"]
    return found


def test_train_without_an_algorithm_clones_as_train_bc_does(call_json: Call, recording: Path, tmp_path: Path) -> None:
    for command in ("train", "train-bc"):
        assert call_json(command, recording, "--out", tmp_path / command, *FEW)[0] == 0
    runs = [(tmp_path / command) for command in ("train", "train-bc")]
    for file in ("policy.safetensors", "config.toml", "policy.json"):
        assert (runs[0] / file).read_bytes() == (runs[1] / file).read_bytes()


@pytest.mark.usefixtures("valued_cloning")
def test_set_gives_options_of_the_algorithm_as_toml_has_them(call_json: Call, recording: Path, tmp_path: Path) -> None:
    options = ("--algorithm", "valued_cloning", "--set", "tau=0.25", "--set", "every=3")
    code, told = call_json("train", recording, "--out", tmp_path / "run", *options, *FEW)
    assert (code, set(told["losses"])) == (0, {"value", "cloning", "entropy"})
    found = table(tmp_path / "run")
    assert {name: found[name] for name in ("name", "tau", "every", "beta")} == {
        "name": "valued_cloning",
        "tau": 0.25,
        "every": 3,
        "beta": 1.0,
    }


@pytest.mark.usefixtures("valued_cloning")
def test_all_mistakes_are_told_at_once_as_they_were_written(call_json: Call, recording: Path, tmp_path: Path) -> None:
    wrong = ("--set", "tau=7", "--set", "evry=2", "--set", "beta=much")
    code, told = call_json("train", recording, "--out", tmp_path / "run", "--algorithm", "valued_cloning", *wrong, *FEW)
    assert code == 4
    problems = " | ".join(told["error"]["problems"])
    for words in ("'evry' was unexpected", "algorithm.tau: 7", "algorithm.beta: 'much'"):
        assert words in problems
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("valued_cloning")
def test_a_run_resumes_with_its_own_algorithm_alone(call_json: Call, recording: Path, tmp_path: Path) -> None:
    run = ("train", recording, "--out", tmp_path / "run", "--batch-size", "8")
    assert call_json(*run, "--updates", "2", "--algorithm", "valued_cloning", "--set", "tau=0.5")[0] == 0
    code, told = call_json(*run, "--updates", "4", "--resume", "--algorithm", "bc")
    assert (code, "algorithm.name: the run has valued_cloning, this call bc" in told["error"]["what"]) == (4, True)
    code, told = call_json(*run, "--updates", "4", "--resume", "--plugin", "valued_cloning", "--set", "tau=0.25")
    assert (code, "algorithm.tau: the run has 0.5, this call 0.25" in told["error"]["what"]) == (4, True)
    code, told = call_json(*run, "--updates", "4", "--resume", "--algorithm", "valued_cloning")
    assert (code, told.get("updates")) == (0, 4)


def test_a_run_with_a_falling_rate_resumes_to_the_same_bytes_and_with_its_bound_alone(
    call_json: Call, recording: Path, tmp_path: Path
) -> None:
    line = "--lr-schedule cosine --lr-warmup 2 --weight-decay 0.1 --clip-norm 0.5 --batch-size 8"
    options = line.split()
    (tmp_path / "mine.toml").write_text("checkpoint_every = 3\n", encoding="utf-8")
    config = ("--config", tmp_path / "mine.toml")
    whole = ("train", recording, "--out", tmp_path / "whole", *options, *config, "--updates", "6")
    assert call_json(*whole)[0] == 0
    parts = ("train", recording, "--out", tmp_path / "parts", "--updates", "6", *config)
    assert call_json(*parts, *options)[0] == 0
    code, told = call_json("train", recording, "--out", tmp_path / "parts", "--resume", "--updates", "9")
    assert (code, "updates: the run has 6, this call 9" in told["error"]["what"]) == (4, True)
    policies = [(tmp_path / name / "policy.safetensors").read_bytes() for name in ("whole", "parts")]
    assert policies[0] == policies[1]
