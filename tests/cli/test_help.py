"""Help: complete, quick, and without anything heavy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from offline_cli import __version__
from offline_cli.cli import reference
from offline_cli.cli.app import app
from offline_cli.cli.command_line import FIRST
from offline_cli.options import Group
from offline_cli.training.config import resolve_config

REPOSITORY = Path(__file__).resolve().parents[2]
Shell = Callable[..., Any]

COMMANDS = (
    "record",
    "convert",
    "apply",
    "train",
    "train-bc",
    "evaluate",
    "export",
    "inspect",
    "validate",
    "repair",
    "filter",
    "sample",
    "split",
    "merge",
    "repack",
    "diff",
)
HEAVY = ("numpy", "gymnasium", "torch", "polars", "pyarrow", "ray", "rich", "fsspec", "matplotlib", "pydantic")
PAGES = ([], *([name] for name in COMMANDS))


def command_named(name: str) -> Any:
    group: Any = typer.main.get_command(app)
    return group.commands[name]


def test_the_commands_are_those_that_are_tested_here() -> None:
    group: Any = typer.main.get_command(app)
    assert tuple(group.commands) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_sentence_options_that_explain_themselves_and_examples(name: str) -> None:
    command = command_named(name)
    assert command.help
    assert [param.name for param in command.params if not param.help] == []
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0
    assert done.stdout.count(f"    offline-cli {name} ") >= 3


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_the_flags_that_all_have(name: str) -> None:
    opts = {opt for param in command_named(name).params for opt in param.opts}
    assert {"--json", "--quiet", "--debug", "--storage-option"} <= opts


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_the_help_parse(name: str) -> None:
    command = command_named(name)
    for line in command.epilog.splitlines()[2:]:
        words = line.split()
        assert words[:2] == ["offline-cli", name]
        command.make_context(name, [word.strip("'") for word in words[2:]])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_begins_with_the_five_options_that_most_people_need(name: str) -> None:
    page = CliRunner().invoke(app, [name, "--help"], terminal_width=200).stdout
    first = page.split("Most used:\n")[1].split("\n\n")[0]
    assert len(re.findall(r"^  (?:-\w, )?--", first, flags=re.MULTILINE)) == 5


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_each_option_once_in_one_of_the_groups(name: str) -> None:
    page = CliRunner().invoke(app, [name, "--help"], terminal_width=200).stdout
    headings = re.findall(r"^([A-Z][a-z ]+):$", page, flags=re.MULTILINE)
    assert headings[-1] == "Output" if "Output" in headings else True
    assert set(headings) <= {"Arguments", FIRST, *(group.value for group in Group)}
    shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)", page, flags=re.MULTILINE)
    every = [param.opts[0] for param in command_named(name).params if param.param_type_name == "option"]
    assert sorted(shown) == sorted([*every, "--help"])


@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_h_shows_the_page_that_help_shows(page: list[str]) -> None:
    short, long = (CliRunner().invoke(app, [*page, name]) for name in ("-h", "--help"))
    assert (short.exit_code, short.stdout) == (0, long.stdout)
    assert "  -h, --help " in short.stdout


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("record", "record ENV --out D --policy P [OPTIONS]"),
        ("convert", "convert SRC... --out D [OPTIONS]"),
        ("apply", "apply [SRC...] --pipeline F [OPTIONS]"),
        ("train-bc", "train-bc SRC... --out RUN [OPTIONS]"),
        ("evaluate", "evaluate RUN [OPTIONS]"),
        ("inspect", "inspect SRC... [OPTIONS]"),
        ("validate", "validate SRC... [OPTIONS]"),
        ("repair", "repair D [OPTIONS]"),
        ("filter", "filter SRC... --out D [OPTIONS]"),
        ("split", "split SRC... --out F [OPTIONS]"),
        ("diff", "diff A B [OPTIONS]"),
    ],
)
def test_the_usage_line_shows_arguments_and_required_options_by_name(name: str, usage: str) -> None:
    assert CliRunner().invoke(app, [name, "--help"]).stdout.startswith(f"Usage: offline-cli {usage}\n")


def test_help_tells_the_defaults_of_configured_options_although_the_command_line_leaves_them_open() -> None:
    page = " ".join(CliRunner().invoke(app, ["train-bc", "--help"]).stdout.split())
    assert "--batch-size N Steps per update. [default: 1024; at least 1]" in page
    assert "[default: 20, or 200 with --until-return or --patience; at least 1]" in page
    assert {param.default for param in command_named("train-bc").params} <= {None, False}


def test_help_loads_nothing_heavy(shell: Shell) -> None:
    script = (
        "import json, sys\nfrom offline_cli.cli.app import app\n"
        f"for page in {PAGES}:\n"
        "    code = app([*page, '--help'], standalone_mode=False)\n"
        f"    print(json.dumps([code, page, [name for name in {HEAVY} if name in sys.modules]]))"
    )
    done = shell("-c", script)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert told == [[0, page, []] for page in PAGES], done.stderr


def test_the_version_is_the_packages() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"offline-cli {__version__}\n"


def test_no_command_shows_the_help_and_fails() -> None:
    done = CliRunner().invoke(app, [])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Commands:" in done.stderr


def test_the_module_runs_like_the_command(shell: Shell) -> None:
    assert shell("-m", "offline_cli", "--version").stdout == f"offline-cli {__version__}\n"


def test_a_misspelt_command_is_guessed() -> None:
    assert "Did you mean 'convert'" in CliRunner().invoke(app, ["convret"]).stderr


def test_a_wrong_choice_lists_the_right_ones() -> None:
    done = CliRunner().invoke(app, ["convert", "x", "--out", "y", "--to", "csv"])
    assert done.exit_code == 2
    assert "no sink is called 'csv'" in done.stderr
    assert "use episodes, columns" in done.stderr


def test_the_reference_page_is_what_the_commands_say() -> None:
    page = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == reference.page(), "run `make docs`"


def test_the_page_of_config_keys_is_what_the_schema_says() -> None:
    page = (REPOSITORY / "docs" / "config.md").read_text(encoding="utf-8")
    assert page == reference.config_page(), "run `make docs`"


def test_the_example_on_the_page_of_config_keys_holds(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(reference.config_page().split("```toml\n")[1].split("```")[0], encoding="utf-8")
    assert resolve_config({}, file=tmp_path / "c.toml").hidden == (64, 64)
