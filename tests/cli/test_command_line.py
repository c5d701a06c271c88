"""What a command line says, as keywords of the library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.cli.app import command_named
from offline_cli.cli.command_line import parse, runnable
from offline_cli.errors import BadConfig, UsageError


def parsed(*line: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Flags and options of `COMMAND ...`."""
    command = command_named(line[0])
    context = runnable(command).make_context(command.name, list(line[1:]))
    return parse(command, context.params)


def test_a_json_object_is_a_mapping() -> None:
    line = ("record", "E", "--out", "d", "-p", "random")
    assert parsed(*line, "--env-kwargs", '{"gravity": 9.8}')[1]["env_kwargs"] == {"gravity": 9.8}
    for text in ("[1]", "gravity"):
        with pytest.raises(BadConfig) as caught:
            parsed(*line, "--env-kwargs", text)
        assert caught.value.where == "--env-kwargs"
        assert "gravity" in caught.value.fix


# ---- values outside what an option declares ----


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (("train-bc", "a", "--out", "r", "--lr", "0"), "--lr 0 is not above 0"),
        (("train-bc", "a", "--out", "r", "--lr", "nan"), "--lr must be a finite number, not nan"),
        (("train-bc", "a", "--out", "r", "--val-fraction", "1"), "--val-fraction 1 is not below 1"),
        (("train-bc", "a", "--out", "r", "--batch-size", "0"), "--batch-size 0 is less than 1"),
        (("train-bc", "a", "--out", "r", "--seed", "-1"), "--seed -1 is less than 0"),
        (("convert", "a", "--out", "d", "--workers", "0"), "--workers 0 is less than 1"),
    ],
)
def test_an_option_out_of_its_range_is_usage_by_its_name(
    line: tuple[str, ...], what: str, call_json: Callable[..., Any]
) -> None:
    code, told = call_json(*line)
    assert (code, told["error"]["what"]) == (2, what)
    assert told["error"]["fix"] == f"offline-cli {line[0]} --help"


def test_all_options_out_of_their_range_are_named_together(call_json: Callable[..., Any]) -> None:
    code, told = call_json("train-bc", "a", "--out", "r", "--lr", "0", "--batch-size", "0")
    assert (code, told["error"]["what"]) == (2, "--batch-size 0 is less than 1; --lr 0 is not above 0")


def test_a_value_of_a_file_out_of_its_range_is_a_bad_config(tmp_path: Path, call_json: Callable[..., Any]) -> None:
    (tmp_path / "c.toml").write_text("lr = 0\nbatch_size = 0\n")
    code, told = call_json("train-bc", "a", "--out", tmp_path / "r", "--config", tmp_path / "c.toml")
    assert (code, len(told["error"]["problems"])) == (4, 2)


# ---- texts ----


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (("filter", "a", "--out", "d", "--where", "length > 1", "--where=return > 2"), ["'length > 1'", "'return > 2'", "and"]),
        (
            ("split", "a", "--out", "d", "--fractions", "train=0.5", "--fractions", "val=0.5"),
            ["train=0.5", "val=0.5", "NAME=X"],
        ),
        (("record", "E", "-o", "d", "--out", "e", "-p", "random", "-n3", "-n", "4"), ["'d', 'e'", "'3', '4'"]),
    ],
)
def test_an_option_of_one_value_is_not_taken_twice(line: tuple[str, ...], told: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(*line)
    assert all(word in f"{caught.value.what} {caught.value.fix}" for word in told), caught.value
