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


def test_another_bound_replaces_a_stored_one_and_is_no_difference() -> None:
    stored = resolve_config({"epochs": 3})
    wanted = resolve_config({"updates": 9}, stored=stored.as_dict())
    assert (wanted.updates, wanted.epochs) == (9, None)
    assert differences(stored, wanted) == []


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"patience": 3}, UsageError),
        ({"max_val_loss": 1.0}, UsageError),
        ({"until_return": 450.0}, UsageError),
        ({"updates": 5, "epochs": 3}, UsageError),
        ({"val_fraction": 1.5}, BadConfig),
        ({"lr": 0.0}, BadConfig),
        ({"updates": 0}, BadConfig),
        ({"eval_episodes": 0}, BadConfig),
    ],
)
def test_a_mistake_in_options_names_them_as_on_the_command_line(options: dict[str, float], kind: type[OfflineCliError]) -> None:
    with pytest.raises(kind) as caught:
        resolve_config(options)
    (problem,) = caught.value.details["problems"]
    assert all("--" + name.replace("_", "-") in problem for name in options)
    assert (caught.value.where, caught.value.exit_code) == ("options", 2 if kind is UsageError else 4)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("batch-size = 3", "did you mean 'batch_size'?"),
        ("zzz = 3", "'zzz'"),
        ("patience = 3", "patience: needs val_fraction"),
        ("batch_size = 0", "batch_size: "),
        ('lr = "fast"', "lr: "),
        ("hidden = [0]", "hidden: "),
        ('activation = "sine"', "activation: "),
    ],
)
def test_a_mistake_in_the_file_names_its_key_as_it_stands_there(tmp_path: Path, text: str, key: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(BadConfig) as caught:
        resolve_config({}, file=tmp_path / "c.toml")
    (problem,) = caught.value.details["problems"]
    assert key in problem
    assert "--" not in problem
    assert caught.value.where == str(tmp_path / "c.toml")


def test_a_missing_file_and_a_broken_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(StorageNotFound):
        resolve_config({}, file=tmp_path / "none.toml")
    (tmp_path / "c.toml").write_text("lr = = 3")
    with pytest.raises(BadConfig) as caught:
        resolve_config({}, file=tmp_path / "c.toml")
    assert caught.value.where.startswith(str(tmp_path / "c.toml"))
