"""Help: complete, quick, and without anything heavy."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from named_commands import COMMANDS, command_named
from typer.testing import CliRunner

from offline_cli import __version__
from offline_cli.cli.app import app

Shell = Callable[..., Any]

HEAVY = ("numpy", "gymnasium", "torch", "polars", "pyarrow", "ray", "fsspec", "matplotlib")
PAGES = ([], *([name] for name in COMMANDS))


def test_the_examples_of_the_help_parse() -> None:
    for name in COMMANDS:
        command = command_named(name)
        for line in command.about.examples:
            words = line.split()
            assert words[:2] == ["offline-cli", name]
            command.make_context(name, [word.strip("'") for word in words[2:]])


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


def test_required_options_are_in_the_usage_line() -> None:
    line = CliRunner().invoke(app, ["record", "-h"]).stdout.splitlines()[0]
    assert line.split()[-6:] == ["ENV", "--out", "OUT", "--policy", "P", "[OPTIONS]"]


def test_a_misspelt_command_is_guessed() -> None:
    assert "Did you mean 'convert'" in CliRunner().invoke(app, ["convret"]).stderr
