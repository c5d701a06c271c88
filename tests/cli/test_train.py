"""`train`: any algorithm by its name, with options as `--set KEY=VALUE`; `train-bc` is the first of them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import offline_cli

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
def test_set_wins_over_the_file_option_by_option(call_json: Call, recording: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[algorithm]\nname = "valued_cloning"\ntau = 0.5\nbeta = 2.0\n', encoding="utf-8")
    code, _ = call_json("train", recording, "--out", tmp_path / "run", "--config", file, "--set", "tau=0.25", *FEW)
    found = table(tmp_path / "run")
    assert (code, found["tau"], found["beta"]) == (0, 0.25, 2.0)


@pytest.mark.usefixtures("valued_cloning")
def test_all_mistakes_are_told_at_once_as_they_were_written(call_json: Call, recording: Path, tmp_path: Path) -> None:
    wrong = ("--set", "tau=7", "--set", "evry=2", "--set", "beta=much")
    code, told = call_json("train", recording, "--out", tmp_path / "run", "--algorithm", "valued_cloning", *wrong, *FEW)
    assert code == 4
    assert told["error"]["problems"] == [
        "unknown key 'algorithm.evry', did you mean 'algorithm.every'?",
        "--set tau: must be a number at least 0 and at most 1, not 7",
        "--set beta: must be a number at least 0, not 'much'",
    ]
    assert not (tmp_path / "run").exists()


def test_an_algorithm_that_nobody_knows_is_refused_by_name(call_json: Call, recording: Path, tmp_path: Path) -> None:
    code, told = call_json("train", recording, "--out", tmp_path / "run", "--algorithm", "bcc")
    assert (code, "--algorithm: no algorithm 'bcc'" in told["error"]["what"]) == (4, True)


def test_option_and_file_that_name_two_algorithms_are_refused(call_json: Call, recording: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[algorithm]\nname = "valued_cloning"\n', encoding="utf-8")
    code, told = call_json("train", recording, "--out", tmp_path / "run", "--config", file, "--algorithm", "bc")
    assert (code, told["error"]["what"]) == (2, "--algorithm says bc, and the file's [algorithm] valued_cloning")


def test_the_name_is_not_an_option(call_json: Call, recording: Path, tmp_path: Path) -> None:
    code, told = call_json("train", recording, "--out", tmp_path / "run", "--set", "name=bc")
    assert (code, told["error"]["where"]) == (2, "--set name")


@pytest.mark.usefixtures("valued_cloning")
def test_a_run_resumes_with_its_own_algorithm_alone(call_json: Call, recording: Path, tmp_path: Path) -> None:
    run = ("train", recording, "--out", tmp_path / "run", "--batch-size", "8")
    assert call_json(*run, "--updates", "2", "--algorithm", "valued_cloning", "--set", "tau=0.5")[0] == 0
    code, told = call_json(*run, "--updates", "4", "--resume", "--algorithm", "bc")
    assert (code, "algorithm.name: the run has valued_cloning, this call asks for bc" in told["error"]["what"]) == (4, True)
    code, told = call_json(*run, "--updates", "4", "--resume", "--plugin", "valued_cloning", "--set", "tau=0.25")
    assert (code, "algorithm.tau: the run has 0.5, this call asks for 0.25" in told["error"]["what"]) == (4, True)
    code, told = call_json(*run, "--updates", "4", "--resume", "--algorithm", "valued_cloning")
    assert (code, told.get("updates")) == (0, 4)


@pytest.mark.usefixtures("valued_cloning")
def test_help_after_an_algorithm_shows_its_options(call: Call) -> None:
    shown = " ".join(call("train", "--algorithm", "valued_cloning", "--help").stdout.split())
    assert "Options of valued_cloning: --set gamma=... Discount. [a number at least 0 and at most 1; default: 0.9]" in shown
    assert "Options of" not in call("train", "--help").stdout


def test_the_function_takes_what_the_command_takes(recording: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert offline_cli.train(recording, run, algorithm="bc", set={}, updates=2, batch_size=8).updates == 2
    with pytest.raises(offline_cli.OfflineCliError, match="--algorithm must be text"):
        offline_cli.train(recording, run, algorithm=5)  # type: ignore[arg-type]


def test_a_run_with_a_falling_rate_resumes_to_the_same_bytes_and_with_its_bound_alone(
    call_json: Call, recording: Path, tmp_path: Path
) -> None:
    options = (
        "--lr-schedule",
        "cosine",
        "--lr-warmup",
        "2",
        "--weight-decay",
        "0.1",
        "--clip-norm",
        "0.5",
        "--batch-size",
        "8",
    )
    (tmp_path / "mine.toml").write_text("checkpoint_every = 3\n", encoding="utf-8")
    config = ("--config", tmp_path / "mine.toml")
    whole = ("train", recording, "--out", tmp_path / "whole", *options, *config, "--updates", "6")
    assert call_json(*whole)[0] == 0
    parts = ("train", recording, "--out", tmp_path / "parts", "--updates", "6", *config)
    assert call_json(*parts, *options)[0] == 0
    code, told = call_json("train", recording, "--out", tmp_path / "parts", "--resume", "--updates", "9")
    assert (code, "updates: the run has 6, this call asks for 9" in told["error"]["what"]) == (4, True)
    policies = [(tmp_path / name / "policy.safetensors").read_bytes() for name in ("whole", "parts")]
    assert policies[0] == policies[1]


def test_a_schedule_changes_what_is_learned_and_train_bc_has_none(call_json: Call, recording: Path, tmp_path: Path) -> None:
    for name, options in {"plain": (), "falling": ("--lr-schedule", "linear")}.items():
        assert call_json("train", recording, "--out", tmp_path / name, *FEW, *options)[0] == 0
    policies = [(tmp_path / name / "policy.safetensors").read_bytes() for name in ("plain", "falling")]
    assert policies[0] != policies[1]
    assert call_json("train-bc", recording, "--out", tmp_path / "run", "--lr-schedule", "linear")[0] == 2
