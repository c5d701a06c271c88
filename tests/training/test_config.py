"""Resolving a configuration: precedence, contradictions, every mistake at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_cli.errors import BadConfig, OfflineCliError, StorageNotFound, UsageError
from offline_cli.training.config import differences, resolve_config


def test_options_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("lr = 0.1\nbatch_size = 7\nhidden = [3]\n")
    config = resolve_config({"lr": 0.2, "seed": None}, file=tmp_path / "c.toml")
    assert (config.lr, config.batch_size, config.hidden, config.seed) == (0.2, 7, (3,), 0)


def test_all_mistakes_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('lr = -1\nactivaton = "relu"\npatience = 3\n')
    with pytest.raises(BadConfig) as caught:
        resolve_config({"updates": 5, "epochs": 2, "until_return": 3.0}, file=tmp_path / "c.toml")
    problems = " | ".join(caught.value.details["problems"])
    for word in ("lr", "activaton", "patience", "--updates and --epochs", "--until-return"):
        assert word in problems


@pytest.mark.parametrize(("options", "epochs"), [({}, 20), ({"until_return": 1.0, "env": "X"}, 200)])
def test_training_is_bounded_even_unasked(options: dict[str, object], epochs: int) -> None:
    assert resolve_config(options).bound(updates_per_epoch=10) == epochs * 10


def test_another_bound_replaces_a_stored_one_and_is_no_difference() -> None:
    stored = resolve_config({"epochs": 3})
    wanted = resolve_config({"updates": 9}, stored=stored.as_dict())
    assert (wanted.updates, wanted.epochs) == (9, None)
    assert differences(stored, wanted) == []


@pytest.mark.parametrize(("asked", "other"), [("updates", "epochs"), ("epochs", "updates")])
def test_a_bound_that_is_an_option_replaces_the_one_in_the_file(tmp_path: Path, asked: str, other: str) -> None:
    (tmp_path / "c.toml").write_text(f"{other} = 7\n")
    config = resolve_config({asked: 3}, file=tmp_path / "c.toml", stored={"epochs": 9})
    assert (getattr(config, asked), getattr(config, other)) == (3, None)


def test_two_bounds_in_one_file_are_a_mistake_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("updates = 7\nepochs = 2\n")
    with pytest.raises(BadConfig, match="updates and epochs: give one of the two"):
        resolve_config({}, file=tmp_path / "c.toml")


@pytest.mark.parametrize(
    "option", [{"updates": 0}, {"epochs": 0}, {"batch_size": 0}, {"eval_episodes": 0}, {"val_fraction": 1.0}]
)
def test_a_number_out_of_range_is_refused_by_name(option: dict[str, object]) -> None:
    with pytest.raises(BadConfig, match="--" + next(iter(option)).replace("_", "-")) as caught:
        resolve_config(option)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("options", "problem", "kind"),
    [
        ({"patience": 3}, "--patience: needs --val-fraction, episodes held out for validation", UsageError),
        ({"max_val_loss": 1.0}, "--max-val-loss: needs --val-fraction, episodes held out for validation", UsageError),
        ({"until_return": 450.0}, "--until-return: needs --env, an environment to play in", UsageError),
        ({"updates": 5, "epochs": 3}, "--updates and --epochs: give one of the two", UsageError),
        ({"val_fraction": 1.5}, "--val-fraction: 1.5 is not below 1", BadConfig),
        ({"lr": 0.0}, "--lr: 0 is not above 0", BadConfig),
    ],
)
def test_a_mistake_in_options_is_told_in_their_words(
    options: dict[str, float], problem: str, kind: type[OfflineCliError]
) -> None:
    with pytest.raises(kind) as caught:
        resolve_config(options)
    assert (caught.value.details["problems"], caught.value.where) == ([problem], "options")
    assert "schema" not in caught.value.fix


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("batch-size = 3", "unknown key 'batch-size', did you mean 'batch_size'?"),
        ("zzz = 3", "unknown key 'zzz'"),
        ("patience = 3", "patience: needs val_fraction, episodes held out for validation"),
        ("batch_size = 0", "batch_size: 0 is less than 1"),
        ('lr = "fast"', "lr: should be a valid number, not 'fast'"),
        ("hidden = [0]", "hidden: 0 is less than 1"),
        ('activation = "sine"', "activation: 'sine' is not one of relu, tanh, silu, gelu, linear"),
    ],
)
def test_a_mistake_in_the_file_is_told_in_its_words(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(BadConfig) as caught:
        resolve_config({}, file=tmp_path / "c.toml")
    assert (caught.value.details["problems"], caught.value.where) == ([problem], str(tmp_path / "c.toml"))


def test_a_missing_file_and_a_broken_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(StorageNotFound):
        resolve_config({}, file=tmp_path / "none.toml")
    (tmp_path / "c.toml").write_text("lr = = 3")
    with pytest.raises(BadConfig, match="not TOML"):
        resolve_config({}, file=tmp_path / "c.toml")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["lr", "val_fraction", "until_return"])
def test_a_number_that_is_not_finite_is_refused_as_an_option_and_in_a_file(tmp_path: Path, name: str, value: float) -> None:
    told = f"should be a finite number, not {value}"
    with pytest.raises(BadConfig) as caught:
        resolve_config({name: value, "env": "CartPole-v1"})
    assert caught.value.details["problems"] == [f"--{name.replace('_', '-')}: {told}"]
    (tmp_path / "c.toml").write_text(f'{name} = {value}\nenv = "CartPole-v1"')
    with pytest.raises(BadConfig) as caught:
        resolve_config({}, file=tmp_path / "c.toml")
    assert caught.value.details["problems"] == [f"{name}: {told}"]
