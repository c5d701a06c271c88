"""What a command line says, as keywords of the library."""

from __future__ import annotations

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


def test_options_that_are_not_given_are_left_to_the_library() -> None:
    flags, options = parsed("convert", "a", "b", "--out", "d")
    assert options == {}
    assert (flags["sources"], flags["out"], flags["as_json"]) == (["a", "b"], "d", False)


def test_options_have_the_names_of_keywords() -> None:
    _, options = parsed("record", "E", "--out", "d", "-p", "random", "-n", "3", "--wrapper", "A", "--wrapper", "B", "--explore")
    assert options == {"policy": "random", "episodes": 3, "wrappers": ["A", "B"], "explore": True}


def test_a_json_object_is_a_mapping() -> None:
    line = ("record", "E", "--out", "d", "-p", "random")
    assert parsed(*line, "--env-kwargs", '{"gravity": 9.8}')[1]["env_kwargs"] == {"gravity": 9.8}
    for text in ("[1]", "gravity"):
        with pytest.raises(BadConfig) as caught:
            parsed(*line, "--env-kwargs", text)
        assert caught.value.where == "--env-kwargs"
        assert "gravity" in caught.value.fix


def test_pairs_are_a_mapping_of_texts() -> None:
    assert parsed("inspect", "a", "--expect", "episodes=3", "--expect", "steps=9")[1] == {
        "expect": {"episodes": "3", "steps": "9"}
    }
    with pytest.raises(UsageError, match="not KEY=VALUE"):
        parsed("inspect", "a", "--expect", "episodes")


def test_a_cache_is_one_of_the_storage_options() -> None:
    line = ("convert", "a", "--out", "d", "--storage-option", "anon=true")
    assert parsed(*line)[1] == {"storage_options": {"anon": True}}
    assert parsed(*line, "--cache", "c")[1] == {"storage_options": {"anon": True, "cache": "c"}}
    assert parsed(*line, "--cache", "c", "--cache-size", "2KiB")[1]["storage_options"]["cache_size"] == 2048


def test_a_number_of_zero_is_given() -> None:
    assert parsed("evaluate", "r", "--seed", "0")[1] == {"seed": 0}


def test_a_flag_that_is_taken_back_is_not_given() -> None:
    assert parsed("evaluate", "r", "--explore", "--no-explore")[1] == {}
