"""What a command line says, as keywords of the library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
import typer.main

from offline_cli.cli.app import command_named
from offline_cli.cli.command_line import parse, read_plainly, runnable
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
    assert options == {"policy": ["random"], "episodes": 3, "wrappers": ["A", "B"], "explore": True}


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

NUMBERS = (
    "5",
    "-3",
    "+7",
    "007",
    "1e3",
    "0x10",
    "1_000",
    " 5 ",
    "5.0",
    ".5",
    "5.",
    "-.5e-3",
    "inf",
    "nan",
    "1e400",
    "9" * 30,
    "",
)


@pytest.mark.parametrize("kind", [int, float, str])
def test_a_text_has_the_value_that_typer_reads_in_it(kind: type[Any]) -> None:
    def show(value: Any = None) -> None:
        pass

    show.__annotations__ = {"value": Annotated[kind, typer.Option("--value")]}
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(show)

    def outcome(read: Callable[[Any], object], text: str) -> object:
        command = typer.main.get_command(app)
        read(command.params)
        try:
            return repr(command.make_context("show", ["--value", text]).params["value"])
        except typer.BadParameter as error:
            return error.format_message()

    for text in (*NUMBERS, "x", "-", "٣"):
        assert outcome(read_plainly, text) == outcome(lambda params: None, text), text


def test_values_that_are_plain_are_read_without_pydantic(shell: Callable[..., Any]) -> None:
    line = ["record", "E", "--out", "d", "-n", "3", "--vectorize", "sync", "--policy", "p", "--quiet"]
    script = (
        "import json, sys\nfrom offline_cli.cli.app import command_named\nfrom offline_cli.cli.command_line import runnable\n"
        f"found = runnable(command_named('record')).make_context('record', {line[1:]}).params\n"
        "print(json.dumps([found[name] for name in ('episodes', 'vectorize', 'quiet', 'wrappers')]))\n"
        "print('pydantic' in sys.modules)"
    )
    done = shell("-c", script)
    assert [json.loads(line) for line in done.stdout.lower().splitlines()] == [[3, "sync", True, []], False], done.stderr


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


def test_a_flag_may_be_repeated() -> None:
    assert parsed("filter", "a", "--out", "d", "--json", "--json")[0]["as_json"] is True
